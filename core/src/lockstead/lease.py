# Generated from aio_lease.py by `make blocking`: edit that file instead.
"""Lease, and acquiring one. The operations themselves are in `operations`.

Imported when a lock is first acquired, not when it is made.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

from lockstead import operations
from lockstead.acquisition import Acquisition
from lockstead.errors import StoreError
from lockstead.events import ReleaseFailed
from lockstead.guard import GuardedLease
from lockstead.protocol.commands import Script
from lockstead.runtime.blocking import ThreadWaker, settle
from lockstead.runtime.drive import run, wait_in_line
from lockstead.runtime.engine import Engine
from lockstead.runtime.give_back import give_back
from lockstead.runtime.held import HeldLease
from lockstead.runtime.inside import is_inside
from lockstead.runtime.interrupt import uninterrupted
from lockstead.runtime.run import Limits
from lockstead.settings import Settings
from lockstead.values import Duration, LeaseTicket, Sequencer, seconds

T = TypeVar("T")
L = TypeVar("L", bound=HeldLease)


def ask(acquisition: Acquisition) -> Lease | None:
    """Run an acquisition; None if the lock is held."""
    return ask_for(acquisition, Lease)


def ask_for(acquisition: Acquisition, kind: type[L]) -> L | None:
    """Run an acquisition of a kind of lease; None if the lock is held."""
    engine = acquisition.engine
    waker = ThreadWaker(engine, acquisition.came_late, acquisition.abandoned)
    try:
        first = acquisition.enter(waker)
        in_time = first or wait_in_line(engine, acquisition.key, waker, acquisition.gives_up_at)
        script = acquisition.script(was_first=first, in_time=in_time)
        outcome = run(script, engine.store, engine.clock, acquisition.limits, waker)
        return acquisition.ended(outcome, kind)
    except BaseException as error:
        acquisition.failed(error)
        raise
    finally:
        waker.is_over = True  # before any call, which an interrupt could end at its first line
        acquisition.leave(waker)


def converse(engine: Engine, settings: Settings, script: Script[T], limits: Limits | None = None) -> T:
    """Run any other operation. limits: of one that waits."""
    limits = limits or Limits(settings.request_timeout)
    return run(script, engine.store, engine.clock, limits, ThreadWaker(engine))


class Lease(GuardedLease):
    """A time-bounded right to a key. A context manager that releases; its block is not entered if it is lost."""

    def sequencer(self) -> Sequencer:
        """Return key, mode and fencing token, for the resource to check; the first call draws the token.

        LeaseLost if the lease has ended, StoreRefused if the store has no tokens.
        """
        return self._converse(operations.sequencer(self))

    def renew(self) -> float:
        """Renew the lease at once and return the seconds until its deadline.

        The keeper renews by itself; call this before code that may block the interpreter or its event loop, or to store
        the progress. LeaseLost if the lease has ended; StoreUnavailable or OutcomeUnknown if the store does not answer:
        the deadline is then unchanged.
        """
        return self._converse(operations.renew_now(self))

    def downgrade(self) -> None:
        """Make this exclusive lease a shared one: readers may join, and no writer gets in between. The token stays.

        ValueError if it is shared already, or if a ticket was ever made: its users count on an exclusive lease.
        LeaseLost if it has ended. StoreUnavailable or OutcomeUnknown if the store does not answer: the lease then
        counts as shared, but readers may have to wait until it is released. It cannot become exclusive again: release
        it, acquire it with mode="exclusive", and read again what you have read.
        """
        self._converse(operations.downgrade(self))

    def detach(self) -> LeaseTicket:
        """Stop renewing the lease without releasing it, and return its ticket, with which another process can join.

        This process no longer holds the lease; the record stays for the rest of its ttl.
        """
        self._leave_to_others()
        settle(self._engine, self._kept)
        return self._converse(operations.detach(self))

    def share(self) -> LeaseTicket:
        """Return a ticket and keep the lease: registers this process as a member, so that a release waits for it.

        LeaseLost if the lease has ended.
        """
        return self._converse(operations.share(self))

    def release(self, drain: Duration | None = None, *, unused: bool = False) -> bool:
        """Release the lease; True if this call removed it. A member only removes its registration.

        If a ticket was ever made, waits (at most `drain` seconds) until no member is live, and leaves the lease to
        expire if one still is. Never touches another holder's lease. Raises StoreUnavailable or OutcomeUnknown if
        the store does not answer: the ttl frees the key. unused: no work was done under it, so the next holder sees the
        same previous lease. In a finalizer or signal handler that runs while this thread is inside the client, a thread
        of the client releases the lease a moment later: False.
        """
        giving_back = operations.give_back(self, self._now(), None if drain is None else seconds(drain, "drain"))
        if is_inside():
            return self._hand_over(giving_back, unused=unused)
        return give_back(self, giving_back, unused=unused)

    def _converse(self, script: Script[T]) -> T:
        return converse(self._engine, self._lease_state.settings, script)

    @uninterrupted
    def __enter__(self) -> Self:
        self.check()
        self._enter_block()
        return self

    @uninterrupted
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error, None)

    def _leave(self, error: BaseException | None, drain: Duration | None) -> None:
        """Release the lease at the end of its block; raise LeaseLost if the block returned without holding it."""
        self._leave_block()
        lost = self._loss_at_exit()
        try:
            self.release(drain)
        except StoreError as failed:
            self._engine.emit(ReleaseFailed(self.key, self.holder, failed, self._lease_state.member))
        self._raise_at_exit(lost, error)
