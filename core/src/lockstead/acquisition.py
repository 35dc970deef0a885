"""One acquisition of a lock, from the request to the lease, for blocking and awaiting callers alike.

Must not know which of them runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final, TypeVar

from lockstead.errors import NotAcquired, StoreError, StoreUnavailable
from lockstead.events import EngineWarning, HolderChanged, NotGranted, NotGrantedResult, Waiting
from lockstead.protocol.acquire import Contended, Grant, acquire
from lockstead.protocol.commands import Script
from lockstead.protocol.readers import attempt_shared
from lockstead.protocol.record import decode
from lockstead.runtime.engine import Engine
from lockstead.runtime.held import HeldLease
from lockstead.runtime.inside import is_inside
from lockstead.runtime.interrupt import uninterrupted
from lockstead.runtime.local_queue import Waiter
from lockstead.runtime.observed import result_of
from lockstead.runtime.run import OVERTIME, STALLED, Limits
from lockstead.settings import Settings
from lockstead.values import SHARED, Name

L = TypeVar("L", bound=HeldLease)

NOTHING_SEEN: Final = Contended(None)

TRY_MIN: Final = 0.3
"""Minimum seconds for an attempt, even if opening the store took all of the caller's time."""

FAILURES_UNTIL_WARNING: Final = 3
"""Number of attempts of one acquisition without a reply of the store until a warning; a single one may be an
accident."""


class Acquisition:
    """One acquisition: its place in the local queue, its script, and its clean-up if it fails.

    limit is the maximum wait in seconds; None: indefinitely; 0: one attempt, without queueing. is_patient: a single
    attempt has the time of its requests, and not only the second in which a wait must end. spent: seconds of the wait
    that have passed already, since the store had to be opened. value: what a leader advertises. refuse_if_closed:
    raises an error if the wait can never succeed; by default, if the client was closed.
    """

    def __init__(
        self,
        engine: Engine,
        key: str,
        settings: Settings,
        limit: float | None,
        *,
        reclaim: bool,
        is_patient: bool = False,
        spent: float = 0.0,
        value: str | None = None,
        refuse_if_closed: Callable[[], None] | None = None,
    ) -> None:
        self.engine = engine
        self.key = key
        self._settings = settings
        self._contended = NOTHING_SEEN
        self._waits = limit != 0
        self._has_asked = self._is_over = self._is_reported = False
        self._told_of: str | None = None
        self._failures = 0
        now = engine.clock.now()
        self._started_at = now - spent
        name = Name(key)
        if self._waits:
            self._check_wait(name)
        self._is_shared = settings.mode == SHARED
        # a lock-delay protects what a writer may have left half done
        self._context = engine.context(replace(settings, lock_delay=0.0) if self._is_shared else settings)
        self._request = engine.new_request(name, settings, reclaim=reclaim, value=value, is_traced=True)
        self.gives_up_at = inf if limit is None else self._started_at + limit
        ends_at = inf if is_patient or limit is None else max(self._started_at + limit, now + TRY_MIN - OVERTIME)
        self.limits = Limits(settings.request_timeout, ends_at, refuse_if_closed or engine.refuse_if_closed)
        if self._waits:
            self._request.on_wait = self._waiting
        if settings.owner is not None:
            # until it is kept or abandoned, a reclaim by the same owner must not take it for a dead process's
            engine.pending_holders[self._request.holder] = self._request

    def _check_wait(self, name: Name) -> None:
        self.engine.refuse_self_wait(name)

    def enter(self, waker: Waiter) -> bool:
        """Enter the local queue; True if it is our turn at once."""
        return not self._waits or self.engine.local_queue.enter(self.key, waker)

    @uninterrupted
    def leave(self, waker: Waiter) -> None:
        """Leave the local queue."""
        self._forget_callbacks()
        if self._waits:
            self._tidy(partial(self.engine.local_queue.leave, self.key, waker))

    def _forget_callbacks(self) -> None:
        # a reference cycle would keep this acquisition alive, and the engine with it
        self._request.on_wait = None

    def _waiting(self, seen: Contended | StoreError) -> None:
        self.engine.local_queue.note(self.key, seen)
        self.engine.keeper.ensure_started()
        if isinstance(seen, StoreError):
            self._failures += 1
            if self._failures == FAILURES_UNTIL_WARNING:
                # a wrong address looks like an outage, and a caller that waits indefinitely would never learn of it
                what = "cannot be reached" if isinstance(seen, StoreUnavailable) else "does not answer"
                self.engine.emit(EngineWarning(self.key, f"the store {what}; still waiting: {seen}"))
        elif seen.record is not None and seen.record.holder != self._told_of:
            kind = Waiting if self._told_of is None else HolderChanged
            self._told_of = seen.record.holder
            self.engine.emit_waiting(self.key, self._request.holder, seen.record, kind)

    def script(self, *, was_first: bool, in_time: bool) -> Script[Grant | Contended]:
        """Return the script of the attempt. was_first: no waiter of this process was before us. in_time: our turn came
        before the end of the wait.

        A waiter whose time ran out behind others sends no request: the first in the queue has just seen the record, and
        a thousand waiters that time out together would otherwise all ask at once. A waiter that a blocked event loop
        woke late asks again after an error, because the first may have lost its reply for the same reason. After a
        stall longer than a last attempt it always asks: the lock may have been released meanwhile.
        """
        self.engine.refuse_if_closed()
        now = self.engine.clock.now()
        is_stalled = now >= self.limits.ends()
        if is_stalled:
            self.limits = self.limits.resumed(now)
        seen = None if in_time or is_stalled or self._request.reclaim else self.engine.local_queue.noted(self.key)
        is_late = now > self.gives_up_at + STALLED
        if isinstance(seen, Contended) or (isinstance(seen, StoreError) and not is_late):
            return _seen_by_another(seen)
        self._has_asked = True
        return self._acquiring(tries_once=not self._waits or not in_time, look_first=not was_first)

    def _acquiring(self, *, tries_once: bool, look_first: bool) -> Script[Grant | Contended]:
        return acquire(
            self._request,
            self._context,
            attempt=attempt_shared if self._is_shared else None,
            gives_up_at=self.gives_up_at,
            tries_once=tries_once,
            look_first=look_first,
        )

    @uninterrupted
    def ended(self, outcome: Grant | Contended, kind: type[L]) -> L | None:
        """Hand a grant to the keeper and return the lease; None, with nothing left behind, if the lock is held."""
        engine = self.engine
        if isinstance(outcome, Contended):
            self._contended = outcome
            self._is_over = True
            self._not_pending()
            self._clean_up()
            self._report("timeout" if self._waits else "held", None)
            return None
        self._note_grant()
        waited = max(0.0, engine.clock.now() - self._started_at)
        kept = engine.granted(outcome, self._request, self._context, waited)
        self._is_reported = True
        self._not_pending()
        return kind(engine, kept, engine.note_acquired(kept))

    def _note_grant(self) -> None:
        """Note the new holder for the waiters of this process, whose time may run out before their turn comes."""
        if self.engine.local_queue.is_followed(self.key):
            self.engine.local_queue.note(self.key, Contended(decode(self._request.name, self._request.fields)))

    def _clean_up(self, error: BaseException | None = None) -> None:
        self.engine.clean_up_abandoned(self._request, self._settings, error)

    @uninterrupted
    def failed(self, error: BaseException) -> None:
        """Clean up after an acquisition that ended with an error: remove what it may have written."""
        self._is_over = True
        self._not_pending()
        if self._has_asked:
            self._tidy(partial(self._clean_up, error))
        result: NotGrantedResult = "refused" if isinstance(error, NotAcquired) else result_of(error)
        self._tidy(partial(self._report, result, error))

    def _report(self, result: NotGrantedResult, error: BaseException | None) -> None:
        """Emit, once, that this ended without a lease."""
        if not self._is_reported:
            self._is_reported = True
            waited = max(0.0, self.engine.clock.now() - self._started_at)
            self.engine.emit(NotGranted(self.key, self._request.holder, result, waited, error))

    def _not_pending(self) -> None:
        if self._settings.owner is not None:
            self.engine.pending_holders.pop(self._request.holder, None)

    def _tidy(self, work: Callable[[], None]) -> None:
        """Do the work, or let the keeper do it if the garbage collector runs this in a thread that may hold a lock."""
        if self._is_over and is_inside():
            self.engine.keeper.hand_over(work)
        else:
            work()

    def came_late(self) -> None:
        """Clean up after a request of this acquisition that no caller awaits any more has ended."""
        if self._is_over:
            self.engine.sweep_soon(self._request.name, self._request.holder, self._settings)

    def abandoned(self, waker: Waiter) -> None:
        """Clean up soon, since the waiter's event loop was closed: its record, and its places in the queues."""

        def end() -> None:
            self.leave(waker)
            self.failed(RuntimeError("the event loop was closed"))

        self.engine.keeper.schedule(0.0, end)

    def not_acquired(self) -> NotAcquired:
        """Return the error of a wait that ended because others hold the lock."""
        waited = self.engine.clock.now() - self._started_at
        return self.engine.not_acquired(Name(self.key), self._contended, waited, has_waited=self._waits)


def _seen_by_another(seen: Contended | StoreError) -> Script[Contended]:
    yield from ()  # a script without requests
    if isinstance(seen, StoreError):
        # a new instance: a traceback belongs to one caller
        raise type(seen)(str(seen)) from seen
    return seen
