"""The interface of a store. Every store implements it, and third parties may as well.

Must not know any store. The conformance suite (`lockstead.testing.conformance`) is the complete contract.
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
    """A store of records. Safe to share between threads; reconnects after a fork; closes what it opened.

    It does not retry, does not use the wall clock, and has no state except its connections.
    """

    @property
    def traits(self) -> Traits:
        """The properties of this store that the protocol needs; constant."""
        ...

    @property
    def url(self) -> str:
        """The store's URL without credentials; may be printed and put into tickets."""
        ...

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command as one request, within `limit` seconds.

        Raises StoreUnavailable (certainly not sent), OutcomeUnknown (may be applied; also for a 5xx) or StoreRefused
        (never will be applied). An unrecognised error becomes OutcomeUnknown, which is the safe choice.
        """
        ...

    def after_fork(self) -> None:
        """Forget every inherited connection without closing it; called in the child before any other use."""
        ...

    def close(self) -> None:
        """Close what this store opened. Idempotent; later commands raise StoreUnavailable."""
        ...


class StoreBase:
    """Base class of a store with one URL; provides its repr. url: see `Store.url`."""

    url: str

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """See `SupportsDiagnostics.behind`."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


@runtime_checkable
class AsyncStore(Protocol):
    """A store with asynchronous I/O. For other stores, the asynchronous driver calls `perform` in a thread."""

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Like `perform`, asynchronously; may be called from any event loop, and cancelled at any await."""
        ...


class Subscription(Protocol):
    """A subscription to the changes of one record."""

    def close(self) -> None:
        """End it. Idempotent, non-blocking; may be called from any thread and by the garbage collector."""
        ...


@runtime_checkable
class SupportsWatch(Protocol):
    """A store that notifies subscribers of changes of a record; such stores share `stores.subscriptions`."""

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Call on_change(is_free) at every change of the record until the subscription is closed.

        Does not block and sends no request in the caller's thread, which may run an event loop. on_change may be called
        from any thread, also before `subscribe` returns; it must neither block nor raise. It is called once when the
        subscription takes effect, unless the record exists: a change since the caller's last read may have been missed.
        Calls without a change are allowed, but each costs a read. is_free means that the record is known to be gone and
        few other waiters were notified, so an attempt to acquire (a write) is worthwhile. While the store cannot
        receive notifications, on_change is not called; callers poll with their own backoff.

        A subscriber to a slot of permits is called at the changes of every slot of its key (`Name.topic`), never with
        is_free, and once when the subscription takes effect, since any of them may have been freed before.
        """
        ...


@runtime_checkable
class SupportsFifoQueue(SupportsWatch, Protocol):
    """A store that queues waiters in order of arrival and grants in that order.

    `Create` and `Replace` before the waiter's turn return Conflict(is_queued=True), whether or not the waiter_id is
    queued. A grant atomically removes the waiter from the queue. A queue entry ends with its process.
    """

    def enqueue(self, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        """Join the queue, or keep an earlier entry, and call on_turn(is_free) when it is this waiter's turn.

        Does not block and sends no request in the caller's thread, which may run an event loop. on_turn may be called
        from any thread, also before `enqueue` returns; it must neither block nor raise. It is called when the waiter is
        first and the record is gone (is_free: worth a write), or is that of a group of readers when it becomes first,
        and at each change of the record while the waiter is first (not is_free: worth a read), until the subscription
        is closed. Additional calls are allowed, but each costs a request. Closing the subscription keeps the queue
        entry; `leave` removes it. While the store cannot be reached, on_turn is not called; callers poll with their own
        backoff.
        """
        ...

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Remove a waiter from the queue, if queued, within `limit` seconds; raises the errors of `perform`.

        Blocks. A request of an earlier `enqueue` of this waiter_id that is still in flight, or arrives late, must not
        restore the entry. Called again after an error, for as long as the process lives.
        """
        ...


class Standing(NamedTuple):
    """One queue entry: the waiter's owner, since when (seconds since the epoch, for display), and whether it is stray.

    who is empty and since is None if unknown. A stray entry was not made by this library and delays no waiter.
    """

    who: str
    since: float | None = None
    is_stray: bool = False


STANDINGS_MAX: Final = 100
"""Maximum number of queue entries that are shown, from the first."""


@runtime_checkable
class ShowsQueue(Protocol):
    """A store that can list the waiters of a lock."""

    def standing(self, name: Name, limit: float) -> Sequence[Standing]:
        """Return the first entries of a key's queue, in order, within `limit` seconds; raises the errors of `perform`.

        At most STANDINGS_MAX entries. Waiters that the store does not know yet, or that wait in the local queue of
        their own process, are not included.
        """
        ...


@runtime_checkable
class ClearsQueues(Protocol):
    """A store whose queues can keep what is no waiter's entry: strays, and queues that were left empty."""

    def clear_queues(self, at_most: int, limit: float, *, dry_run: bool) -> Sequence[str]:
        """Remove at most so many of them, in all queues; return their names. Raises the errors of `perform`.

        Blocks for at most `limit` seconds. dry_run: remove nothing. An entry of a waiter is never touched.
        """
        ...


@runtime_checkable
class SupportsBatching(Protocol):
    """A store that can carry out many commands with few requests, such as the renewals of all leases of a process."""

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Return, in order, the result of each command, or the StoreError that `perform` would have raised.

        All commands together have `limit` seconds. They may be of any kind and are independent of each other; they are
        not atomic as a group. Raises nothing itself.
        """
        ...


@runtime_checkable
class CreatesOnFirstUse(Protocol):
    """A store that the first lock creates; so with a mistyped address, every lock looks free."""

    @property
    def missing(self) -> str | None:
        """A message that says what does not exist yet; None if it exists. Raises the errors of `perform`."""
        ...


@runtime_checkable
class Diverts(Protocol):
    """A store whose requests the environment can redirect; locks then exclude only clients that are redirected too."""

    @property
    def diverted(self) -> str | None:
        """A message that says where requests go and why; None if they go where the URL says."""
        ...


@runtime_checkable
class SupportsDiagnostics(Protocol):
    """A store that can check what its commands do not show: permissions, settings, clocks."""

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """The mechanism behind a guarantee in the store's terms ("ifGenerationMatch of a PATCH"), where that helps."""
        ...

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:
        """Yield findings one at a time, with `limit` seconds for each request.

        scratch(part) returns the name of a record that no other client uses; the caller removes records left under
        these names. Nothing else in the store is changed or read, except settings. Raises the errors of `perform` if no
        further check is possible.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store URL.

    text is the store's part of it: without key and lock settings, but with credentials and with the store's own options
    after `?`, sorted by name and percent-encoded. key and the values of options are percent-decoded. text must not be
    shown; `Opener.printable` returns a form that may be.
    """

    scheme: str
    text: str = field(repr=False)
    key: str | None
    options: dict[str, str]


class Opener(Protocol):
    """The opener of a scheme's stores: the object that an entry point of the group `lockstead.stores` refers to.

    Importing its module must be cheap; client libraries are imported by `open`. Methods that have a default here need
    not be overridden in a subclass.
    """

    @property
    def traits(self) -> Traits:
        """The traits of every store of this scheme."""
        ...

    @property
    def options(self) -> frozenset[str]:
        """The names of URL options that belong to the store and not to the lock; they stay in the store's URL."""
        return frozenset()

    @property
    def takes_user(self) -> bool:
        """Whether `user:password@` may precede the host; False by default."""
        return False

    @property
    def spans_processes(self) -> bool:
        """Whether the store excludes holders in other processes; True by default."""
        return True

    @property
    def has_tokens(self) -> bool:
        """Whether the stores have fencing tokens, as in their traits; True by default. Imports nothing."""
        return True

    def split(self, rest: str, fragment: str | None) -> tuple[str, str | None]:
        """Return (store part, key) of a lock URL; rest is the whole URL before `?` and `#`.

        Both stay percent-encoded. The key is None if the URL has none. By default, the key is the fragment.
        """
        return rest, fragment

    def printable(self, store_url: str) -> str:
        """Return the store's URL without credentials."""
        ...

    def open(self, store_url: str, client: object | None) -> Store:
        """Open the store. client is a client object supplied by the caller, or None.

        Raises StoreRefused, with the `pip install` command to run, if the client library is missing; ValueError for an
        invalid URL.
        """
        ...
