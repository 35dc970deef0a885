"""What a store is: the port that every store implements and that anybody may implement.

Must not know any store. The conformance suite (`lockstead.testing.conformance`) is the contract in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from lockstead.protocol.commands import Command, Traits
    from lockstead.stores.examination import Finding, Guarantee
    from lockstead.values import Name

A = TypeVar("A")


class Store(Protocol):
    """Where records live. Safe to share between threads; survives a fork by reconnecting; closes what it opened.

    No retries, no wall clock, no state but its connections.
    """

    @property
    def traits(self) -> Traits:
        """What the protocol must know of this store; constant."""
        ...

    @property
    def url(self) -> str:
        """The store's URL without credentials, as it may be printed and put into tickets."""
        ...

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command as one request, within `limit` seconds.

        Raises StoreUnavailable (certainly never sent), OutcomeUnknown (may be applied, a 5xx too) or StoreRefused
        (never will be). An error it does not recognise is OutcomeUnknown: the safe side of doubt.
        """
        ...

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it; called in the child, before any other use."""
        ...

    def close(self) -> None:
        """Close what this store opened. Idempotent; whatever is asked afterwards is StoreUnavailable."""
        ...


class StoreBase:
    """What a store of one URL shows of itself. url: as `Store.url`."""

    url: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


@runtime_checkable
class AsyncStore(Protocol):
    """A store whose client library is truly asynchronous. Without it, an awaiting driver performs in a thread."""

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Like `perform`, awaiting; may be called from any event loop, and cancelled at any await."""
        ...


class Subscription(Protocol):
    """A subscription to the changes of one record."""

    def close(self) -> None:
        """End it. Idempotent, does not block, may be called from any thread and by the garbage collector."""
        ...


@runtime_checkable
class SupportsWatch(Protocol):
    """A store that notifies of changes of a record: `stores.subscriptions` has what such stores share."""

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Call on_change(is_free) at every change of the record until the subscription is closed.

        Does not block and makes no request in the caller's thread, which may run an event loop. on_change may be called
        from any thread, also before `subscribe` returns; it neither blocks nor raises. It is called once when the
        subscription takes effect, unless the record is there: a change since the caller's last read may have been
        missed. Calls without a change are allowed, but each costs a read. is_free means that the record is known to be
        gone and few others were notified, so that acquiring is worth a write. While the store cannot listen, it does
        not call: callers poll with their own backoff.
        """
        ...


@runtime_checkable
class SupportsFifoQueue(SupportsWatch, Protocol):
    """A store that keeps waiters in the order in which they came, and grants in that order.

    `Create` and `Replace` of a waiter before its turn are answered by Conflict(is_queued=True), whether or not the
    waiter_id queues. A grant removes the waiter from the queue in the same step. A place ends with the process.
    """

    def enqueue(self, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        """Take a place in the queue, or keep the one taken earlier, and call on_turn(is_free) when the turn has come.

        Does not block and makes no request in the caller's thread, which may run an event loop. on_turn may be called
        from any thread, also before `enqueue` returns; it neither blocks nor raises. It is called when the waiter is
        first and the record is gone (is_free: acquiring is worth a write), and at each change of the record while the
        waiter is first (not is_free: it is worth a read), until the subscription is closed. More calls are allowed, but
        each costs a request. Closing the subscription keeps the place: `leave` gives it up. While the store cannot be
        reached, it does not call: callers poll with their own backoff.
        """
        ...

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Remove a waiter from the queue, if it is in it, within `limit` seconds; raises what `perform` raises.

        Blocks. A request of an earlier `enqueue` of this waiter_id that is still under way, or arrives late, must not
        bring the place back. Called again after an error, for as long as the process lives.
        """
        ...


class Standing(NamedTuple):
    """One entry of a queue: who it is for, since when (seconds since the epoch, for people), and whether it is stray.

    who is empty, and since None, where that is not known. A stray entry is not a place that this library took: it keeps
    nobody waiting.
    """

    who: str
    since: float | None = None
    is_stray: bool = False


STANDINGS_MAX: Final = 100
"""Entries of a queue that are shown, the first of it."""


@runtime_checkable
class ShowsQueue(Protocol):
    """A store that can tell who waits for a lock."""

    def standing(self, name: Name, limit: float) -> Sequence[Standing]:
        """Return first entries of a key's queue, in its order, within `limit` seconds; raises what `perform` raises.

        At most STANDINGS_MAX. A waiter that the store has not heard of yet, or that waits in its own process's line,
        is not among them.
        """
        ...


@runtime_checkable
class SupportsBatching(Protocol):
    """A store that can carry out many commands with few requests: the renewals of all leases of a process."""

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Give, in order, for each command its answer, or the StoreError that `perform` would have raised.

        Together within `limit` seconds. Commands may be of any kind and are independent of each other; there is no
        promise that all or none are carried out. Raises nothing of its own.
        """
        ...


@runtime_checkable
class CreatesOnFirstUse(Protocol):
    """A store whose place is made with the first lock: a mistyped address looks like a place where all is free."""

    @property
    def missing(self) -> str | None:
        """What is not there yet, in words for people; None if it is there. Raises what `perform` raises."""
        ...


@runtime_checkable
class Diverts(Protocol):
    """A store whose requests the environment can send elsewhere: its locks keep nobody out who is not sent there."""

    @property
    def diverted(self) -> str | None:
        """Where requests go and by what, in words for people; None if they go where the URL says."""
        ...


@runtime_checkable
class SupportsDiagnostics(Protocol):
    """A store that can look at its own place: rights, settings, clocks, whatever its commands do not show."""

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """What keeps a promise, in this store's own words ("ifGenerationMatch of a PATCH"), where that says more."""
        ...

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:
        """Yield what is found, one thing at a time, with `limit` seconds for each request.

        scratch(part) names a record that nobody else knows; the caller removes what is left under these names. What
        else stands in the store is neither changed nor read, but for settings. Raises what `perform` raises where
        nothing further can be looked at.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store URL. text is the store's part of it, without key and settings but with credentials and with the
    store's own options behind `?`, sorted by name and percent-encoded.

    key and the values of options are percent-decoded. Only what `Opener.printable` makes of text may be shown.
    """

    scheme: str
    text: str = field(repr=False)
    key: str | None
    options: dict[str, str]


class Opener(Protocol):
    """How a scheme becomes a store: the object that the entry point group `lockstead.stores` names.

    Importing the module that holds it must be cheap; client libraries are imported by `open`. A class that inherits
    from this one need not define what returns something here.
    """

    @property
    def traits(self) -> Traits:
        """The traits of every store that this opens."""
        ...

    @property
    def options(self) -> frozenset[str]:
        """The names behind `?` that belong to the store and not to the lock; they stay part of the store's URL."""
        return frozenset()

    @property
    def takes_user(self) -> bool:
        """Whether `user:password@` may precede the host; not if it is missing."""
        return False

    def split(self, rest: str, fragment: str | None) -> tuple[str, str | None]:
        """Return (store part, key) of a URL that must name a key; rest is the whole URL before `?` and `#`.

        Both stay percent-encoded. The key is None where the URL names none. Without a definition, the key is the
        fragment.
        """
        return rest, fragment

    def printable(self, store_url: str) -> str:
        """Return the store's URL without credentials."""
        ...

    def open(self, store_url: str, client: object | None) -> Store:
        """Open the store. client is the caller's own client object, or None.

        Raises StoreRefused with the `pip install` to type when the client library is missing, ValueError for a URL
        that cannot be one of this store.
        """
        ...
