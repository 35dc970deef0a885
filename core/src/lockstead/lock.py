"""Decides what the blocking API looks like: Client, Lock, Lease. Its awaiting twin is `aio`.

Runs `conversations` and hands what they decide to the engine; knows no store and decides nothing of the protocol.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from lockstead import conversations, opening
from lockstead.errors import StoreError
from lockstead.events import Listener, ReleaseFailed, log
from lockstead.holding import Breaking, Holding
from lockstead.protocol.acquire import Contended
from lockstead.protocol.commands import Script
from lockstead.runtime import context
from lockstead.runtime.engine import Engine, wait_in_line
from lockstead.runtime.held import HeldLease
from lockstead.runtime.interrupt import Interrupter, interrupter, leaves_quietly
from lockstead.runtime.line import NO_BELL, ThreadBell
from lockstead.runtime.run import Limits, run
from lockstead.settings import Settings
from lockstead.stores.port import Store
from lockstead.values import Duration, LeaseTicket, Sequencer, seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Client:
    """An opened store and the keeper of all its leases. Open one with `connect`, or bring your own store.

    Closing it ends the keeping: leases still held are believed no longer and left to expire.
    """

    def __init__(self, store: Store, *, listener: Listener = log) -> None:
        self._engine = Engine(store, listener)

    def lock(self, key: str, **settings: Any) -> Lock:
        """Name a lock of this store; asks nothing. Settings as in `Settings.make`."""
        return Lock._of(self._engine, key, settings)

    def list(self) -> list[Holding]:
        """Show every key that is held, by name."""
        return _converse(self._engine, conversations.PLAIN, conversations.listed(self._engine))

    def verify(self, sequencer: Sequencer | str) -> bool:
        """Tell whether a sequencer names the lease that holds its key at this instant. Absent or expired is no."""
        return _converse(self._engine, conversations.PLAIN, conversations.verified(self._engine, sequencer))

    def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching; waits for live members."""
        said = LeaseTicket.parse(ticket)
        return self.lock(said.key, ttl=said.ttl).release(said, drain=drain)

    def close(self) -> None:
        """Close the keeper and the store. Idempotent."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._engine.store.url}>"


def connect(url: str, *, client: object | None = None, listener: Listener = log) -> Client:
    """Open a store by URL; `client` brings the caller's own client object (a `storage.Client`, say).

    ValueError for a URL that cannot be, StoreRefused when the client library or the store is missing.
    """
    return Client(opening.open_store(url, client), listener=listener)


class Lock(opening.NamedLock):
    """A key one can ask for; holds nothing, and naming one asks nothing and imports no client library.

    Not reentrant: each acquisition is a holder of its own. Safe to share between threads.
    """

    # --- asking --------------------------------------------------------------------------------------------------

    def acquire(self, timeout: Duration | None = None, *, reclaim: bool = False) -> Lease:
        """Wait for the lock, for ever by default; 0 is one try. NotAcquired after `timeout` seconds.

        Ends within timeout + 1 s even if the store hangs. reclaim: take the lock from an earlier process of the same
        explicit owner, whose death the caller vouches for. Raises StoreUnavailable or OutcomeUnknown if the store is
        still silent at the end.
        """
        asking = self._asking(None if timeout is None else seconds(timeout, "timeout"), reclaim=reclaim)
        outcome = self._ask(asking)
        if isinstance(outcome, Contended):
            raise asking.not_acquired(outcome)
        return outcome

    def try_acquire(self, *, reclaim: bool = False) -> Lease | None:
        """Try once: the lease, or None if somebody else holds it. Waits for nobody, and for the store at most 1 s."""
        outcome = self._ask(self._asking(0.0, reclaim=reclaim))
        return None if isinstance(outcome, Contended) else outcome

    def _asking(self, limit: float | None, *, reclaim: bool) -> conversations.Asking:
        return conversations.Asking(self._open_now(), self._key, self._settings, limit, reclaim=reclaim)

    def _ask(self, asking: conversations.Asking) -> Lease | Contended:
        engine = self._open_now()
        bell = ThreadBell()
        try:
            first = asking.enter(bell)
            in_time = first or wait_in_line(engine, self._key, bell, asking.gives_up_at)
            script = asking.script(was_first=first, in_time=in_time)
            outcome = run(script, engine.store, engine.clock, asking.limits, bell)
            if not isinstance(outcome, Contended):
                return asking.lease(outcome, Lease)
        except BaseException as error:
            asking.failed(error)
            raise
        finally:
            asking.leave(bell)
        asking.failed()
        return outcome

    def hold(
        self,
        timeout: Duration | None = None,
        *,
        interrupt: bool = False,
        drain: Duration | None = None,
        reclaim: bool = False,
    ) -> Hold:
        """Hold the lock for a `with` block, or, as a decorator, for each call of a function.

        Leaving it: lease lost and body returned, LeaseLost; body raised, its exception passes, with a note if the
        lease was lost; release failed, a warning. interrupt: interrupt the block when the lease is lost.
        """
        return Hold(self, timeout, interrupt=interrupt, drain=drain, reclaim=reclaim)

    def __enter__(self) -> NoReturn:
        raise TypeError("a Lock is not held by itself: use 'with lock.hold():'")

    def __exit__(self, *_: object) -> None:
        raise TypeError("a Lock is not held by itself: use 'with lock.hold():'")

    # --- tickets -------------------------------------------------------------------------------------------------

    def attach(self, ticket: LeaseTicket | str) -> Lease:
        """Carry on with a lease from its ticket, as a member. LeaseLost if it is not there any more.

        The ttl is the lease's own. ValueError for what is no ticket, or a ticket of another lock.
        """
        engine = self._open_now()
        joining = conversations.attached(engine, self._key, self._settings, ticket)
        return Lease(engine, _converse(engine, self._settings, joining), None)

    def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching. True if we removed it.

        Waits, at most `drain` seconds, until no member is live; if one still is, the lease is left to expire.
        """
        engine = self._open_now()
        releasing = conversations.released(engine, self._key, self._settings, ticket, drain)
        return _converse(engine, self._settings, releasing)

    # --- looking and breaking ------------------------------------------------------------------------------------

    def inspect(self) -> Holding | None:
        """Show who holds the lock, since when, why, until when, with which token; None if nobody does."""
        engine = self._open_now()
        return _converse(engine, self._settings, conversations.inspected(engine, self._key, self._settings))

    def break_lease(
        self, *, reason: str, by: str | None = None, now: bool = False, incarnation: str | None = None
    ) -> Breaking | None:
        """Revoke the lease, as an operator; None if there is none. The holder finds out at its next renewal.

        now: remove it at once; the answer says for how long the old holder may still believe. incarnation (of an
        inspection): break exactly that lease and no later one. Leaves an audit entry.
        """
        engine = self._open_now()
        script = conversations.broken(
            engine, self._key, self._settings, reason=reason, by=by, now=now, incarnation=incarnation
        )
        return _converse(engine, self._settings, script)


class Lease(HeldLease):
    """A time-bounded right to a key. A context manager that releases; its block is not entered if it is lost."""

    def sequencer(self) -> Sequencer:
        """Give key, mode and fencing token, for the resource to check; draws the token when first asked.

        LeaseLost if the lease is not ours any more, StoreRefused if the store has no tokens.
        """
        return self._converse(conversations.sequencer(self))

    def detach(self) -> LeaseTicket:
        """Stop keeping the lease without giving it back, and give the ticket to carry on with.

        The belief of this process ends here; the record lives on for what is left of its ttl.
        """
        self._leave_to_others()
        self._settle()
        return self._converse(conversations.detach(self))

    def share(self) -> LeaseTicket:
        """Give a ticket and go on working: registers this process as a member first, so that a release waits for it.

        LeaseLost if the lease is not ours any more.
        """
        return self._converse(conversations.share(self))

    def release(self, drain: Duration | None = None) -> bool:
        """Give the lease back: True if we removed it. A member only withdraws its registration.

        If a ticket was ever made, waits (at most `drain` seconds) until no member is live, and leaves the lease to
        expire if one still is. Never touches another holder's lease. Raises StoreUnavailable or OutcomeUnknown if
        the store stays silent: the ttl frees the key.
        """
        engine = self._engine
        now = engine.clock.now()
        bound_at = now + conversations.drain_bound(self._kept.terms, drain)
        if not self._may_leave(now):
            return False
        try:
            self._settle()
            return self._converse(conversations.give_back(self, bound_at))
        except BaseException:
            self._release_failed()
            raise
        finally:
            self._gave_back()

    def guard(self) -> Guard:
        """Interrupt the `with` block it opens when the lease is lost; see `runtime.interrupt` for what can be."""
        return Guard(self)

    def _settle(self) -> None:
        self._engine.keeper.settle(self._kept, 2 * self._tenure.settings.request_timeout)

    def _converse(self, script: Script[T]) -> T:
        return _converse(self._engine, self._tenure.settings, script)

    def __enter__(self) -> Self:
        self.check()
        context.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.leave(self)
        _leave(self, error, None)


class Guard:
    """A `with` block that is interrupted when its lease is lost, and then raises LeaseLost."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._interrupter: Interrupter | None = None

    def __enter__(self) -> Lease:
        return self._enter(self)

    def _enter(self, *exits: object) -> Lease:
        if self._interrupter is not None:
            raise TypeError("this guard is entered already: call lease.guard() once for each block")
        lease = self._lease
        lease.check()
        self._interrupter = interrupter()
        self._interrupter.exits.extend((self, *exits))
        try:
            self._interrupter.arm()
            lease._engine.keeper.on_lost(lease._kept, self._interrupter.fire, at_once=True)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        # nothing may stand here: an interrupt from here on belongs to the block
        return lease

    @leaves_quietly
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupter, lease = self._interrupter, self._lease
        if interrupter is None:
            return
        was_fired = interrupter.disarm(error)
        self._interrupter = None
        lease._engine.keeper.not_on_lost(lease._kept, interrupter.fire)
        if was_fired and (error is None or interrupter.threw(error)):
            lost = lease._found_lost()
            raise lost from lost.__cause__


class Hold:
    """What `lock.hold()` gives: a context manager with a lease of its own, and a decorator."""

    def __init__(
        self, lock: Lock, timeout: Duration | None, *, interrupt: bool, drain: Duration | None, reclaim: bool
    ) -> None:
        self._lock = lock
        self._timeout = timeout
        self._interrupt = interrupt
        self._drain = drain
        self._reclaim = reclaim
        self._lease: Lease | None = None
        self._guard: Guard | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise TypeError("this hold is entered already: call lock.hold() once for each block")
        lease = self._lock.acquire(self._timeout, reclaim=self._reclaim)
        try:
            self._lease = lease
            context.enter(lease)
            if self._interrupt:
                self._guard = Guard(lease)
                self._guard._enter(self)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return lease

    @leaves_quietly
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, guard = self._lease, self._guard
        self._lease = self._guard = None
        if lease is None:
            return
        context.leave(lease)
        try:
            if guard is not None:
                guard.__exit__(kind, error, trace)
        except BaseException as raised:
            _leave(lease, raised, self._drain)
            raise
        _leave(lease, error, self._drain)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        import inspect

        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is async: decorate it with AsyncLock(...).hold()")
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: use 'with lock.hold():' inside it")

        @functools.wraps(function)
        def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            again = Hold(self._lock, self._timeout, interrupt=self._interrupt, drain=self._drain, reclaim=self._reclaim)
            with again:
                return function(*args, **kwargs)

        return holding_it


def _leave(lease: Lease, error: BaseException | None, drain: Duration | None) -> None:
    """Give a lease back at the end of its block, and raise LeaseLost if the block returned without holding it."""
    lost = lease._loss_at_exit()
    try:
        lease.release(drain)
    except StoreError as failed:
        lease._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))
    lease._raise_at_exit(lost, error)


def _converse(engine: Engine, settings: Settings, script: Script[T]) -> T:
    return run(script, engine.store, engine.clock, Limits(settings.request_timeout), NO_BELL)
