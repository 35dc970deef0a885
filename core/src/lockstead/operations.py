"""What each call of the API asks of a store and what is noted of the answer: once, for both colours.

Every function here gives a script; `lock` runs it blocking, `aio_lock` awaiting. Must not know which of them does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn, TypeVar

from lockstead import registry
from lockstead.errors import LeaseLost, LossReason, NotAcquired, StoreError, StoreRefused, StoreUnavailable
from lockstead.events import Attached, Detached, EngineWarning, Released, ReleaseFailed, Renewed
from lockstead.protocol import release as leaving
from lockstead.protocol.acquire import Contended, Grant, acquire
from lockstead.protocol.commands import List, Read, Script, TokenSource, ask
from lockstead.protocol.context import LeaseId, ProtocolContext
from lockstead.protocol.fence import draw_token, verify
from lockstead.protocol.members import attach, drain, member_name, registered, remove_member
from lockstead.protocol.record import decode, number, progress_text
from lockstead.protocol.release import RecordStatus
from lockstead.protocol.renew import BEING_RELEASED, Over, extensible, over, renew
from lockstead.protocol.retries import with_retries
from lockstead.protocol.waiting import Found, until_free
from lockstead.runtime.engine import Engine, fresh_nonce
from lockstead.runtime.held import HeldLease, lost_by_ticket
from lockstead.runtime.inside import is_inside
from lockstead.runtime.interrupt import uninterrupted
from lockstead.runtime.keeper import KeptLease
from lockstead.runtime.local_queue import Waiter
from lockstead.runtime.run import OVERTIME, STALLED, Limits
from lockstead.settings import Settings
from lockstead.stores.port import ShowsQueue
from lockstead.values import Duration, LeaseTicket, Name, Sequencer, Space, seconds
from lockstead.views import AuditEntry, BreakResult, Contender, LockInfo, audited, breaking, contender, holding, listing

L = TypeVar("L", bound=HeldLease)

PLAIN = Settings()
"""What a conversation is held under that belongs to no lock."""

NOTHING_SEEN: Final = Contended(None)

TRY_MIN: Final = 0.3
"""Seconds that a try has at least, also where opening the store took all of the caller's time."""

SILENCES_TOLD: Final = 3
"""Attempts of one acquisition without an answer of the store until who waits is told; one alone is an accident."""


class Acquisition:
    """One acquisition, from the wish to the lease: its place in line, its script, and what it leaves if it fails.

    limit is the longest wait in seconds, None forever, 0 for one try that stands in no line. is_patient: a try that
    waits for nobody gives the store the time of its requests, and not just the second in which a wait has to end.
    spent: seconds of the wait that are over already, since the store had to be opened.
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
    ) -> None:
        engine.refuse_if_closed()
        self.engine = engine
        self.key = key
        self._settings = settings
        self._contended = NOTHING_SEEN
        self._waits = limit != 0
        self._is_told = self._has_asked = self._is_over = False
        self._silences = 0
        now = engine.clock.now()
        self._started_at = now - spent
        name = Name(key)
        self._context = engine.context(settings)
        self._request = engine.new_request(name, settings, reclaim=reclaim)
        self.gives_up_at = None if limit is None else self._started_at + limit
        ends_at = None if is_patient or limit is None else max(self._started_at + limit, now + TRY_MIN - OVERTIME)
        self.limits = Limits(settings.request_timeout, ends_at, lambda: engine.is_closed)
        if self._waits:
            engine.refuse_self_wait(name)
            self._request.on_wait = self._waiting
        # until it is kept or given up, a sibling of the same owner must not take it for a dead process's
        engine.pending_holders[self._request.holder] = self._request

    def enter(self, waker: Waiter) -> bool:
        """Stand in line; True if it is our turn at once."""
        return not self._waits or self.engine.local_queue.enter(self.key, waker)

    @uninterrupted
    def leave(self, waker: Waiter) -> None:
        """Leave the line."""
        # the wish must not refer to who makes it: the two would keep each other alive, and the engine with them
        self._request.on_wait = None
        if self._waits:
            self._tidy(partial(self.engine.local_queue.leave, self.key, waker))

    def _waiting(self, seen: Contended | StoreError) -> None:
        self.engine.local_queue.note(self.key, seen)
        self.engine.keeper.ensure_started()
        if isinstance(seen, StoreError):
            self._silences += 1
            if self._silences == SILENCES_TOLD:
                # a wrong address is waited out like an outage, and who waits forever would never hear of it
                what = "cannot be reached" if isinstance(seen, StoreUnavailable) else "does not answer"
                self.engine.emit(EngineWarning(self.key, f"the store {what}, and the wait for it goes on: {seen}"))
        elif not self._is_told:
            self._is_told = True
            self.engine.emit_waiting(self.key, self._request.holder, seen)

    def script(self, *, was_first: bool, in_time: bool) -> Script[Grant | Contended]:
        """Ask the store. was_first: nobody of this process waited before us. in_time: our turn came before the end.

        Who ran out of time behind others asks nothing: a moment ago the first in line saw what there is to see, and a
        thousand who run out together would otherwise ask at once. A waiter that a blocked event loop woke late asks
        again after an error, because the first in line may have lost its answer for the same reason. After a stall
        longer than a last try it always asks: the lock may have been released meanwhile.
        """
        now = self.engine.clock.now()
        is_stalled = now >= self.limits.ends()
        if is_stalled:
            self.limits = self.limits.resumed(now)
        seen = None if in_time or is_stalled or self._request.reclaim else self.engine.local_queue.noted(self.key)
        is_late = self.gives_up_at is not None and now > self.gives_up_at + STALLED
        if isinstance(seen, Contended) or (isinstance(seen, StoreError) and not is_late):
            return _seen_by_another(seen)
        self._has_asked = True
        return acquire(
            self._request,
            self._context,
            gives_up_at=self.gives_up_at,
            tries_once=not self._waits or not in_time,
            look_first=not was_first,
        )

    @uninterrupted
    def ended(self, outcome: Grant | Contended, kind: type[L]) -> L | None:
        """Take a grant into the keeper's care; None, and nothing left behind, if others hold the lock."""
        engine = self.engine
        if isinstance(outcome, Contended):
            self._contended = outcome
            self._is_over = True
            engine.pending_holders.pop(self._request.holder, None)
            engine.clean_up_abandoned(self._request, self._settings)
            return None
        if engine.local_queue.is_followed(self.key):
            engine.local_queue.note(self.key, Contended(decode(self._request.name, self._request.fields)))
        waited = max(0.0, engine.clock.now() - self._started_at)
        kept = engine.granted(outcome, self._request, self._context, waited)
        engine.pending_holders.pop(self._request.holder, None)
        return kind(engine, kept, engine.note_acquired(kept))

    @uninterrupted
    def failed(self, error: BaseException) -> None:
        """The acquisition ended without an answer: take back what it may have written, if it came to that."""
        self._is_over = True
        self.engine.pending_holders.pop(self._request.holder, None)
        if self._has_asked:
            self._tidy(partial(self.engine.clean_up_abandoned, self._request, self._settings, error))

    def _tidy(self, work: Callable[[], None]) -> None:
        """Do it; or have it done, where this acquisition is being collected by a thread that may hold any lock."""
        if self._is_over and is_inside():
            self.engine.keeper.hand_over(work)
        else:
            work()

    def came_late(self) -> None:
        """A request of this acquisition has ended that nobody awaits any more: take back at once what it wrote."""
        if self._is_over:
            self.engine.sweep_soon(self._request.name, self._request.holder, self._settings)

    def abandoned(self, waker: Waiter) -> None:
        """Note that the waiter's event loop was closed: what it may have written, and its places in queues, go soon."""

        def end() -> None:
            self.leave(waker)
            self.failed(RuntimeError("the event loop was closed"))

        self.engine.keeper.schedule(0.0, end)

    def not_acquired(self) -> NotAcquired:
        """Return the error of a wait that ended because others hold the lock."""
        waited = self.engine.clock.now() - self._started_at
        return self.engine.not_acquired(Name(self.key), self._contended, waited, has_waited=self._waits)


def _seen_by_another(seen: Contended | StoreError) -> Script[Contended]:
    yield from ()  # a script, though it asks nothing
    if isinstance(seen, StoreError):
        # an error of one's own: a traceback belongs to one caller
        raise type(seen)(str(seen)) from seen
    return seen


# --- a lease that is held -------------------------------------------------------------------------------------------


def sequencer(lease: HeldLease) -> Script[Sequencer]:
    """Return key, mode and token; draw the token when first asked."""
    lease.check()
    engine, lease_state = lease._engine, lease._lease_state
    if lease_state.token is None:
        if engine.traits.tokens is TokenSource.NONE:
            raise StoreRefused(
                f"{engine.traits.scheme} has no fencing tokens, so the data cannot refuse a holder that was paused; "
                "where that matters take a store that has them: etcd:, zk:, postgresql:, redis:, gs: or sqlite:"
            )
        context = lease._kept.context
        # each attempt writes another value: one that changes nothing need not move the number
        token = yield from with_retries(
            lambda: draw_token(lease_state.lease, context, salt=fresh_nonce()),
            lease_state.lease.name,
            context,
            until=lease_state.deadline,
        )
        if token is None:
            yield from _find_loss(lease)
        lease_state.token = token
    if lease_state.token is None or not lease.is_held:
        # a lease that was lost while its token was drawn must not send it to the resource
        raise lease._found_lost()
    return Sequencer(lease.key, lease_state.token)


def _find_loss(lease: HeldLease) -> Script[NoReturn]:
    verdict = yield from renew(lease._lease_state.lease, {}, lease._kept.context)
    if isinstance(verdict, Over):
        lease._engine.keeper.lose(lease._kept, verdict.reason, verdict.detail)
        raise lease._found_lost()
    raise NotAcquired(f"no token could be drawn for {lease.key!r}: its record changes too fast", key=lease.key)


def renew_now(lease: HeldLease) -> Script[float]:
    """Renew a lease at its holder's word; the seconds for which it may be believed from now on."""
    lease.check()
    keeper, kept, lease_state = lease._engine.keeper, lease._kept, lease._lease_state
    outcome = yield from with_retries(
        lambda: keeper.renewal(kept), lease_state.lease.name, kept.context, until=lease_state.notify_at
    )
    keeper.renewed(kept, outcome)
    lease.check()
    return lease.time_left


def share(lease: HeldLease) -> Script[LeaseTicket]:
    """Register this process as a member beside others, and give the ticket."""
    lease.check()
    engine, lease_state = lease._engine, lease._lease_state
    if lease_state.registration is None:
        nonce = fresh_nonce()
        fields = engine.registration_fields(nonce, lease_state.lease.ttl, lease_state.settings)
        # from here on somebody may live under the lease, whatever becomes of this
        lease_state.shared = True
        context = lease._kept.context
        joined = yield from with_retries(
            lambda: attach(lease_state.lease, nonce, fields, context),
            lease_state.lease.name,
            context,
            until=lease_state.deadline,
        )
        if isinstance(joined, Over):
            engine.keeper.lose(lease._kept, joined.reason, joined.detail)
            raise lease._found_lost()
        engine.keeper.register(lease._kept, joined)
        lease.check()
    return lease._ticket()


def detach(lease: HeldLease) -> Script[LeaseTicket]:
    """Withdraw, for a member, once the belief has ended; give the ticket."""
    engine, lease_state = lease._engine, lease._lease_state
    if lease_state.registration is not None:
        try:
            yield from remove_member(lease_state.registration, lease._kept.context)
        except StoreError as error:
            engine.emit(ReleaseFailed(lease.key, lease.holder, error))
    engine.keeper.left(lease._kept)
    lease._ended()
    engine.emit(Detached(lease.key, lease.holder))
    return lease._ticket()


def give_back(lease: HeldLease, bound_at: float) -> Script[bool]:
    """Release what this process has of a lease whose belief has ended; True if we removed it."""
    engine = lease._engine
    outcome = yield from leaving.give_back(lease._lease_state, lease._kept.context, bound_at=bound_at)
    removed = outcome.is_free
    if lease.is_member:
        engine.emit(Detached(lease.key, lease.holder))
    else:
        engine.emit(Released(lease.key, lease.holder, removed, outcome.value))
    return removed


def drain_bound(context: ProtocolContext, drain: Duration | None) -> float:
    """Return how long a release waits for members, seconds."""
    return context.drain_bound() if drain is None else seconds(drain, "drain")


# --- tickets --------------------------------------------------------------------------------------------------------


def attached(engine: Engine, key: str, settings: Settings, ticket: LeaseTicket | str) -> Script[KeptLease]:
    """Become a member of the lease that a ticket names, in the keeper's care. LeaseLost if it is gone."""
    engine.refuse_if_closed()
    said, lease, scaled = _of_ticket(engine, key, settings, ticket)
    nonce = fresh_nonce()
    fields = engine.registration_fields(nonce, said.ttl, scaled)
    context = engine.context(scaled)
    joined = yield from with_retries(lambda: attach(lease, nonce, fields, context), lease.name, context)
    if isinstance(joined, Over):
        raise lost_by_ticket(said, joined, "attach to")
    kept = engine.attached(joined, scaled)
    engine.emit(Attached(key, said.holder))
    return kept


def released(
    engine: Engine, key: str, settings: Settings, ticket: LeaseTicket | str, drain: Duration | None
) -> Script[bool]:
    """Release, as its owner, the lease that a ticket names; True if we removed it."""
    _said, lease, scaled = _of_ticket(engine, key, settings, ticket)
    context = engine.context(scaled)
    bound_at = engine.clock.now() + drain_bound(context, drain)
    outcome = yield from leaving.release(
        lease, context, shared=True, bound_at=bound_at, salt=lease.holder, by_ticket=True
    )
    removed = outcome.is_free
    if outcome is leaving.Outcome.ENDED:
        engine.emit(EngineWarning(key, (yield from _told_of_revocation(lease, context))))
    engine.emit(Released(key, lease.holder, removed, outcome.value))
    engine.local_queue.wake_first(key)
    return removed


def _told_of_revocation(lease: LeaseId, context: ProtocolContext) -> Script[str]:
    """Say that a lease was revoked before it was given back; by whom, as long as its record is there to tell."""
    by = ""
    with suppress(StoreError):
        looked = yield from ask(Read(lease.name))
        seen = over(lease, looked.answer, context)
        if seen is not None and seen.reason is LossReason.REVOKED and seen.detail:
            by = f" ({seen.detail})"
    return f"the lease was revoked before it was released{by}"


def renewed(
    engine: Engine, key: str, settings: Settings, ticket: LeaseTicket | str, progress: str | None
) -> Script[float]:
    """Extend, as its owner, the lease that a ticket names; the seconds for which it may be believed from now on."""
    said, lease, scaled = _of_ticket(engine, key, settings, ticket)
    context = engine.context(scaled)
    return (yield from with_retries(lambda: _renewed_once(engine, said, lease, context, progress), lease.name, context))


def _renewed_once(
    engine: Engine, said: LeaseTicket, lease: LeaseId, context: ProtocolContext, progress: str | None
) -> Script[float]:
    record = yield from extensible(lease, context)
    if isinstance(record, Over):
        raise lost_by_ticket(said, record, "renew")
    fields: dict[str, str] = {}
    if progress is not None:
        fields["progress"] = progress_text(progress)
        if record.expected is not None:
            fields["alert_at"] = number(engine.clock.wall() + record.expected)
    verdict = yield from renew(lease, fields, context)
    if isinstance(verdict, Over):
        raise lost_by_ticket(said, verdict, "renew")
    if verdict.deadline is None:
        raise lost_by_ticket(said, Over(LossReason.GONE, BEING_RELEASED), "renew")
    left = verdict.deadline - engine.clock.now()
    if left <= 0:
        raise lost_by_ticket(said, Over(LossReason.EXPIRED, "the answer came too late"), "renew")
    engine.emit(Renewed(said.key, lease.holder, verdict.deadline))
    return left


def why_over(engine: Engine, key: str, settings: Settings, ticket: LeaseTicket | str) -> Script[LeaseLost]:
    """Return why a lost lease cannot be released by its ticket."""
    said, lease, scaled = _of_ticket(engine, key, settings, ticket)
    looked = yield from ask(Read(lease.name))
    return lost_by_ticket(said, over(lease, looked.answer, engine.context(scaled)) or Over(LossReason.GONE), "release")


def drained(
    engine: Engine,
    key: str,
    settings: Settings,
    ticket: LeaseTicket | str,
    owner_filter: Callable[[str], bool] | None,
    timeout: Duration | None,
) -> tuple[Script[bool], Limits]:
    """Wait until no member, of those chosen by owner, works under a ticket's lease; the limits of that."""
    limits = _patience(engine, settings, timeout)
    _said, lease, scaled = _of_ticket(engine, key, settings, ticket)
    bound_at = math.inf if limits.gives_up_at is None else limits.gives_up_at
    return drain(
        lease, engine.context(scaled), bound_at=bound_at, salt=fresh_nonce(), owner_filter=owner_filter
    ), limits


def _patience(engine: Engine, settings: Settings, timeout: Duration | None) -> Limits:
    """Return the limits of a wait that takes no lock: `timeout` seconds, or forever, or until the client is closed."""
    engine.refuse_if_closed()
    gives_up_at = None if timeout is None else engine.clock.now() + seconds(timeout, "timeout")
    return Limits(settings.request_timeout, gives_up_at, lambda: engine.is_closed)


def members(engine: Engine, key: str, settings: Settings, ticket: LeaseTicket | str) -> Script[list[LockInfo]]:
    """Return who is registered under the lease that a ticket names, the oldest first."""
    _said, lease, scaled = _of_ticket(engine, key, settings, ticket)
    said = yield from registered(lease)
    shown = (listing(name, seen, engine.context(scaled)) for name, seen in said.answer.entries)
    return sorted((one for one in shown if one is not None), key=lambda one: one.acquired_epoch or 0.0)


def withdrawn(
    engine: Engine, key: str, settings: Settings, ticket: LeaseTicket | str, member: LockInfo
) -> Script[bool]:
    """Take back the registration of a member that is vouched to be dead; False if it was gone already."""
    _said, lease, scaled = _of_ticket(engine, key, settings, ticket)
    name = member_name(lease, member.holder)
    return (
        yield from remove_member(LeaseId(name, member.holder, member.incarnation, lease.ttl), engine.context(scaled))
    )


def _of_ticket(
    engine: Engine, key: str, settings: Settings, ticket: LeaseTicket | str
) -> tuple[LeaseTicket, LeaseId, Settings]:
    said = registry.checked_ticket(ticket, key, engine.store.url)
    return said, LeaseId(Name(key), said.holder, said.incarnation, said.ttl), settings.for_ttl(said.ttl)


# --- looking and breaking -------------------------------------------------------------------------------------------


def inspected(engine: Engine, key: str, settings: Settings) -> Script[LockInfo | None]:
    """Return who holds a key."""
    engine.refuse_if_closed()
    context = engine.context(settings)
    status = yield from leaving.read_status(Name(key), context)
    return None if status is None or status.record.ended else holding(key, status, context)


def contenders(engine: Engine, key: str, settings: Settings) -> list[Contender]:
    """Return who waits for a key, in the order of the store's queue; blocks. StoreRefused where a store knows none."""
    engine.refuse_if_closed()
    store = engine.store
    if not isinstance(store, ShowsQueue):
        raise StoreRefused(f"{engine.traits.scheme}: this store has no queue to show; etcd: and zk: have one")
    return [contender(standing) for standing in store.standing(Name(key), settings.request_timeout)]


def freed(engine: Engine, key: str, settings: Settings, timeout: Duration | None) -> tuple[Script[Found], Limits]:
    """Look until a key is free, and never take it; the limits of that. One look has the time of its request."""
    tries_once = timeout is not None and seconds(timeout, "timeout") == 0
    limits = _patience(engine, settings, None if tries_once else timeout)
    context, on_wait = engine.context(settings), partial(_waits_to_see, engine, key)
    script = until_free(Name(key), context, gives_up_at=limits.gives_up_at, tries_once=tries_once, on_wait=on_wait)
    return script, limits


def _waits_to_see(engine: Engine, key: str, seen: RecordStatus) -> None:
    engine.emit_waiting(key, "", Contended(seen.record))


def listed(engine: Engine) -> Script[list[LockInfo]]:
    """Return every key that is held or whose record cannot be read, by name."""
    engine.refuse_if_closed()
    context = engine.context(PLAIN)
    said = yield from ask(List(Space.LOCK))
    shown = (listing(name, seen, context) for name, seen in said.answer.entries)
    return sorted((one for one in shown if one is not None), key=lambda one: one.key)


def history(engine: Engine, key: str | None) -> Script[list[AuditEntry]]:
    """Return the leases of one key, or of all, that were broken, the oldest first."""
    engine.refuse_if_closed()
    said = yield from ask(List(Space.AUDIT, key))
    return sorted((audited(name, seen) for name, seen in said.answer.entries), key=lambda one: one.at_epoch or 0.0)


def verified(engine: Engine, sequencer: Sequencer | str) -> Script[bool]:
    """Return whether a sequencer names the lease that holds its key."""
    engine.refuse_if_closed()
    said = sequencer if isinstance(sequencer, Sequencer) else Sequencer.parse(sequencer)
    return (yield from verify(said, engine.context(PLAIN)))


def broken(
    engine: Engine, key: str, settings: Settings, *, reason: str, by: str | None, now: bool, incarnation: str | None
) -> Script[BreakResult | None]:
    """Revoke or remove the lease on a key, and leave an audit entry; None if there was none.

    One that was revoked before has its entry, unless that answer was lost: then it gets it now.
    """
    engine.refuse_if_closed()
    context = engine.context(settings)
    revoked = registry.revocation(reason, by, settings)
    done = yield from leaving.break_lease(
        Name(key), revoked, context, now=now, incarnation=incarnation, salt=fresh_nonce()
    )
    if done is None:
        return None
    engine.local_queue.wake_first(key)
    report = breaking(key, done, context, engine.clock.wall())
    was_revoked = None if done.revoked or done.removed else done.record.revoked
    part, entry = leaving.audit_entry(done, was_revoked or revoked, engine.clock.wall(), fresh_nonce())
    try:
        if was_revoked is not None:
            told = yield from ask(List(Space.AUDIT, key))
            if any(audited(name, seen).incarnation == done.seen.incarnation for name, seen in told.answer.entries):
                return report
        yield from leaving.audit(Name(key), part, entry)
    except StoreError as error:
        # the lease is broken all the same, and the caller must not take it for unbroken
        engine.emit(EngineWarning(key, f"the lease was broken, but its audit entry may be missing: {error}"))
    return report
