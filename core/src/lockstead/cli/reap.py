"""The command `lockstead reap`: alert on overdue locks, and revoke those whose holders asked for it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from lockstead.cli.exits import Exit, Failed, plain, say
from lockstead.cli.options import opened, store_at, time_option, warn_of_place
from lockstead.errors import NotAcquired, StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    import socket

    from lockstead.monitor.openmetrics import Metrics
    from lockstead.reaper.alerts import Outlet, Webhook
    from lockstead.reaper.service import Plan, StoreReaper
    from lockstead.stores.port import StoreUrl

EPILOG: Final = """\b
Examples:
  lockstead reap sqlite:///locks.db --exec "cat" --listen 127.0.0.1:9095
  lockstead reap gs://my-bucket/locks --repeat 1h --dry-run

\b
Exit codes: 0 ended by SIGINT or SIGTERM, or after --once, or
  64 wrong usage, or the address is in use
  69 a store refused; with --once: it failed
  75 with --once: another reaper acts
"""

EVERY_MIN: Final = 1.0
REPEAT_MIN: Final = 10.0
ONCE_WAITS: Final = 5.0
"""Seconds in which --once must become the acting reaper."""


@click.command(epilog=EPILOG)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@time_option("--every", "Time from one listing of a store to the next. Default: 30s.", default="30s")
@time_option("--repeat", "Time from one alert on a lock to the next. Default: 10m.", default="10m")
@click.option("--webhook", metavar="URL", help="Where alerts are posted as JSON; may be file:PATH or env:NAME.")
@click.option("--exec", "command", metavar="COMMAND", help="Run for each alert, without a shell; JSON on its input.")
@click.option("--listen", metavar="HOST:PORT", help="Serve /metrics, /healthz and /livez there.")
@click.option("--token-file", metavar="FILE", help="File with the token that /metrics needs.")
@click.option("--anonymous", is_flag=True, help="Let other machines read /metrics without a token.")
@click.option("--lock-label", "lock_labels", metavar="PATTERN=NAME", multiple=True, help="Name of locks in /metrics.")
@click.option("--prune/--no-prune", default=True, help="Also prune the stores, each hour, slowly. Default: prune.")
@click.option("--owner", metavar="TEXT", help="Name of this reaper. Default: host/pid.")
@click.option("--dry-run", is_flag=True, help="Print what it would do; write nothing, and alert nobody.")
@click.option("--once", is_flag=True, help="Do it once and exit, as from cron.")
def reap(
    urls: Sequence[str],
    every: float,
    repeat: float,
    webhook: str | None,
    command: str | None,
    listen: str | None,
    token_file: str | None,
    anonymous: bool,
    lock_labels: Sequence[str],
    prune: bool,
    owner: str | None,
    dry_run: bool,
    once: bool,
) -> int:
    """Alert on the overdue locks of the stores at URL, and revoke those whose holders asked for it.

    A lock is overdue after its `alert_after` or `expected`, and revoked after its `auto_unlock_after`, but never before
    an alert. Of several reapers of a store one acts.
    """
    try:
        from lockstead.monitor.names import LockNames
        from lockstead.monitor.openmetrics import Metrics
        from lockstead.reaper import alerts, web  # noqa: F401 - for what it imports
        from lockstead.reaper.service import Plan
    except ModuleNotFoundError as missing:
        needs = f"the reaper needs {missing.name}: pip install 'lockstead[cli,reaper]'"
        raise Failed(Exit.USAGE, needs) from None
    if every < EVERY_MIN or repeat < REPEAT_MIN:
        raise click.UsageError(f"--every is at least {EVERY_MIN:g} s, --repeat at least {REPEAT_MIN:g} s")
    places = [store_at(url) for url in urls]
    for place in places:
        if place.key is not None:
            raise click.UsageError(f"the reaper watches a whole store: leave out '#{place.key}'")
    stores = [place.store for place in places]
    if len({store.text for store in stores}) < len(stores):
        raise click.UsageError("a store is named twice; leave out one")
    names = LockNames.parse(lock_labels)
    outlets, hook = _outlets(None if dry_run else webhook, None if dry_run else command)
    serving = _Serving.of(listen, token_file, is_anonymous=anonymous) if not once else None
    value = None if serving is None else f"http://{serving.address}/"
    plan = Plan(every, repeat, dry_run, prune, owner, value, names, outlets)
    logger = logging.getLogger("lockstead.reaper")
    logger.setLevel(logging.INFO)
    with ExitStack() as stack:
        bound = None if serving is None else stack.enter_context(serving.address.bind())
        stack.enter_context(_said(logger))
        for store in stores:
            _look_at(store)
        job = _once(stores, plan) if once else _serve(stores, plan, Metrics(names), serving, bound)
        return asyncio.run(_until_closed(job, hook))


@dataclass(frozen=True, slots=True)
class _Serving:
    """Where /metrics is served, and the token that it needs."""

    address: Any
    token: str | None

    @classmethod
    def of(cls, listen: str | None, token_file: str | None, *, is_anonymous: bool) -> _Serving | None:
        from lockstead.monitor.listening import Address, read_token

        token = None if token_file is None else read_token(token_file)
        if listen is None:
            if token is not None or is_anonymous:
                raise click.UsageError("--token-file and --anonymous are for --listen: add it, or leave them out")
            return None
        address = Address.parse(listen)
        if not address.is_loopback and token is None and not is_anonymous:
            raise click.UsageError(
                f"other machines can reach {address}: add --token-file, or --anonymous if all of them may read /metrics"
            )
        return cls(address, token)


@contextmanager
def _said(logger: logging.Logger) -> Iterator[None]:
    handler = _Said()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Said(logging.Handler):
    """Prints each record in one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        say(plain(record.getMessage()))


def _look_at(store: StoreUrl) -> None:
    """Refuse a store that cannot be used; one that does not answer now may do so later."""
    try:
        with opened(store) as client:
            warn_of_place(client)
    except StoreUnavailable as error:
        say(str(error))


def _outlets(webhook: str | None, command: str | None) -> tuple[list[Outlet], Webhook | None]:
    from lockstead.reaper.alerts import Command, Outlet, Webhook, parse_command

    outlets, hook = [], None
    if webhook is not None:
        hook = Webhook(_secret(webhook))
        outlets.append(Outlet(hook.name, hook.deliver, workers=4))
    if command is not None:
        runs = Command(parse_command(command))
        outlets.append(Outlet(runs.name, runs.deliver, workers=2, tries=1))
    return outlets, hook


def _secret(text: str) -> str:
    """Return what `file:PATH` or `env:NAME` holds; any other text unchanged."""
    if not text.startswith(("file:", "env:")):
        return text
    from lockstead.stores import elsewhere

    try:
        held, is_public = elsewhere.text_at(text)
    except (StoreRefused, ValueError):
        raise click.UsageError(f"--webhook: {text} cannot be read, or holds nothing; it has to hold a URL") from None
    if is_public:
        raise click.UsageError(f"{text} may hold a secret and every user of this machine may read it: chmod o-r")
    return held.strip()


async def _until_closed(job: Coroutine[Any, Any, int], hook: Webhook | None) -> int:
    try:
        return await job
    finally:
        if hook is not None:
            await hook.close()


async def _opened(stores: Sequence[StoreUrl], plan: Plan, metrics: Metrics) -> list[StoreReaper]:
    from lockstead.aio_lock import AsyncClient
    from lockstead.reaper.service import StoreReaper
    from lockstead.stores import url as urls

    return [
        StoreReaper(AsyncClient(await asyncio.to_thread(urls.open_store, store)), plan, metrics) for store in stores
    ]


async def _serve(
    stores: Sequence[StoreUrl],
    plan: Plan,
    metrics: Metrics,
    serving: _Serving | None,
    bound: socket.socket | None,
) -> int:
    from lockstead.monitor.listening import Address
    from lockstead.reaper.service import run_all
    from lockstead.reaper.web import Server, create_app

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
    reapers = await _opened(stores, plan, metrics)
    if serving is None or bound is None:
        await run_all(reapers, plan, stop)
        return Exit.OK
    say(f"the reaper is at http://{Address(serving.address.host, bound.getsockname()[1])}/metrics")
    server = Server(create_app(reapers, metrics, plan.outlets, serving.token))
    serves = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await run_all(reapers, plan, stop)
    finally:
        server.should_exit = True
        await serves
    return Exit.OK


async def _once(stores: Sequence[StoreUrl], plan: Plan) -> int:
    from lockstead.monitor.openmetrics import Metrics
    from lockstead.reaper.service import flushed

    code = Exit.OK
    for reaper in await _opened(stores, plan, Metrics(plan.names)):
        try:
            if error := await reaper.once(ONCE_WAITS):
                raise StoreUnavailable(f"{reaper.store}: {error}")
        except NotAcquired:
            say(f"{reaper.store}: another reaper acts; nothing was done")
            code = Exit.NOT_ACQUIRED
        finally:
            await reaper.client.close()
    await flushed(plan.outlets)
    return code
