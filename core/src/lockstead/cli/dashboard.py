"""The command `lockstead dashboard`: serve a page that shows every lock of some stores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from lockstead.cli.exits import Exit, Failed, plain, say
from lockstead.cli.options import opened, store_at, time_option, warn_of_place
from lockstead.errors import StoreUnavailable

if TYPE_CHECKING:
    from socket import socket
    from types import FrameType

    from starlette.applications import Starlette

    from lockstead.monitor.listening import Address
    from lockstead.stores.port import StoreUrl

EPILOG: Final = """\b
Examples:
  lockstead dashboard sqlite:///locks.db
  lockstead dashboard gs://my-bucket/locks redis://cache/0 --history seen.db
  lockstead dashboard sqlite:///locks.db --admin-token-file token

\b
Exit codes: 0 ended by SIGINT or SIGTERM, or
  64 wrong usage, or the address is in use      69 a store refused
"""

EVERY_MIN: Final = 0.2

CONNECTIONS_MAX: Final = 500
"""Connections at once; 200 of them may be open pages."""


@click.command(epilog=EPILOG)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8123", help="Default: 127.0.0.1:8123.")
@click.option("--host", "hosts", metavar="NAME", multiple=True, help="Name that browsers call it by; may be repeated.")
@click.option("--token-file", metavar="FILE", help="File with the token that is needed to look.")
@click.option("--admin-token-file", metavar="FILE", help="File with the token that is needed to break locks.")
@click.option("--trusted-proxy-header", metavar="NAME", help="Header in which a proxy names the person who asks.")
@click.option("--history", metavar="FILE", help="SQLite file that keeps what was seen, even while nobody looks.")
@click.option("--lock-label", "lock_labels", metavar="PATTERN=NAME", multiple=True, help="Name of locks in /metrics.")
@time_option("--every", "Time from one listing of a store to the next. Default: 1s.", default="1s")
def dashboard(
    urls: Sequence[str],
    listen: str,
    hosts: Sequence[str],
    token_file: str | None,
    admin_token_file: str | None,
    trusted_proxy_header: str | None,
    history: str | None,
    lock_labels: Sequence[str],
    every: float,
) -> int:
    """Serve a page that shows every lock of the stores at URL, live, until it is stopped.

    It is read-only without --admin-token-file. Only this machine can reach it, unless --listen says more: then a token
    is needed to look, or a proxy that asks people who they are.
    """
    try:
        import uvicorn  # noqa: F401 - without it nothing can be served

        from lockstead.dashboard.app import create_app
        from lockstead.monitor.listening import Address, read_token
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        raise Failed(Exit.USAGE, f"the dashboard needs {package}: pip install 'lockstead[cli,dashboard]'") from None
    address = Address.parse(listen)
    if not address.is_loopback and token_file is None and trusted_proxy_header is None:
        raise click.UsageError(
            f"other machines can reach {address}: add --token-file, or --trusted-proxy-header if only a proxy can"
        )
    if every < EVERY_MIN:
        raise click.UsageError(f"--every is at least {EVERY_MIN} s")
    stores = [store_at(url).store for url in urls]
    tokens = [None if name is None else read_token(name) for name in (token_file, admin_token_file)]
    for store in stores:
        _look_at(store)
    app = create_app(
        [store.text for store in stores],
        token=tokens[0],
        admin_token=tokens[1],
        trusted_proxy_header=trusted_proxy_header,
        hosts=[*hosts, address.host],
        history=history,
        lock_labels=lock_labels,
        every=every,
    )
    _serve(app, address)
    return Exit.OK


def _look_at(store: StoreUrl) -> None:
    """Refuse a store that cannot be used; one that does not answer now may do so later."""
    try:
        with opened(store) as client:
            warn_of_place(client)
    except StoreUnavailable as error:
        say(str(error))


def _serve(app: Starlette, address: Address) -> None:
    import uvicorn

    from lockstead.monitor.listening import Address
    from lockstead.monitor.serving import Connection

    class Server(uvicorn.Server):
        """Says when it can be asked, and ends the streams of open pages when it is told to stop."""

        async def startup(self, sockets: list[socket] | None = None) -> None:
            """Begin to serve."""
            await super().startup(sockets)
            say(f"the dashboard is at http://{bound}/")

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - of a signal's handler
            """Note a signal. A requested stop is not a failure, so the signal is not raised again."""
            app.state.dashboard.board.close()
            self.should_exit, self.force_exit = True, self.should_exit

    logging.getLogger("lockstead.dashboard").addHandler(_Said(logging.WARNING))
    with address.bind() as listening:
        bound = Address(address.host, listening.getsockname()[1])
        config = uvicorn.Config(
            app,
            http=Connection,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
            limit_concurrency=CONNECTIONS_MAX,
        )
        Server(config).run(sockets=[listening])


class _Said(logging.Handler):
    """Prints each record in one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        say(plain(record.getMessage()))
