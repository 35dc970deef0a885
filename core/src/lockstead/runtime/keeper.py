"""The keeper: one timing thread for all leases of a client, which carries out what `protocol.keeping` decides.

The timing thread never waits for the network: renewals run in a small crew of workers, so a store that hangs cannot
delay the news of a loss. Callbacks run on a thread of their own, and whatever is decided is done outside the lock.
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
"""Callbacks that may hang before another one has to wait for them."""

LONGEST_SLEEP: Final = 1.0
"""Seconds. A timer stands still in suspend, so the timing thread never trusts it for long."""

TASK_RETRY: Final = 1.0
"""Seconds until a task is tried again for which there was no thread."""

NO_THREAD: Final = StoreUnavailable("there is no thread to ask the store in: the system has none")

BATCH_MAX: Final = 1000
"""Renewals that a store which batches is given at once."""

OnLost = Callable[[], None]


class Fires(Protocol):
    """What interrupts a guarded block. The keeper refers to it weakly."""

    def fire(self, found_in: int | None = None) -> None:
        """Interrupt the block, from any thread; does not block. found_in: the thread that found the loss."""
        ...


class KeptLease:
    """A lease as the keeper sees it: its state, what to store with the next renewal, and whom to tell."""

    __slots__ = ("__weakref__", "callbacks", "context", "found_in", "guards", "lease_state", "progress")

    def __init__(self, lease_state: LeaseState, context: ProtocolContext) -> None:
        self.lease_state = lease_state
        self.context = context
        self.progress: str | None = None
        self.callbacks: list[OnLost] = []
        """User's callbacks: told once, on the telling thread."""
        self.guards: list[weakref.ref[Fires]] = []
        self.found_in: int | None = None


class _Held(weakref.ref[KeptLease]):
    """A lease that is renewed for as long as somebody refers to it."""

    __slots__ = ("lease_state",)

    lease_state: LeaseState


_Lease: TypeAlias = "_Held | KeptLease"


class Keeper:
    """Renews what it is given until it is told to stop. Started with the first lease, ended by `close`.

    It refers to what it keeps weakly. So a lease that nobody has any more is left to expire, also where an exception
    kept it from being given back.
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
        self._callback_threads = Workers("lockstead-callback", CALLBACKS_MAX)
        self._give_back_threads = Workers("lockstead-give-back", WORKERS_MAX)
        """Who gives back what was handed over. Not the crew: a giving back may wait long for the lease's members."""
        self._handed_over: deque[tuple[Callable[[], None], KeptLease | None]] = deque()
        self._leaving: dict[int, KeptLease] = {}
        """What was handed over and is under way: a client that is closed meanwhile gives it back all the same."""
        self._dropped: deque[weakref.ref[KeptLease]] = deque()
        """Leases that nobody refers to any more, as the collector says."""
        self._sleeps_until = float("inf")
        self._closed = False

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        """Of everything here. Callers may be interrupted at any line of Python, so it is entered and left by C alone:
        a `threading.Condition` does both in Python, and an exception within them leaves its lock held forever."""
        self._changed = ThreadWaker()
        """Only the timing thread waits for it: something is due before it would wake up."""
        self._waiting: list[ThreadWaker] = []
        """Callers who wait for a renewal or a task to come back."""

    def __len__(self) -> int:
        return len(self._keeping)

    # --- what the facades call -----------------------------------------------------------------------------------

    def keep(self, kept: KeptLease) -> None:
        """Renew this lease from now on. StoreRefused if the client was closed meanwhile: it is left to expire."""
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
                    f"no thread can be started to renew the lease, so it is given back: {error}"
                ) from error
            self._wake(self._register(kept))

    def _register(self, kept: KeptLease) -> float:
        # the last reference is dropped and noted in C code, which nothing interrupts
        held = _Held(kept, self._dropped.append)
        held.lease_state = kept.lease_state
        return self._keeping.keep(held)

    def keeps(self, holder: str) -> bool:
        """Return whether this very process keeps a lease of this holder."""
        held = self._keeping.of_holder(holder)
        return held is not None and _referred(held) is not None

    def register(self, kept: KeptLease, joined: Attached) -> None:
        """An owner that goes on working beside others became a member too: believe the earlier deadline."""
        with self._lock:
            self._keeping.registered(kept.lease_state, joined, self._clock.now())
            self._wake(self._keeping.wake_at())

    def leave(self, kept: KeptLease, now: float) -> bool:
        """End the belief and the renewing; True if the lease was held until this instant."""
        with self._lock:
            was_lost = kept.lease_state.state is State.LOST
            was_held = self._keeping.leave(kept, now)
            if kept.lease_state.state is State.LOST and not was_lost:
                kept.found_in = threading.get_ident()
                self._changed.ring()
        return was_held

    def settle(self, kept: KeptLease, seconds: float) -> None:
        """Wait for the renewal that is in flight, at most so long. Called once nothing new is sent any more."""
        lease_state = kept.lease_state
        if lease_state.in_flight:
            # what was not sent yet is sent no more
            self._wait_until(lambda: lease_state.is_queued or not lease_state.in_flight, seconds)

    def left(self, kept: KeptLease) -> None:
        """The giving back has ended, however."""
        with self._lock:
            kept.lease_state.left()

    def lose(self, kept: KeptLease, reason: LossReason, detail: str = "") -> None:
        """Note a loss that somebody else found; the timing thread tells it."""
        if kept.lease_state.is_notified:
            return
        with self._lock:
            if self._keeping.lose(kept, reason, detail):
                kept.found_in = threading.get_ident()
            self._changed.ring()

    def on_lost(self, kept: KeptLease, callback: OnLost) -> None:
        """Tell this callback of the loss, exactly once; at once if it is already lost."""
        with self._lock:
            if not kept.lease_state.is_notified:
                kept.callbacks.append(callback)
                return
        self._run_callback(partial(self._call, kept, callback))

    def guard(self, kept: KeptLease, interrupter: Fires) -> None:
        """Fire this once the lease is lost; at once if that was told already."""
        with self._lock:
            if not kept.lease_state.is_notified:
                kept.guards = [*filter(call, kept.guards), weakref.ref(interrupter)]
                return
        interrupter.fire()

    def unguard(self, kept: KeptLease, interrupter: Fires) -> None:
        """Fire this no more."""
        with self._lock:
            kept.guards = [*filter(partial(ne, weakref.ref(interrupter)), kept.guards)]

    def schedule(self, delay: float, work: Callable[[], None]) -> None:
        """Do some bounded piece of work after a while, once, in the crew."""
        with self._lock:
            if self._closed:
                return
            with suppress(RuntimeError):
                self._start()
            if self._thread is not None:
                heapq.heappush(self._tasks, (self._clock.now() + delay, next(self._count), work))
                self._changed.ring()
                return
        # no thread can be started: it is done here and now, or not at all
        if delay == 0:
            with suppress(Exception):
                work()

    def hand_over(self, work: Callable[[], None], kept: KeptLease | None = None) -> None:
        """Have something cleaned up by a thread of the keeper's. Enters no lock: the caller may hold any.

        kept: the lease that is left by it. The one step that counts is made in C, and nothing that an interrupt could
        tear follows it. If no lease was kept yet nor waited for, it is done with the first one, or by `close`.
        """
        self._handed_over.append((work, kept))
        self._changed.ring()

    def ensure_started(self) -> None:
        """See to it that what is handed over from now on is done soon, though no lease is kept yet."""
        with self._lock, suppress(RuntimeError):  # the system has no thread just now
            self._start()

    def _leave_handed_over(self) -> None:
        """Have done what was handed over. Called with the lock held."""
        while self._handed_over:
            work, kept = self._handed_over.popleft()
            number = next(self._count)
            if kept is not None:
                if self._keeping.of(kept.lease_state) is not None:
                    self._register(kept)  # the collector has cleared what referred to it, and then came to the exit
                self._leaving[number] = kept
            if not self._give_back_threads.submit(partial(self._leave, number, work)):
                self._leaving.pop(number, None)
                self._handed_over.appendleft((work, kept))  # the system has no thread just now: the next round tries
                return
            self._tasks_under_way += 1

    def _leave(self, number: int, work: Callable[[], None]) -> None:
        try:
            self._do(work)
        finally:
            self._leaving.pop(number, None)

    @holds_no_lock
    def emit(self, event: LockEvent) -> None:
        """Tell the listener; its failure is its own."""
        try:  # noqa: SIM105 - a context manager takes longer than all the rest of it
            self._emit_to(event)
        except Exception:  # noqa: BLE001, S110 - a listener must never harm a lease
            pass

    def close(self, patience: float = 1.0) -> None:
        """Stop: leases still held are left to expire; tasks are done now, waited for at most `patience` seconds."""
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
            if not self._workers.submit(partial(self._do, work)):
                self._tasks_under_way -= 1
        self._wait_until(lambda: self._tasks_under_way == 0, patience)
        self._workers.close()
        self._give_back_threads.close()
        self._callback_threads.close()
        for one in left:
            self.emit(_abandoned(one.lease_state))

    def _leave_all(self) -> list[_Lease]:
        # no loop of its own stands in a `with` statement: there a Ctrl-C at a jump back would skip the exit
        return self._keeping.leave_all({id(kept.lease_state) for kept in list(self._leaving.values())})

    def forked(self) -> None:
        """Mark, in a child just forked, every copy of the parent's leases as lost. No other thread exists here."""
        # another thread may have held it at the fork
        self._make_lock()
        self._closed = True
        for one in self._keeping:
            one.lease_state.lose(LossReason.FORKED)
            self._keeping.may_notify(one.lease_state)

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until something that came back makes it true, at most so long."""
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
        """Wake all who wait for something to come back. Called with the lock held."""
        waiting, self._waiting = self._waiting, []
        for waker in waiting:
            waker.ring()

    # --- the timing thread ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            # the thread must not keep a client alive that nobody uses any more
            thread = threading.Thread(
                target=_run_rounds,
                args=(weakref.ref(self), self._changed),
                name="lockstead-keeper",
                daemon=True,
            )
            thread.start()
            self._thread = thread

    def _round(self) -> float | None:
        """Do what is due; return the seconds to sleep, None to end. Only the timing thread calls it."""
        actions: list[KeeperAction[_Lease]] = []
        sleep: float | None = LONGEST_SLEEP
        try:
            with self._lock:
                sleep = self._decide(actions)
        except Exception as error:  # noqa: BLE001 - a keeper that dies takes every lease with it
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
            if self._workers.submit(partial(self._do, work)):
                self._tasks_under_way += 1
            else:  # the system has no thread just now
                heapq.heappush(self._tasks, (now + TASK_RETRY, next(self._count), work))
        wake_at = min(self._keeping.wake_at(), self._tasks[0][0] if self._tasks else float("inf"))
        self._sleeps_until = min(wake_at, now + LONGEST_SLEEP)
        return max(0.0, self._sleeps_until - now)

    def _carry_out(self, action: KeeperAction[_Lease]) -> None:
        """Do what was decided. Called without the lock."""
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
                self.emit(RenewalFailed(one.lease_state.lease.name.key, one.lease_state.lease.holder, error, left))
            case ReportRenewed(kept=one, deadline=deadline):
                self.emit(RenewedEvent(one.lease_state.lease.name.key, one.lease_state.lease.holder, deadline))

    def _not_sent(self, batch: list[_Lease]) -> None:
        for one in batch:
            with self._lock:
                self._keeping.not_sent(one.lease_state, NO_THREAD, self._clock.now())

    def _wake(self, due_at: float) -> None:
        """Wake the timing thread if it would sleep longer than until something is due. Called with the lock held."""
        if due_at < self._sleeps_until:
            self._changed.ring()

    def _recover(self, error: Exception) -> None:
        """After a fault of our own in a round: report it, and forget no lease over it."""
        with self._lock:
            self._sleeps_until = float("inf")
            self._keeping.recover()
        self._run_callback(
            partial(self.emit, EngineWarning("", f"a round of the keeper failed: {type(error).__name__}: {error}"))
        )

    # --- in the crew ---------------------------------------------------------------------------------------------

    def _renew_next(self) -> None:
        """Renew the lease that has least time left, of those that are due and were not sent yet."""
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
        """Note that a renewal goes out now, if it still has to. Called with the lock held."""
        kept = _referred(one)
        return kept if kept is not None and self._keeping.sending(kept.lease_state, self._clock.now()) else None

    def _renew_many(self, batch: list[_Lease], limit: float) -> None:
        with self._lock:
            sent = [kept for kept in map(self._sent, batch) if kept is not None]
        told = [self._fields(kept) for kept in sent]
        scripts = [_renewal(kept, fields) for kept, (fields, _progress) in zip(sent, told, strict=True)]
        for at, outcome in run_many(scripts, cast(SupportsBatching, self._store), self._clock, limit):
            is_ours = isinstance(outcome, Renewed | MemberRenewed | Over | StoreError)
            self._renewed(sent[at], told[at][1], outcome if is_ours else _failure(outcome))

    def renewal(self, kept: KeptLease) -> Script[Renewed | MemberRenewed | Over]:
        """Return the script of a renewal that somebody asks for himself; `renewed` takes up what came of it.

        It brings the progress that is pending. If it fails or is given up, the next renewal brings that; if the store
        refuses it, nobody does.
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
        """Take up a renewal that somebody asked for himself, beside one of our own that may be under way."""
        self._renewed(kept, None, outcome, is_ours=False)

    def _renewed(self, kept: KeptLease, progress: str | None, outcome: Outcome, *, is_ours: bool = True) -> None:
        with self._lock:
            # what the store refuses once it would refuse again, and a lease is worth more than a word about it
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
        except Exception as error:  # noqa: BLE001 - the keeper outlives everything and reports it
            return _failure(error)

    def _fields(self, kept: KeptLease) -> tuple[dict[str, str], str | None]:
        with self._lock:
            progress, kept.progress = kept.progress, None
        if progress is None:
            return {}, None
        fields = {"progress": progress}
        settings = kept.lease_state.settings
        alert_after = settings.alert_after if settings.alert_after is not None else settings.expected
        if alert_after is not None:
            fields["alert_at"] = number(self._clock.wall() + alert_after)
        return fields, progress

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001, S110 - a task tries once; what it leaves, the ttl frees
            pass
        finally:
            with self._lock:
                self._tasks_under_way -= 1
                self._wake_waiting()

    # --- telling -------------------------------------------------------------------------------------------------

    def _notify_loss(self, kept: KeptLease, *, in_callback_thread: bool = False) -> None:
        """Notify a loss, once. in_callback_thread: call the listener there too, since this thread must not block."""
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
        lease_state = kept.lease_state
        reason = lease_state.reason or LossReason.EXPIRED
        event = Lost(
            lease_state.lease.name.key, lease_state.lease.holder, reason, lease_state.token, lease_state.detail
        )
        if in_callback_thread:
            self._run_callback(partial(self.emit, event))
        else:
            self.emit(event)

    def _run_callback(self, telling: Callable[[], None]) -> None:
        # where no thread can be had any more, being late is better than being silent
        if not self._callback_threads.submit(telling):
            telling()

    @holds_no_lock
    def _call(self, kept: KeptLease, callback: OnLost) -> None:
        try:
            callback()
        except BaseException as error:  # noqa: BLE001 - a user's callback must not stop the others
            self.emit(CallbackFailed(kept.lease_state.lease.name.key, kept.lease_state.lease.holder, error))


def _renewal(kept: KeptLease, fields: dict[str, str]) -> Script[Renewed | MemberRenewed | Over]:
    lease_state = kept.lease_state
    if lease_state.registration is None:
        return renew(lease_state.lease, fields, kept.context)
    return renew_member(lease_state.lease, lease_state.registration, fields, kept.context)


def _restore_progress(kept: KeptLease, progress: str | None) -> None:
    """Keep the progress that a failed renewal did not bring, unless there is a newer one. Called with the lock held."""
    if kept.progress is None:
        kept.progress = progress


def _failure(error: Exception) -> OutcomeUnknown:
    failure = OutcomeUnknown(f"the renewal failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _referred(one: _Lease) -> KeptLease | None:
    """Return a lease if anything refers to it yet."""
    return one() if isinstance(one, _Held) else one


def _abandoned(lease_state: LeaseState) -> LeaseDropped:
    return LeaseDropped(lease_state.lease.name.key, lease_state.lease.holder)


def _run_rounds(keeper_ref: weakref.ref[Keeper], changed: ThreadWaker) -> None:
    while True:
        keeper = keeper_ref()
        if keeper is None:
            return
        # silenced before the look: what changes after it rings again
        changed.take()
        sleep = keeper._round()
        del keeper
        if sleep is None:
            return
        if sleep > 0:
            changed.wait(sleep)
