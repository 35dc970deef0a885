"""The command `lockstead dashboard`: serve a page that shows every lock of some stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from lockstead.cli.exits import Exit, Failed, say
from lockstead.cli.options import store_at, time_option

EPILOG: Final = """\b
Examples:
  lockstead dashboard sqlite:///locks.db
  lockstead dashboard gs://my-bucket/locks redis://cache/0 --history locks-seen.db
  lockstead dashboard env:LOCKS --listen 0.0.0.0:8123 --token-file token --host locks.example

\b
Exit codes: 0 ended by SIGINT or SIGTERM, or
  64 wrong usage      69 a store is not there
"""


@click.command(epilog=EPILOG)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8123", show_default=True, help="Address to listen at."
)
@click.option("--token-file", metavar="FILE", help="File with the token that one needs to look.")
@click.option("--admin-token-file", metavar="FILE", help="File with the token that one needs to break locks.")
@click.option("--trusted-proxy-header", metavar="NAME", help="Header in which a proxy names the person.")
@click.option("--host", "hosts", metavar="NAME", multiple=True, help="Name by which browsers call it; may be repeated.")
@time_option("--every", "Time from one listing of a store to the next. Default: 2s.", default="2s")
def dashboard(
    urls: Sequence[str],
    listen: str,
    token_file: str | None,
    admin_token_file: str | None,
    trusted_proxy_header: str | None,
    hosts: Sequence[str],
    every: float,
) -> int:
    """Serve a page that shows every lock of the stores at URL, live, until it is stopped.

    It is read-only without --admin-token-file. Only this machine can reach it, unless --listen says more: then one
    needs a token, or a proxy that asks who it is.
    """
    try:
        import uvicorn

        from lockstead.dashboard.app import create_app
    except ModuleNotFoundError as missing:
        raise Failed(
            Exit.USAGE, f"the dashboard needs {missing.name}: pip install 'lockstead[cli,dashboard]'"
        ) from None
    from lockstead.monitor.listening import Address, read_token

    address = Address.parse(listen)
    if not address.is_loopback and token_file is None and trusted_proxy_header is None:
        raise Failed(Exit.USAGE, f"{listen} can be reached from elsewhere: give --token-file or --trusted-proxy-header")
    places = [store_at(url) for url in urls]
    app = create_app(
        [place.store.text for place in places],
        token=None if token_file is None else read_token(token_file),
        admin_token=None if admin_token_file is None else read_token(admin_token_file),
        trusted_proxy_header=trusted_proxy_header,
        hosts=[*hosts, address.host],
        every=every,
    )
    socket = address.bind()
    say(f"the dashboard is at http://{Address(address.host, socket.getsockname()[1])}/")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
    )
    uvicorn.Server(config).run(sockets=[socket])
    return Exit.OK
