"""The engine of a client: what its blocking and its async side share (store, keeper, observations, local queue).

It runs no script itself except sweeps in the keeper's threads. There is one engine per opened store and process.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import is_not
from typing import Any, Final

from lockstead.errors import LocksteadError, NotAcquired, StoreRefused, StoreUnavailable
from lockstead.events import Acquired, EngineWarning, HolderChanged, Listener, Waiting, log
from lockstead.listeners import LISTENERS
from lockstead.protocol import keeping
from lockstead.protocol.acquire import AcquireRequest, Contended, Grant
from lockstead.protocol.commands import Traits
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.lifecycle import LeaseState, State
from lockstead.protocol.members import Attached, member_name, nonce_of
from lockstead.protocol.observations import ObservationCache
from lockstead.protocol.record import Record, encode, encoded_unbounded, truncated
from lockstead.protocol.release import UsedLease, sweep, sweep_pauses
from lockstead.renewal import RENEWALS_PER_TTL
from lockstead.runtime import callers, fork
from lockstead.runtime.clock import SYSTEM_CLOCK, Clock
from lockstead.runtime.context import current_task
from lockstead.runtime.drive import run
from lockstead.runtime.inside import holds_no_lock, is_inside
from lockstead.runtime.keeper import Keeper, KeptLease
from lockstead.runtime.leader_view import LeaderView
from lockstead.runtime.local_queue import LocalQueue, ThreadWaker
from lockstead.runtime.run import Limits
from lockstead.runtime.workers import Workers
from lockstead.settings import Settings
from lockstead.stores.port import Store, SupportsFifoQueue
from lockstead.values import SHARED, Name

CALLS_MAX: Final = 32
"""Maximum number of concurrent requests of async callers in threads, to a store without an async side."""

PRUNED_MAX: Final = 200_000
"""Maximum number of records that a client remembers between two calls of `prune`, to see whether they change."""

LEAVE_AGAIN_MAX: Final = 30.0
"""Maximum delay in seconds before a failed removal of a place in a store's queue is retried."""

OWNER_NOTES_MIN: Final = 64
"""Number of keys with an owner note above which the notes of dropped leases are removed."""

LESS: Final = "less than a second"


def fresh_nonce() -> str:
    """Return 16 random hexadecimal digits."""
    return os.urandom(8).hex()


HOST: Final = os.uname().nodename
"""The name of this machine. Read once: reading it takes as long as the rest of an acquisition."""


def default_owner() -> str:
    """Return `host/pid`."""
    return f"{HOST}/{os.getpid()}"


@dataclass(slots=True, eq=False)
class OwnerNote:
    """Which thread or task acquired a lease on a key."""

    key: str
    by: weakref.ref[Any]
    kept: weakref.ref[KeptLease]
    lease_state: LeaseState

    def holds(self, caller: object, now: float) -> bool:
        """Return whether the caller acquired the lease and still holds it: a lost or dropped lease does not count."""
        return self.by() is caller and self.lease_state.believes(now) and self.kept() is not None


def _living(notes: dict[str, list[OwnerNote]]) -> dict[str, list[OwnerNote]]:
    # no loop directly in a `with` statement: a Ctrl-C at its jump back would skip the exit
    living = {key: [one for one in ours if one.kept() is not None] for key, ours in notes.items()}
    return {key: left for key, left in living.items() if left}


class Engine:
    """An opened store and the keeper of all its leases. Closed by `close`, or when it is no longer referenced."""

    def __init__(self, store: Store, emit: Listener | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store = store
        self.traits: Traits = store.traits
        self.clock = clock
        self.observations = ObservationCache()
        self.pruning = ObservationCache(most=PRUNED_MAX)
        self._listener = emit or log
        self._warned: set[str] = set()
        self._reset_state()
        self._finalizer = weakref.finalize(self, _close, self._closing)
        fork.watch(self)

    def _reset_state(self) -> None:
        self.keeper = Keeper(self.store, self.clock, self._listener)
        self.emit = self.keeper.emit
        self.local_queue = LocalQueue()
        self._leader_views: dict[str, LeaderView] = {}
        # holders with an explicit owner, whose lock could be reclaimed before a lease is kept: their acquisition is in
        # progress. Weak: a dropped request is removed
        self.pending_holders: weakref.WeakValueDictionary[str, AcquireRequest] = weakref.WeakValueDictionary()
        self.calls = Workers("lockstead-call", CALLS_MAX)
        self._lock = threading.Lock()
        self._owner_notes: dict[str, list[OwnerNote]] = {}
        self._owner_notes_max = OWNER_NOTES_MIN
        # cache of the fields for the last settings: a lock is often acquired repeatedly
        self._owner = default_owner()
        self._drafted: tuple[Settings, str, dict[str, str]] | None = None
        # what the finalizer closes; it must not refer to the engine, which would then never be collected
        self._closing: dict[str, Any] = getattr(self, "_closing", {})
        self._closing.update(keeper=self.keeper, store=self.store, calls=self.calls)

    # --- conversations -------------------------------------------------------------------------------------------

    def context(self, settings: Settings) -> ProtocolContext:
        """Return the context of scripts for a lock with these settings."""
        return ProtocolContext(self.traits, settings, self.observations)

    def new_request(
        self,
        name: Name,
        settings: Settings,
        *,
        reclaim: bool,
        value: str | None = None,
        is_traced: bool = False,
    ) -> AcquireRequest:
        """Return a request for one lock, with a new holder. value: what a leader advertises.

        is_traced: an acquisition begins with it, whose end is an event.
        """
        owner = settings.owner or self._owner
        if reclaim and settings.mode == SHARED:
            raise ValueError("reclaim takes the lock for one holder, so it cannot be shared; leave out one of the two")
        if reclaim and owner == self._owner:
            raise ValueError("reclaim needs an explicit owner: the name of the earlier process whose lock is taken")
        holder = f"{owner}/{fresh_nonce()}"
        caller = callers.caller()
        fields = {**self._draft(settings, owner), "identity": holder}
        if value is not None:
            fields["value"] = value
        traceparent = LISTENERS.traceparent(name.key, holder, self.store.url) if is_traced and LISTENERS.every else None
        if traceparent is not None:
            fields["traceparent"] = traceparent
        where = callers.where(caller)
        if where is not None:
            fields["where"] = where
        backtrace = callers.backtrace(caller) if settings.backtrace else None
        if backtrace is not None:
            fields["backtrace"] = backtrace
        fields = truncated(fields)
        if settings.mode == SHARED:
            return self._of_reader(AcquireRequest(name, holder, owner, fields), settings)
        return AcquireRequest(name, holder, owner, fields, reclaim=reclaim, keeps=self.keeps)

    def _of_reader(self, request: AcquireRequest, settings: Settings) -> AcquireRequest:
        """Make the request that of a reader: its own record becomes its registration in a group."""
        nonce = nonce_of(request.holder)
        # a late request of a reader that died does no harm, so nobody waits for it
        request.registration = {name: text for name, text in request.fields.items() if name != "lock_delay"}
        request.nonce = nonce
        request.fields = encode(Record(f"{SHARED}/{nonce}", settings.ttl, mode=SHARED))
        return request

    def _draft(self, settings: Settings, owner: str) -> dict[str, str]:
        """Return the fields that all records with these settings have in common."""
        last = self._drafted
        if last is not None and last[0] is settings and last[1] == owner:
            return last[2]
        record = Record(
            holder="",
            ttl=settings.ttl,
            owner=owner,
            purpose=settings.purpose,
            expected=settings.expected,
            alert_at=settings.overdue_after,  # the driver adds the wall clock
            auto_unlock_at=settings.auto_unlock_after,
            lock_delay=settings.lock_delay,
            host=HOST,
            pid=os.getpid(),
            labels=settings.labels,
        )
        fields = encoded_unbounded(record)
        self._drafted = (settings, owner, fields)
        return fields

    def registration_fields(self, holder: str, ttl: float, settings: Settings) -> Mapping[str, str]:
        """Return the record of a member's registration."""
        owner = settings.owner or default_owner()
        where = callers.where(callers.caller())
        return encode(Record(holder, ttl, owner=owner, host=HOST, pid=os.getpid(), where=where, labels=settings.labels))

    def warn_once(self, key: str, settings: Settings) -> None:
        """Emit a warning for settings that work but are not recommended on this store, once per message."""
        recommended = self.traits.ttl_recommended
        if settings.ttl < recommended:
            self.warn(key, f"ttl is {settings.ttl:g} s; at least {recommended:g} s is recommended on this store")
        if settings.renews_late:
            self.warn(key, f"renew_every is {settings.renew_every:g} s, above 1/{RENEWALS_PER_TTL} of the ttl")

    def warn(self, key: str, message: str) -> None:
        """Emit a warning, each message once."""
        if message not in self._warned:
            self._warned.add(message)
            self.emit(EngineWarning(key, message))

    def leader_view(self, key: str) -> LeaderView:
        """Return what this process has seen of a key's leader."""
        return self._leader_views.setdefault(key, LeaderView())

    # --- what follows an acquisition -----------------------------------------------------------------------------

    def granted(self, grant: Grant, request: AcquireRequest, context: ProtocolContext, waited: float) -> KeptLease:
        """Have the keeper renew a granted lease."""
        context = context.for_ttl(grant.lease.ttl)  # a reader's is that of its group
        settings = context.settings
        kept = KeptLease(keeping.granted(grant, request, settings, random.random()), context)
        try:
            self.keeper.keep(kept)
        except StoreUnavailable:
            request.unsettled = True  # its record exists, but cannot be renewed: it is removed
            raise
        if request.may_keep_place:
            self.leave_queue(request.name, request.holder, settings.request_timeout)
        self.emit(Acquired(grant.lease.name.key, kept.lease_state.holder, grant.token, waited))
        return kept

    def attached(self, joined: Attached, settings: Settings) -> KeptLease:
        """Have the keeper renew a membership."""
        kept = KeptLease(keeping.attached(joined, settings, random.random()), self.context(settings))
        self.keeper.keep(kept)
        return kept

    def keeps(self, holder: str) -> bool:
        """Return whether this process keeps a lease of this holder, or is acquiring one."""
        return holder in self.pending_holders or self.keeper.keeps(holder)

    def clean_up_abandoned(
        self, request: AcquireRequest, settings: Settings, error: BaseException | None = None
    ) -> None:
        """Remove what an acquisition that ended without a lease may have written: now, and again later.

        error: the exception that ended it. An exception that is not a LocksteadError may be raised after the grant and
        before any caller has the lease to release it; a reclaim draws a token after the grant.
        """
        if request.has_waited:
            self.leave_queue(request.name, request.holder, settings.request_timeout)
        is_foreign = error is not None and not isinstance(error, LocksteadError)
        if request.unsettled or request.reclaim or request.signs or is_foreign:
            self.sweep(request.name, request.holder, settings)
        if request.group is not None:
            self.sweep(member_name(request.group, request.nonce), request.registered_as, settings)

    def leave_queue(self, name: Name, holder: str, limit: float, delay: float = 0.0) -> None:
        """Remove a holder's place from the store's queue, if the store has one.

        Retried until it succeeds, since the place blocks later waiters. limit is a request's limit, in seconds.
        """
        store = self.store
        if not isinstance(store, SupportsFifoQueue):
            return

        def leave() -> None:
            try:
                store.leave(name, holder, limit)
            except Exception:  # noqa: BLE001 - whatever a store raises, the place may still exist
                if not self.is_closed:
                    self.leave_queue(name, holder, limit, min(LEAVE_AGAIN_MAX, max(1.0, delay * 2)))

        self.keeper.schedule(delay, leave)

    def sweep(self, name: Name, holder: str, settings: Settings, used: UsedLease | None = None) -> None:
        """Sweep the record of a holder whose acquisition is over (remove or end it): now, and again later.

        A request may commit late, so more sweeps follow, each after twice the time. used: its lease, if it was used.
        """
        self._sweep_in_turn(name, holder, settings, used, deque(sweep_pauses(settings.request_timeout)))

    def _sweep_in_turn(
        self, name: Name, holder: str, settings: Settings, used: UsedLease | None, left: deque[float]
    ) -> None:
        def sweep_and_plan() -> None:
            # each sweep schedules the next, so that only one more runs when the client is closed
            if left:
                self._sweep_in_turn(name, holder, settings, used, left)
            self.sweep_once(name, holder, settings, used)

        self.keeper.schedule(left.popleft(), sweep_and_plan)

    def sweep_soon(self, name: Name, holder: str, settings: Settings) -> None:
        """Sweep once, now, for a request that was answered after its acquisition was over."""
        self.keeper.schedule(0.0, partial(self.sweep_once, name, holder, settings))

    def sweep_once(self, name: Name, holder: str, settings: Settings, used: UsedLease | None = None) -> None:
        """Sweep once, in this thread, the record of a holder whose acquisition is over."""
        script = sweep(name, holder, self.context(settings), used)
        run(script, self.store, self.clock, Limits(settings.request_timeout), ThreadWaker())

    # --- bookkeeping ---------------------------------------------------------------------------------------------

    def not_acquired(self, name: Name, contended: Contended, waited: float, *, has_waited: bool) -> NotAcquired:
        """Return the error of an acquisition that ended because of contention. has_waited: it tried more than once."""
        record, key = contended.record, name.key
        after = f"; waited {seconds_text(waited)}" if has_waited else ""
        if record is None and contended.is_queued:
            return NotAcquired(
                f"{key!r} is queued: earlier waiters go first{after}",
                key=key,
                waited=waited,
            )
        if record is None:
            return NotAcquired(f"{key!r} kept changing hands{after}", key=key, waited=waited)
        held_for = self._held_for(record)
        since = "" if held_for is None else f" for {duration_text(held_for)}"
        purpose = f" (purpose: {record.purpose})" if record.purpose else ""
        owner = record.shown_owner or "an unknown holder"
        who = owner if record.is_group else repr(owner)
        writer = f", and {record.wanted_by!r} waits for them" if record.is_group and record.wanted else ""
        return NotAcquired(
            f"{key!r} is held by {who}{since}{purpose}{writer}{after}",
            key=key,
            holder=owner,
            purpose=record.purpose,
            held_for=held_for,
            waited=waited,
        )

    def emit_waiting(self, key: str, holder: str, record: Record, kind: type[Waiting] | type[HolderChanged]) -> None:
        """Emit that an acquisition waits for the holder in a record."""
        held_for, wanted_by = self._held_for(record), record.wanted_by or None
        self.emit(kind(key, holder, record.shown_owner, record.purpose, held_for, wanted_by, record.traceparent))

    def _held_for(self, record: Record) -> float | None:
        return None if record.acquired_at is None else max(0.0, self.clock.wall() - record.acquired_at)

    def note_acquired(self, kept: KeptLease) -> OwnerNote:
        """Note that this thread or task holds the key; return the note for `note_released`."""
        key = kept.lease_state.lease.name.key
        note = OwnerNote(key, weakref.ref(_caller()), weakref.ref(kept), kept.lease_state)
        with self._lock:
            # a dropped lease is never released, so its note is removed here or with the notes of all dropped leases
            others = self._owner_notes.get(key, ())
            self._owner_notes[key] = [note, *(one for one in others if one.lease_state.state is State.HELD)]
            if len(self._owner_notes) > self._owner_notes_max:
                self._owner_notes = _living(self._owner_notes)
                self._owner_notes_max = max(OWNER_NOTES_MIN, 2 * len(self._owner_notes))
        return note

    def note_released(self, note: OwnerNote) -> None:
        """Remove a note of `note_acquired`, and wake the first waiter for the key in this process."""
        key = note.key
        with self._lock:
            left = [*filter(partial(is_not, note), self._owner_notes.get(key, ()))]
            if left:
                self._owner_notes[key] = left
            else:
                self._owner_notes.pop(key, None)
        self.local_queue.wake_first(key)

    def is_held_here(self, key: str) -> bool:
        """Return whether this thread or task holds a lease on the key."""
        notes = self._owner_notes.get(key)
        if not notes:
            return False
        caller, now = _caller(), self.clock.now()
        return any(note.holds(caller, now) for note in notes)

    def refuse_self_wait(self, name: Name) -> None:
        """Raise NotAcquired if this thread or task already holds the key: it would wait for itself."""
        if self.is_held_here(name.key):
            raise NotAcquired(
                f"{name.key!r} is already held by this thread or task (locks are not reentrant); use the lease that it "
                "has, or another key",
                key=name.key,
                holder=default_owner(),
            )

    def refuse_if_closed(self) -> None:
        """Raise StoreRefused after `close`: a wait could never succeed."""
        if self.is_closed:
            raise StoreRefused("the client was closed: open another one")

    @holds_no_lock
    def close(self) -> None:
        """Close the keeper and the store. Leases still held are left to expire; waiters get StoreRefused."""
        if is_inside(1):
            _in_a_thread(self.close)
            return
        self._finalizer()
        self.local_queue.wake_all()

    @property
    def is_closed(self) -> bool:
        """Return whether the engine was closed."""
        return not self._finalizer.alive

    def after_fork(self) -> None:
        """Start with empty state in a forked child: leases and connections belong to the parent."""
        self.keeper.forked()
        self.observations = ObservationCache()
        self._reset_state()
        self.store.after_fork()


def _close(closing: dict[str, Any]) -> None:
    if is_inside(1):
        _in_a_thread(partial(_close, closing))
        return
    closing["keeper"].close()
    closing["calls"].close()
    closing["store"].close()


def _in_a_thread(close: Callable[[], None]) -> None:
    """Close in another thread, since a finalizer or a signal handler may run while this one holds a lock."""
    with suppress(RuntimeError):  # no thread can be started: nothing is closed, and every lease is left to expire
        threading.Thread(target=_apart, args=(close,), name="lockstead-close", daemon=True).start()


@holds_no_lock
def _apart(close: Callable[[], None]) -> None:
    close()


def _caller() -> Any:
    """Return the running task, or else the thread: the object, since an identifier may be reused."""
    task = current_task()
    return threading.current_thread() if task is None else task


def seconds_text(duration: float) -> str:
    """Format a duration in whole seconds: "300 s"."""
    return LESS if duration < 0.95 else f"{duration:.0f} s"


def duration_text(duration: float) -> str:
    """Format a duration for people: "12 minutes"."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if duration >= size:
            count = int(duration // size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return LESS
