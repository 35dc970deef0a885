"""What holding looks like, blocking: Lease, its Guard, and the Hold of a block or a function.

Runs `operations` and hands what they decide to the engine. Imported when a lock is first asked for, not when it is
named: see `lock`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from lockstead import operations
from lockstead.errors import StoreError
from lockstead.events import ReleaseFailed
from lockstead.protocol.commands import Script
from lockstead.runtime import context
from lockstead.runtime.engine import Engine, wait_in_line
from lockstead.runtime.held import HeldLease
from lockstead.runtime.inside import is_inside
from lockstead.runtime.interrupt import Interrupter, never_in
from lockstead.runtime.local_queue import NULL_WAKER, ThreadWaker
from lockstead.runtime.run import Limits, run
from lockstead.settings import Settings
from lockstead.values import Duration, LeaseTicket, Sequencer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def ask(acquisition: operations.Acquisition) -> Lease | None:
    """Carry an acquisition out, blocking; None if others hold the lock."""
    engine, bell = acquisition.engine, ThreadWaker()
    try:
        first = acquisition.enter(bell)
        in_time = first or wait_in_line(engine, acquisition.key, bell, acquisition.gives_up_at)
        script = acquisition.script(was_first=first, in_time=in_time)
        outcome = run(script, engine.store, engine.clock, acquisition.limits, bell)
        return acquisition.ended(outcome, Lease)
    except BaseException as error:
        acquisition.failed(error)
        raise
    finally:
        bell.is_over = True  # before any call, which an interrupt could end at its first line
        acquisition.leave(bell)


def converse(engine: Engine, settings: Settings, script: Script[T], limits: Limits | None = None) -> T:
    """Carry any other conversation out, blocking; one that waits brings its limits."""
    return run(script, engine.store, engine.clock, limits or Limits(settings.request_timeout), NULL_WAKER)


class Lease(HeldLease):
    """A time-bounded right to a key. A context manager that releases; its block is not entered if it is lost."""

    def sequencer(self) -> Sequencer:
        """Return key, mode and fencing token, for the resource to check; draws the token when first asked.

        LeaseLost if the lease is not ours any more, StoreRefused if the store has no tokens.
        """
        return self._converse(operations.sequencer(self))

    def renew(self) -> float:
        """Renew the lease at once, before what may block the whole interpreter; the seconds that are left then.

        The keeper renews by itself; this begins a whole ttl anew, and brings the progress. LeaseLost if the lease is
        not ours any more; StoreUnavailable or OutcomeUnknown if the store stays silent: the lease is then held as long
        as it was.
        """
        return self._converse(operations.renew_now(self))

    def detach(self) -> LeaseTicket:
        """Stop keeping the lease without giving it back, and give the ticket to carry on with.

        The belief of this process ends here; the record lives on for what is left of its ttl.
        """
        self._leave_to_others()
        self._settle()
        return self._converse(operations.detach(self))

    def share(self) -> LeaseTicket:
        """Return a ticket and go on working: registers this process as a member first, so that a release waits for it.

        LeaseLost if the lease is not ours any more.
        """
        return self._converse(operations.share(self))

    def release(self, drain: Duration | None = None, *, unused: bool = False) -> bool:
        """Release the lease: True if we removed it. A member only withdraws its registration.

        If a ticket was ever made, waits (at most `drain` seconds) until no member is live, and leaves the lease to
        expire if one still is. Never touches another holder's lease. Raises StoreUnavailable or OutcomeUnknown if
        the store stays silent: the ttl frees the key. unused: nobody has worked under it, so the next holder is told of
        the same predecessor. From a finalizer or a signal handler that comes while this thread is inside the client,
        the lease is given back a moment later, by a thread of the client's: False.
        """
        bound_at = self._now() + operations.drain_bound(self._kept.terms, drain)
        giving_back = operations.give_back(self, bound_at)
        return (
            self._hand_over(giving_back, unused=unused) if is_inside() else self._give_back(giving_back, unused=unused)
        )

    def guard(self, *, mutex: AbstractContextManager[object] | None = None) -> Guard:
        """Interrupt the `with` block it opens when the lease is lost; see `runtime.interrupt` for what can be.

        mutex: held from before the interrupt until it is heard, so that it never comes within what holds the same
        mutex, as an exchange on a channel that must not be torn in two. ValueError outside the main thread.
        """
        return Guard(self, mutex)

    def _settle(self) -> None:
        self._engine.keeper.settle(self._kept, 2 * self._tenure.settings.request_timeout)

    def _converse(self, script: Script[T]) -> T:
        return converse(self._engine, self._tenure.settings, script)

    @never_in
    def __enter__(self) -> Self:
        self.check()
        context.enter(self)
        return self

    @never_in
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self, error, None)


class Guard:
    """A `with` block that is interrupted when its lease is lost, and then raises LeaseLost."""

    def __init__(self, lease: Lease, mutex: AbstractContextManager[object] | None = None) -> None:
        self._lease = lease
        self._mutex = mutex
        self._interrupter: Interrupter | None = None

    @never_in
    def __enter__(self) -> Lease:
        if self._interrupter is not None:
            raise TypeError("this guard is entered already: call lease.guard() once for each block")
        lease = self._lease
        lease.check()
        self._interrupter = Interrupter(self._mutex)
        try:
            self._interrupter.arm()
            lease._engine.keeper.guard(lease._kept, self._interrupter)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return lease

    @never_in
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupter, lease = self._interrupter, self._lease
        if interrupter is None:
            return
        inside = is_inside()
        was_fired = interrupter.drop() if inside else interrupter.disarm()
        self._interrupter = None
        if not inside:
            lease._engine.keeper.unguard(lease._kept, interrupter)
        is_lost = was_fired or lease.lost_reason is not None
        if is_lost and (error is None or interrupter.threw(error)):
            lost = lease._found_lost()
            raise lost from lost.__cause__
        if error is None and not inside:
            interrupter.raise_what_waited()


class Hold:
    """What `lock.hold()` gives: a context manager with a lease of its own, and a decorator."""

    def __init__(self, acquire: Callable[[], Lease], *, interrupt: bool, drain: Duration | None) -> None:
        self._acquire = acquire
        self._interrupt = interrupt
        self._drain = drain
        self._lease: Lease | None = None
        self._guard: Guard | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise TypeError("this hold is entered already: call lock.hold() once for each block")
        self._lease = self._acquire()
        return self._begin(self._lease)

    @never_in
    def _begin(self, lease: Lease) -> Lease:
        try:
            context.enter(lease)
            if self._interrupt:
                guard = self._guard = lease.guard()
                guard.__enter__()
        except BaseException as error:
            # the block never began
            lease._tenure.unused = True
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return lease

    @never_in
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, guard = self._lease, self._guard
        self._lease = self._guard = None
        if lease is None:
            return
        try:
            if guard is not None:
                guard.__exit__(kind, error, trace)
        except BaseException as raised:
            leave(lease, raised, self._drain)
            raise
        leave(lease, error, self._drain)

    async def __aenter__(self) -> object:
        raise TypeError("a Lock is not awaited: use 'with lock.hold():', or in a coroutine AsyncLock(...).hold()")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is async: decorate it with AsyncLock(...).hold()")
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: use 'with lock.hold():' inside it")

        @functools.wraps(function)
        def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            with Hold(self._acquire, interrupt=self._interrupt, drain=self._drain):
                return function(*args, **kwargs)

        return holding_it


def leave(lease: Lease, error: BaseException | None, drain: Duration | None) -> None:
    """Release a lease at the end of its block, and raise LeaseLost if the block returned without holding it."""
    context.leave(lease)
    lost = lease._loss_at_exit()
    try:
        lease.release(drain)
    except StoreError as failed:
        lease._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))
    lease._raise_at_exit(lost, error)
