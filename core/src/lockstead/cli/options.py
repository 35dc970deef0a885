"""Options and arguments that the subcommands share: URLs, tickets, labels, `--json`.

Must not import a subcommand, a store or the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from lockstead import registry
from lockstead.cli.exits import say
from lockstead.registry import Target, target
from lockstead.settings import Settings
from lockstead.stores import url as urls
from lockstead.values import SHARED, TICKET_CHARACTERS_MAX, LeaseTicket, checked_permits, seconds

if TYPE_CHECKING:
    from lockstead.lock import Client, Lock
    from lockstead.semaphore import Semaphore
    from lockstead.stores.port import StoreUrl

F = TypeVar("F", bound=Callable[..., Any])


def time_option(name: str, text: str, **more: Any) -> Callable[[F], F]:
    """Add an option whose value is a duration, converted to seconds. text: its help."""
    return click.option(name, metavar="TIME", callback=_in_seconds, help=text, **more)


def _in_seconds(_context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    return None if value is None else seconds(value, option.opts[0])


def ttl_option(default: str) -> Callable[[F], F]:
    """Add the option `--ttl`."""
    return time_option("--ttl", f"How long the lease lives without renewal. Default: {default}.")


timeout_option: Final = time_option("--timeout", "Maximum time to wait (0: try once). Default: wait forever.")
shared_option: Final = click.option(
    "--shared", "mode", flag_value=SHARED, help="As a reader, together with other readers. Default: exclusive."
)
verbose_option: Final = click.option(
    "-v", "--verbose", is_flag=True, help="Print progress even if standard error is not a terminal."
)


def as_json(what: str = "one JSON object") -> Callable[[F], F]:
    """Add the option `--json`; `what` describes the output."""
    return click.option("--json", "json", is_flag=True, help=f"Print {what} and nothing else.")


def permit_options(function: F) -> F:
    """Add the options that take a permit of a semaphore in place of a lock: `--permits` and `--on-mismatch`."""
    function = click.option(
        "--on-mismatch",
        type=click.Choice(registry.MISMATCHES),
        help="If the semaphore has another limit than N. Default: refuse.",
    )(function)
    return click.option("-n", "--permits", type=int, metavar="N", help="Take one of N permits: URL names a semaphore.")(
        function
    )


def check_permits(permits: int | None, on_mismatch: str | None, mode: str) -> None:
    """Raise UsageError or ValueError if the options of `permit_options` are not meant so, before a store is asked."""
    if permits is None:
        if on_mismatch is not None:
            raise click.UsageError("--on-mismatch belongs to -n N")
        return
    checked_permits(permits, 1)
    if mode == SHARED:
        raise click.UsageError("-n takes a permit, which no two holders share: leave out --shared (or mode=shared)")


def lock_or_semaphore(
    client: Client, key: str, settings: Mapping[str, Any], permits: int | None, on_mismatch: str | None
) -> Lock | Semaphore:
    """Return the lock, or with permits the semaphore, of this key."""
    if permits is None:
        return client.lock(key, **settings)
    return client.semaphore(key, permits, on_mismatch=on_mismatch or "refuse", **settings)


def metadata_options(purpose: str = "Reason shown to waiters.") -> Callable[[F], F]:
    """Add the options of a lock's metadata: purpose (with this help), owner, labels."""

    def add(function: F) -> F:
        for option in (
            click.option("--label", "labels", metavar="K=V", multiple=True, help="Label to store; may be repeated."),
            click.option("--owner", metavar="TEXT", help="Owner name shown to waiters. Default: host/pid."),
            click.option("--purpose", metavar="TEXT", help=purpose),
        ):
            function = option(function)
        return function

    return add


def ticket_and_store(function: F) -> F:
    """Add the ticket (an argument, `-` for standard input, or else LOCKSTEAD_TICKET), and the URL of its store."""
    function = click.option(
        "--store",
        metavar="URL",
        envvar="LOCKSTEAD_STORE",
        help="The store, or the lock, that the ticket is for. Default: LOCKSTEAD_STORE.",
    )(function)
    return click.argument("ticket", envvar="LOCKSTEAD_TICKET", required=False)(function)


def parse_lock_url(url: str) -> Target:
    """Parse a lock's URL. A store that is private to one process is refused."""
    named = target(url)
    _refuse_private(named.store)
    return replace(named, store=urls.resolved(named.store))


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and one key of it if the URL named one after '#'."""

    store: StoreUrl
    key: str | None


def store_at(url: str) -> Place:
    """Parse a store's URL, or a lock's URL, with its key and settings."""
    parsed = urls.parse_store(url)
    _refuse_private(parsed)
    settings_in(parsed)
    return Place(urls.resolved(parsed), parsed.key)


def settings_in(parsed: StoreUrl) -> dict[str, Any]:
    """Return the settings in a URL; ValueError if one is unknown or they contradict each other."""
    options: dict[str, Any] = registry.known_settings(parsed)
    Settings.make(**options)
    return options


def _refuse_private(store: StoreUrl) -> None:
    if not urls.spans_processes(store.text):
        raise click.UsageError(
            f"a {store.scheme}: store is private to one process and excludes no other; use sqlite: or another"
        )


def opened(store: StoreUrl | str, *, verbose: bool = False) -> Client:
    """Open a store; its problems are reported on standard error."""
    from lockstead.cli.progress import ProgressListener
    from lockstead.lock import Client

    return Client(urls.open_store(store), listener=ProgressListener(verbose=verbose))


def warn_of_place(client: Client) -> None:
    """Warn on standard error if the store does not exist yet, or if an environment variable redirects it."""
    from lockstead.stores.port import CreatesOnFirstUse, Diverts

    store = client._engine.store
    if isinstance(store, CreatesOnFirstUse) and (missing := store.missing) is not None:
        say(missing)
    if isinstance(store, Diverts) and (diverted := store.diverted) is not None:
        say(diverted)


def settings_of(named: Target, given: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a lock: those of its URL, overridden by options."""
    wanted = {**given, "labels": parse_labels(labels)}
    return {**named.settings, **{name: value for name, value in wanted.items() if value not in (None, "", {})}}


def parse_labels(labels: Sequence[str]) -> dict[str, str]:
    """Parse labels written K=V."""
    named = {}
    for label in labels:
        name, equals, value = label.partition("=")
        if not (name and equals):
            raise click.UsageError(f"a label is written K=V, not {label!r}")
        named[name] = value
    return named


def ticket_at(text: str | None, store: str | None) -> tuple[LeaseTicket, StoreUrl]:
    """Parse a ticket and the URL of its store; `-` is the first line of standard input.

    The store is never taken from the ticket: the author of the ticket would choose which server gets the credentials
    of this environment. A client refuses a ticket of another store than its own.
    """
    if text == "-":
        text = sys.stdin.readline(TICKET_CHARACTERS_MAX + 1)
    if not text or not text.strip():
        raise click.UsageError("no ticket: give it as an argument, on standard input ('-'), or in LOCKSTEAD_TICKET")
    said = LeaseTicket.parse(text.strip())
    if not store:
        raise click.UsageError(
            "no store: name the one that the ticket is for with --store URL, or in LOCKSTEAD_STORE; it is not taken "
            "from the ticket"
        )
    place = store_at(store)
    if place.key not in (None, said.key):
        raise click.UsageError(f"the ticket is for {said.key!r}, --store names {place.key!r}")
    return said, place.store
