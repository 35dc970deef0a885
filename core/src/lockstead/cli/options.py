"""Decides what the subcommands' words mean alike: URLs, tickets, labels, `--json`.

Must not know what a subcommand does with them. Imports no store and no engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from lockstead.cli.exits import say
from lockstead.opening import Target, target
from lockstead.stores import url as urls
from lockstead.values import LeaseTicket

if TYPE_CHECKING:
    from lockstead.lock import Client
    from lockstead.stores.port import StoreUrl

F = TypeVar("F", bound=Callable[..., Any])

TICKET_CHARACTERS_MAX: Final = 65536
"""What is read of standard input: a ticket is far shorter."""


def as_json(what: str = "one JSON object") -> Callable[[F], F]:
    """Add `--json`, which prints this and nothing else."""
    return click.option("--json", "json", is_flag=True, help=f"Print {what} and nothing else.")


def shown_to_waiters(function: F) -> F:
    """Add what is stored with a lock for people: purpose, owner, labels."""
    for option in (
        click.option("--label", "labels", metavar="K=V", multiple=True, help="Stored with the lock; may be repeated."),
        click.option("--owner", metavar="TEXT", help="Who, for everyone who waits. Default: host/pid."),
        click.option("--purpose", metavar="TEXT", help="Why, for everyone who waits."),
    ):
        function = option(function)
    return function


def ticket_argument(function: F) -> F:
    """Add the ticket: an argument, `-` for standard input, or else LOCKSTEAD_TICKET."""
    return click.argument("ticket", envvar="LOCKSTEAD_TICKET", required=False)(function)


def lock_at(url: str) -> Target:
    """Read a lock's URL. A memory store is refused: no other process has ever seen it."""
    named = target(url)
    _refuse_memory(named.store)
    return named


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and one key of it if the URL named one after '#'."""

    store: StoreUrl
    key: str | None


def store_at(url: str) -> Place:
    """Read a store's URL; `#key` may follow, settings may not."""
    parsed = urls.parse_store(url)
    _refuse_memory(parsed)
    if parsed.options:
        raise click.UsageError(f"settings belong to a lock: leave {sorted(parsed.options)[0]!r} out of the URL")
    return Place(parsed, parsed.key)


def _refuse_memory(store: StoreUrl) -> None:
    if store.scheme == "memory":
        raise click.UsageError(
            "a memory: store lives in one process, it keeps nobody else out; take sqlite: or another"
        )


def opened(store: StoreUrl | str, *, verbose: bool = False) -> Client:
    """Open a store, whose trouble is told on standard error."""
    from lockstead.cli.telling import Teller
    from lockstead.lock import Client

    return Client(urls.open_store(store), listener=Teller(verbose=verbose))


def tell_unmade(client: Client) -> None:
    """Say on standard error that there is no store yet where somebody looks: the address may be mistyped."""
    from lockstead.stores.port import MadeByUse

    store = client._engine.store
    if isinstance(store, MadeByUse) and (unmade := store.unmade) is not None:
        say(unmade)


def settings_of(named: Target, given: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Give the settings of a lock: those of its URL, outdone by those that were given by option."""
    wanted = {**given, "labels": labelled(labels)}
    return {**named.settings, **{name: value for name, value in wanted.items() if value}}


def labelled(labels: Sequence[str]) -> dict[str, str]:
    """Read labels written K=V."""
    named = {}
    for label in labels:
        name, equals, value = label.partition("=")
        if not (name and equals):
            raise click.UsageError(f"a label is written K=V, not {label!r}")
        named[name] = value
    return named


def ticket_of(text: str | None) -> LeaseTicket:
    """Read a ticket as it was given; `-` is the first line of standard input."""
    if text == "-":
        text = sys.stdin.readline(TICKET_CHARACTERS_MAX)
    if not text or not text.strip():
        raise click.UsageError("no ticket: give it as an argument, on standard input ('-'), or in LOCKSTEAD_TICKET")
    said = LeaseTicket.parse(text.strip())
    _refuse_memory(urls.parse_store(said.store))
    return said
