"""The keeper: one timing thread for all leases of a client, which performs what `protocol.keeping` decides.

The timing thread never waits for the network: renewals run in worker threads, so a store that hangs cannot delay the
notification of a loss. Callbacks run in separate threads, and actions are performed outside the lock.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import call, ne
from typing import Final, Protocol, TypeAlias, cast

from lockstead.errors import LossReason, OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.events import CallbackFailed, EngineWarning, LeaseDropped, Listener, LockEvent, Lost, RenewalFailed
from lockstead.events import Renewed as RenewedEvent
from lockstead.listeners import LISTENERS
from lockstead.protocol.commands import Script
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.keeping import (
    KeeperAction,
    Keeping,
    NotifyLoss,
    Outcome,
    ReportAbandoned,
    ReportFailed,
    ReportRenewed,
    SendBatch,
    SendNext,
)
from lockstead.protocol.lifecycle import LeaseState, State
from lockstead.protocol.members import Attached, MemberRenewed, renew_member
from lockstead.protocol.record import number
from lockstead.protocol.renew import Over, Renewed, renew
from lockstead.runtime.clock import Clock
from lockstead.runtime.drive import run
from lockstead.runtime.inside import holds_no_lock
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.runtime.run import Limits, run_many
from lockstead.runtime.workers import Workers
from lockstead.stores.port import Store, SupportsBatching

WORKERS_MAX: Final = 32
CALLBACKS_MAX: Final = 128
"""Number of callbacks that may hang before another one has to wait."""

LONGEST_SLEEP: Final = 1.0
"""Maximum sleep of the timing thread, in seconds: a timer does not run while the machine is suspended."""

TASK_RETRY: Final = 1.0
"""Seconds until a task is retried for which no thread could be started."""

NO_THREAD: Final = StoreUnavailable("no thread can be started for the request")

BATCH_MAX: Final = 1000
"""Maximum number of renewals in one request to a store that batches."""

OnLost = Callable[[], None]


class LossInterrupter(Protocol):
    """What interrupts a guarded block. The keeper refers to it weakly."""

    def fire(self, found_in: int | None = None) -> None:
        """Interrupt the block, from any thread, without blocking. found_in: the thread that found the loss."""
        ...


class KeptLease:
    """A lease in the keeper: its state, the progress for the next renewal, its callbacks and guards."""

    __slots__ = ("__weakref__", "callbacks", "context", "found_in", "guards", "lease_state", "progress")

    def __init__(self, lease_state: LeaseState, context: ProtocolContext) -> None:
        self.lease_state = lease_state
        self.context = context
        self.progress: str | None = None
        self.callbacks: list[OnLost] = []
        """The user's callbacks, each called once, in the callback threads."""
        self.guards: list[weakref.ref[LossInterrupter]] = []
        self.found_in: int | None = None
        """The ident of the thread that found the loss; None if the keeper found it."""


class _Held(weakref.ref[KeptLease]):
    """A lease that is renewed for as long as it is referenced."""

    __slots__ = ("lease_state",)

    lease_state: LeaseState


_Lease: TypeAlias = "_Held | KeptLease"


class Keeper:
    """The renewal of a client's leases. Started with the first lease, ended by `close`.

    It refers to leases weakly, so a lease without other references is left to expire, even if an exception prevented
    its release.
    """

    def __init__(self, store: Store, clock: Clock, emit: Listener) -> None:
        self._store = store
        self._clock = clock
        self._emit_to = emit
        self._keeping = Keeping[_Lease](BATCH_MAX if isinstance(store, SupportsBatching) else 1)
        self._tasks: list[tuple[float, int, Callable[[], None]]] = []
        self._tasks_under_way = 0
        self._count = itertools.count()
        self._make_lock()
        self._thread: threading.Thread | None = None
        self._workers = Workers("lockstead-renewal", WORKERS_MAX)
        self._task_threads = Workers("lockstead-task", WORKERS_MAX)
        """Threads for tasks. Separate from the workers: no renewal may wait until the queue places of thousands of
        waiters that gave up at once are removed."""
        self._callback_threads = Workers("lockstead-callback", CALLBACKS_MAX)
        self._give_back_threads = Workers("lockstead-give-back", WORKERS_MAX)
        """Threads for handed-over releases. Separate from the workers: a release may wait long for members."""
        self._handed_over: deque[tuple[Callable[[], None], KeptLease | None]] = deque()
        self._leaving: dict[int, KeptLease] = {}
        """Handed-over releases in progress: they complete even if the client is closed meanwhile."""
        self._dropped: deque[weakref.ref[KeptLease]] = deque()
        """Leases without references, as reported by the garbage collector."""
        self._sleeps_until = float("inf")
        self._closed = False

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        """Protects all state of the keeper. Callers may be interrupted at any line of Python, so it is acquired and
        released in C: a `threading.Condition` does both in Python, and an exception there leaves its lock held."""
        self._changed = ThreadWaker()
        """Wakes the timing thread when something is due before the end of its sleep."""
        self._waiting: list[ThreadWaker] = []
        """Callers that wait for a renewal or a task to end."""

    def __len__(self) -> int:
        return len(self._keeping)

    # --- what the facades call -----------------------------------------------------------------------------------

    def keep(self, kept: KeptLease) -> None:
        """Renew this lease from now on.

        Raises StoreRefused if the client was closed meanwhile, so that the lease is left to expire, and
        StoreUnavailable if no thread can be started to renew it.
        """
        with self._lock:
            if self._closed:
                kept.lease_state.leave()
                kept.lease_state.left()
                raise StoreRefused("the client was closed: open another one")
            try:
                self._start()
            except RuntimeError as error:
                kept.lease_state.leave()
                kept.lease_state.left()
                raise StoreUnavailable(
                    f"no thread can be started to renew the lease, so it is released: {error}"
                ) from error
            self._wake(self._register(kept))

    def _register(self, kept: KeptLease) -> float:
        # C code notes that the last reference was dropped, and no exception can interrupt C code
        held = _Held(kept, self._dropped.append)
        held.lease_state = kept.lease_state
        return self._keeping.keep(held)

    def keeps(self, holder: str) -> bool:
        """Return whether this process keeps a lease of this holder."""
        held = self._keeping.of_holder(holder)
        return held is not None and _referred(held) is not None

    def register(self, kept: KeptLease, joined: Attached) -> None:
        """Note that the owner also became a member: the earlier deadline counts."""
        with self._lock:
            self._keeping.registered(kept.lease_state, joined, self._clock.now())
            self._wake(self._keeping.wake_at())

    def leave(self, kept: KeptLease, now: float) -> bool:
        """End the use and the renewals of a lease; return whether it was held until now (boot clock)."""
        with self._lock:
            was_lost = kept.lease_state.state is State.LOST
            was_held = self._keeping.leave(kept, now)
            if kept.lease_state.state is State.LOST and not was_lost:
                kept.found_in = threading.get_ident()
                self._changed.ring()
        return was_held

    def settle(self, kept: KeptLease, seconds: float) -> None:
        """Wait at most `seconds` for the renewal in flight. Called when no new renewal will be sent."""
        lease_state = kept.lease_state
        if lease_state.in_flight:
            # a renewal that is still queued will not be sent
            self._wait_until(lambda: lease_state.is_queued or not lease_state.in_flight, seconds)

    def left(self, kept: KeptLease) -> None:
        """Note that the release has ended, in whatever way."""
        with self._lock:
            kept.lease_state.left()

    def lose(self, kept: KeptLease, reason: LossReason, detail: str = "") -> None:
        """Note a loss that was found outside the keeper; the timing thread notifies it."""
        if kept.lease_state.is_notified:
            return
        with self._lock:
            if self._keeping.lose(kept, reason, detail):
                kept.found_in = threading.get_ident()
            self._changed.ring()

    def on_lost(self, kept: KeptLease, callback: OnLost) -> None:
        """Call `callback` exactly once when the lease is lost; now if the loss was notified already."""
        with self._lock:
            if not kept.lease_state.is_notified:
                kept.callbacks.append(callback)
                return
        self._run_callback(partial(self._call, kept, callback))

    def guard(self, kept: KeptLease, interrupter: LossInterrupter) -> None:
        """Fire `interrupter` when the lease is lost; now if the loss was notified already."""
        with self._lock:
            if not kept.lease_state.is_notified:
                kept.guards = [*filter(call, kept.guards), weakref.ref(interrupter)]
                return
        interrupter.fire()

    def unguard(self, kept: KeptLease, interrupter: LossInterrupter) -> None:
        """Remove an interrupter that `guard` added."""
        with self._lock:
            kept.guards = [*filter(partial(ne, weakref.ref(interrupter)), kept.guards)]

    def schedule(self, delay: float, work: Callable[[], None]) -> None:
        """Run a bounded task once in a thread of the keeper, after `delay` seconds."""
        with self._lock:
            if self._closed:
                return
            with suppress(RuntimeError):
                self._start()
            if self._thread is not None:
                heapq.heappush(self._tasks, (self._clock.now() + delay, next(self._count), work))
                self._changed.ring()
                return
        # no thread can be started: run the task here if it is due now, otherwise drop it
        if delay == 0:
            with suppress(Exception):
                work()

    def hand_over(self, work: Callable[[], None], kept: KeptLease | None = None) -> None:
        """Have a thread of the keeper run a clean-up. Acquires no lock, since the caller may hold any.

        kept: the lease that the clean-up releases. The only essential step runs in C, and an interrupt after it does no
        harm. If the keeper's thread was not started yet, the clean-up runs with the first lease, or in `close`.
        """
        self._handed_over.append((work, kept))
        self._changed.ring()

    def ensure_started(self) -> None:
        """Start the timing thread, so that clean-ups handed over from now on run soon even if no lease is kept yet."""
        with self._lock, suppress(RuntimeError):  # no thread can be started at the moment
            self._start()

    def _leave_handed_over(self) -> None:
        """Start the clean-ups that were handed over. Called with the lock held."""
        while self._handed_over:
            work, kept = self._handed_over.popleft()
            number = next(self._count)
            if kept is not None:
                if self._keeping.of(kept.lease_state) is not None:
                    self._register(kept)  # the garbage collector cleared the weak reference before the block's exit ran
                self._leaving[number] = kept
            if not self._give_back_threads.submit(partial(self._leave, number, work)):
                self._leaving.pop(number, None)
                self._handed_over.appendleft((work, kept))  # no thread can be started: retried in the next round
                return
            self._tasks_under_way += 1

    def _leave(self, number: int, work: Callable[[], None]) -> None:
        try:
            self._do(work)
        finally:
            self._leaving.pop(number, None)

    @holds_no_lock
    def emit(self, event: LockEvent) -> None:
        """Call the listener; its exceptions are ignored."""
        try:  # noqa: SIM105 - a context manager takes longer than the rest of this method
            self._emit_to(event)
        except Exception:  # noqa: BLE001, S110 - a listener must never harm a lease
            pass
        if LISTENERS.every:
            LISTENERS.notify(event, self._store.url)

    def close(self, patience: float = 1.0) -> None:
        """Stop. Leases still held are left to expire; tasks run now, and are waited for up to `patience` seconds."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._leave_handed_over()
            left = self._leave_all()
            tasks = [work for _at, _number, work in self._tasks]
            self._tasks.clear()
            self._tasks_under_way += len(tasks)
            self._changed.ring()
        for work in tasks:
            if not self._task_threads.submit(partial(self._do, work)):
                self._tasks_under_way -= 1
        self._wait_until(lambda: self._tasks_under_way == 0, patience)
        self._workers.close()
        self._task_threads.close()
        self._give_back_threads.close()
        self._callback_threads.close()
        for one in left:
            self.emit(_abandoned(one.lease_state))

    def _leave_all(self) -> list[_Lease]:
        # no loop directly in a `with` statement: a Ctrl-C at its jump back would skip the exit
        return self._keeping.leave_all({id(kept.lease_state) for kept in list(self._leaving.values())})

    def forked(self) -> None:
        """Mark every copy of the parent's leases as lost, in a forked child, where no other thread exists."""
        # another thread may have held the lock at the fork
        self._make_lock()
        self._closed = True
        for one in self._keeping:
            one.lease_state.lose(LossReason.FORKED)
            self._keeping.may_notify(one.lease_state)

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait at most `seconds` until the condition is true; it is checked when a renewal or task ends."""
        ends_at = time.monotonic() + seconds
        while True:
            waker = ThreadWaker()
            with self._lock:
                if condition():
                    return
                self._waiting.append(waker)
            if not waker.wait(ends_at - time.monotonic()):
                return

    def _wake_waiting(self) -> None:
        """Wake all callers in `_wait_until`. Called with the lock held."""
        waiting, self._waiting = self._waiting, []
        for waker in waiting:
            waker.ring()

    # --- the timing thread ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            # the thread must not keep an unused client alive
            thread = threading.Thread(
                target=_run_rounds,
                args=(weakref.ref(self), self._changed),
                name="lockstead-keeper",
                daemon=True,
            )
            thread.start()
            self._thread = thread

    def _round(self) -> float | None:
        """Do what is due; return the seconds to sleep, None to end. Called only by the timing thread."""
        actions: list[KeeperAction[_Lease]] = []
        sleep: float | None = LONGEST_SLEEP
        try:
            with self._lock:
                sleep = self._decide(actions)
        except Exception as error:  # noqa: BLE001 - if the keeper died, every lease would be lost
            self._recover(error)
        for action in actions:
            # outside the lock: a callback may call the keeper
            try:
                self._carry_out(action)
            except Exception as error:  # noqa: BLE001 - as above
                self._recover(error)
            if isinstance(action, NotifyLoss):
                sleep = sleep and 0.0
        return sleep

    def _decide(self, actions: list[KeeperAction[_Lease]]) -> float | None:
        """Add what is due to the actions; return the seconds to sleep, None to end. Called with the lock held."""
        if self._closed:
            self._keeping.round(float("-inf"), actions)
            return None
        self._leave_handed_over()
        now = self._clock.now()
        while self._dropped:
            dropped = self._dropped.popleft()
            if isinstance(dropped, _Held):
                self._keeping.orphaned(dropped, now)
        self._keeping.round(now, actions)
        while self._tasks and self._tasks[0][0] <= now:
            _at, _number, work = heapq.heappop(self._tasks)
            if self._task_threads.submit(partial(self._do, work)):
                self._tasks_under_way += 1
            else:  # no thread can be started at the moment
                heapq.heappush(self._tasks, (now + TASK_RETRY, next(self._count), work))
        wake_at = min(self._keeping.wake_at(), self._tasks[0][0] if self._tasks else float("inf"))
        self._sleeps_until = min(wake_at, now + LONGEST_SLEEP)
        return max(0.0, self._sleeps_until - now)

    def _carry_out(self, action: KeeperAction[_Lease]) -> None:
        """Perform an action. Called without the lock."""
        match action:
            case SendNext(kept=one):
                if not self._workers.submit(self._renew_next):
                    self._not_sent([one])
            case SendBatch(batch=batch, limit=limit):
                if not self._workers.submit(partial(self._renew_many, batch, limit)):
                    self._not_sent(batch)
            case NotifyLoss(kept=one):
                kept = _referred(one)
                if kept is not None:
                    self._notify_loss(kept, in_callback_thread=True)
            case ReportAbandoned(kept=one):
                self._run_callback(partial(self.emit, _abandoned(one.lease_state)))
            case ReportFailed(kept=one, error=error, left=left):
                own = one.lease_state
                self.emit(RenewalFailed(own.lease.name.key, own.holder, error, left, own.member))
            case ReportRenewed(kept=one, deadline=deadline):
                own = one.lease_state
                self.emit(RenewedEvent(own.lease.name.key, own.holder, deadline, own.member))

    def _not_sent(self, batch: list[_Lease]) -> None:
        for one in batch:
            with self._lock:
                self._keeping.not_sent(one.lease_state, NO_THREAD, self._clock.now())

    def _wake(self, due_at: float) -> None:
        """Wake the timing thread if it would sleep longer than until something is due. Called with the lock held."""
        if due_at < self._sleeps_until:
            self._changed.ring()

    def _recover(self, error: Exception) -> None:
        """Report an exception of a round, and keep every lease."""
        with self._lock:
            self._sleeps_until = float("inf")
            self._keeping.recover()
        message = f"an error in the keeper, which continues: {type(error).__name__}: {error}"
        self._run_callback(partial(self.emit, EngineWarning("", message)))

    # --- in the worker threads -----------------------------------------------------------------------------------

    def _renew_next(self) -> None:
        """Renew the queued lease with least time left."""
        kept: KeptLease | None = None
        with self._lock:
            while kept is None:
                one = self._keeping.take_queued()
                if one is None:
                    return
                kept = self._sent(one)
        fields, progress = self._fields(kept)
        self._renewed(kept, progress, self._ask(kept, fields))

    def _sent(self, one: _Lease) -> KeptLease | None:
        """Note that a renewal is sent now; None if it is no longer needed. Called with the lock held."""
        kept = _referred(one)
        return kept if kept is not None and self._keeping.sending(kept.lease_state, self._clock.now()) else None

    def _renew_many(self, batch: list[_Lease], limit: float) -> None:
        with self._lock:
            sent = [kept for kept in map(self._sent, batch) if kept is not None]
        pending = [self._fields(kept) for kept in sent]
        scripts = [_renewal(kept, fields) for kept, (fields, _progress) in zip(sent, pending, strict=True)]
        for at, outcome in run_many(scripts, cast(SupportsBatching, self._store), self._clock, limit):
            is_ours = isinstance(outcome, Renewed | MemberRenewed | Over | StoreError)
            self._renewed(sent[at], pending[at][1], outcome if is_ours else _failure(outcome))

    def renewal(self, kept: KeptLease) -> Script[Renewed | MemberRenewed | Over]:
        """Return the script of a renewal that the user requests; its outcome is passed to `renewed`.

        It includes the pending progress. If it fails or is abandoned, the next renewal includes the progress; progress
        that the store refuses is dropped.
        """
        fields, progress = self._fields(kept)
        try:
            return (yield from _renewal(kept, fields))
        except StoreRefused:
            raise
        except BaseException:
            with self._lock:
                _restore_progress(kept, progress)
            raise

    def renewed(self, kept: KeptLease, outcome: Renewed | MemberRenewed | Over) -> None:
        """Note the outcome of a renewal that the user requested; a renewal of the keeper may be in flight too."""
        self._renewed(kept, None, outcome, is_ours=False)

    def _renewed(self, kept: KeptLease, progress: str | None, outcome: Outcome, *, is_ours: bool = True) -> None:
        with self._lock:
            # progress that the store refused would be refused again, and would prevent the renewal of the lease
            if isinstance(outcome, StoreError) and not isinstance(outcome, StoreRefused):
                _restore_progress(kept, progress)
            action = self._keeping.answered(kept, outcome, self._clock.now(), is_ours=is_ours)
            self._wake(self._keeping.wake_at())
            self._wake_waiting()
        if isinstance(action, NotifyLoss):
            self._notify_loss(kept)
        elif action is not None:
            self._carry_out(action)

    def _ask(self, kept: KeptLease, fields: dict[str, str]) -> Outcome:
        limits = Limits(kept.lease_state.settings.request_timeout)
        try:
            return run(_renewal(kept, fields), self._store, self._clock, limits, ThreadWaker())
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the keeper survives every error and reports it
            return _failure(error)

    def _fields(self, kept: KeptLease) -> tuple[dict[str, str], str | None]:
        with self._lock:
            progress, kept.progress = kept.progress, None
        if progress is None:
            return {}, None
        fields = {"progress": progress}
        settings = kept.lease_state.settings
        for name, after in (("alert_at", settings.overdue_after), ("auto_unlock_at", settings.auto_unlock_after)):
            if after is not None:
                fields[name] = number(self._clock.wall() + after)
        return fields, progress

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001, S110 - a task tries once; the ttl frees what remains
            pass
        finally:
            with self._lock:
                self._tasks_under_way -= 1
                self._wake_waiting()

    # --- notifying -----------------------------------------------------------------------------------------------

    def _notify_loss(self, kept: KeptLease, *, in_callback_thread: bool = False) -> None:
        """Notify a loss, once. in_callback_thread: call the listener in one, since this thread must not block."""
        with self._lock:
            if not self._keeping.may_notify(kept.lease_state):
                return
            guards, callbacks = kept.guards, kept.callbacks
            kept.guards, kept.callbacks = [], []
        for guard in guards:
            interrupter = guard()
            if interrupter is not None:
                interrupter.fire(kept.found_in)
        del guards
        for callback in callbacks:
            self._run_callback(partial(self._call, kept, callback))
        own = kept.lease_state
        reason = own.reason or LossReason.EXPIRED
        event = Lost(own.lease.name.key, own.holder, reason, own.token, own.detail, own.member)
        if in_callback_thread:
            self._run_callback(partial(self.emit, event))
        else:
            self.emit(event)

    def _run_callback(self, callback: Callable[[], None]) -> None:
        # if no thread can be started, it is called here: a delay is better than no notification
        if not self._callback_threads.submit(callback):
            callback()

    @holds_no_lock
    def _call(self, kept: KeptLease, callback: OnLost) -> None:
        try:
            callback()
        except BaseException as error:  # noqa: BLE001 - a user's callback must not stop the others
            self.emit(CallbackFailed(kept.lease_state.lease.name.key, kept.lease_state.holder, error))


def _renewal(kept: KeptLease, fields: dict[str, str]) -> Script[Renewed | MemberRenewed | Over]:
    lease_state = kept.lease_state
    if lease_state.registration is None:
        return renew(lease_state.lease, fields, kept.context)
    return renew_member(lease_state.lease, lease_state.registration, fields, kept.context, mode=lease_state.mode)


def _restore_progress(kept: KeptLease, progress: str | None) -> None:
    """Keep the progress of a failed renewal, unless there is a newer one. Called with the lock held."""
    if kept.progress is None:
        kept.progress = progress


def _failure(error: Exception) -> OutcomeUnknown:
    failure = OutcomeUnknown(f"the renewal failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _referred(one: _Lease) -> KeptLease | None:
    """Return a lease if it is still referenced."""
    return one() if isinstance(one, _Held) else one


def _abandoned(lease_state: LeaseState) -> LeaseDropped:
    return LeaseDropped(lease_state.lease.name.key, lease_state.holder, lease_state.member)


def _run_rounds(keeper_ref: weakref.ref[Keeper], changed: ThreadWaker) -> None:
    while True:
        keeper = keeper_ref()
        if keeper is None:
            return
        # reset before the round: a later change sets it again
        changed.take()
        sleep = keeper._round()
        del keeper
        if sleep is None:
            return
        if sleep > 0:
            changed.wait(sleep)
