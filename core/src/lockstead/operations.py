"""The operations of the API other than acquiring, for blocking and awaiting callers alike.

Most return a script, which `lock` runs blocking and `aio_lock` awaiting. Must not know which of them does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NoReturn

from lockstead import registry
from lockstead.errors import LeaseLost, LossReason, NotAcquired, StoreError, StoreRefused
from lockstead.events import Attached, Detached, EngineWarning, Released, ReleaseFailed, Renewed, Waiting
from lockstead.protocol import election
from lockstead.protocol import release as leaving
from lockstead.protocol.commands import Cursors, List, Listing, Read, Script, Snapshot, TokenSource, ask
from lockstead.protocol.context import LeaseId, ProtocolContext
from lockstead.protocol.fence import draw_token, verify
from lockstead.protocol.members import (
    DOWNGRADED,
    Introduction,
    MemberRenewed,
    attach,
    drain,
    member_name,
    nonce_of,
    registered,
    renew_member,
    take_back,
)
from lockstead.protocol.members import Attached as Joined
from lockstead.protocol.record import Record, number, progress_text
from lockstead.protocol.renew import BEING_RELEASED, Over, extensible, over, renew
from lockstead.protocol.renew import Renewed as Renewal
from lockstead.protocol.retries import with_retries
from lockstead.protocol.waiting import Found, until_free
from lockstead.runtime.engine import Engine, fresh_nonce
from lockstead.runtime.held import HeldLease, lost_by_ticket
from lockstead.runtime.keeper import KeptLease
from lockstead.runtime.run import Limits
from lockstead.settings import Settings
from lockstead.stores.port import ShowsQueue
from lockstead.values import EXCLUSIVE, SHARED, Duration, LeaseTicket, Name, Sequencer, Space, seconds
from lockstead.views import AuditEntry, BreakResult, Contender, LockInfo, audited, breaking, contender, holding, listing

PLAIN = Settings()
"""The settings of operations that belong to no lock."""

# --- a lease that is held -------------------------------------------------------------------------------------------


def sequencer(lease: HeldLease) -> Script[Sequencer]:
    """Return key, mode and token; the first call draws the token."""
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
    return Sequencer.of(lease_state.lease.name, lease_state.token, lease_state.mode)


def _find_loss(lease: HeldLease) -> Script[NoReturn]:
    verdict = yield from renew(lease._lease_state.lease, {}, lease._kept.context)
    if isinstance(verdict, Over):
        lease._engine.keeper.lose(lease._kept, verdict.reason, verdict.detail)
        raise lease._found_lost()
    raise NotAcquired(f"no token could be drawn for {lease.key!r}: its record changes too fast", key=lease.key)


def renew_now(lease: HeldLease) -> Script[float]:
    """Renew a lease at once; return the seconds until its deadline."""
    yield from _renewed_by(lease, lambda: lease._engine.keeper.renewal(lease._kept))
    return lease.time_left


def advertise(lease: HeldLease, value: str) -> Script[None]:
    """Change the value that a leader advertises, which renews its term."""
    own, context = lease._lease_state.lease, lease._kept.context
    yield from _renewed_by(lease, lambda: election.advertise(own, value, context))


def _renewed_by(lease: HeldLease, renewal: Callable[[], Script[Renewal | MemberRenewed | Over]]) -> Script[None]:
    lease.check()
    keeper, kept, lease_state = lease._engine.keeper, lease._kept, lease._lease_state
    outcome = yield from with_retries(renewal, lease_state.lease.name, kept.context, until=lease_state.notify_at)
    keeper.renewed(kept, outcome)
    lease.check()


def share(lease: HeldLease) -> Script[LeaseTicket]:
    """Register this process as a member, so that a release waits for it, and return the ticket."""
    lease.check()
    engine, lease_state = lease._engine, lease._lease_state
    if lease_state.registration is None:
        nonce = fresh_nonce()
        fields = engine.registration_fields(nonce, lease_state.lease.ttl, lease_state.settings)
        # from here on there may be members, even if this registration fails
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
    """Leave a lease that this process no longer holds, removing its registration; return the ticket."""
    engine, lease_state = lease._engine, lease._lease_state
    # a reader's registration is what it hands over
    if lease_state.registration is not None and lease_state.mode == EXCLUSIVE:
        try:
            yield from take_back(lease_state.registration, lease._kept.context)
        except StoreError as error:
            engine.emit(ReleaseFailed(lease.key, lease.holder, error, lease_state.member))
    engine.keeper.left(lease._kept)
    lease._ended()
    engine.emit(Detached(lease.key, lease.holder, lease_state.member))
    return lease._ticket()


def downgrade(lease: HeldLease) -> Script[None]:
    """Turn an exclusive lease into a shared one, without a moment at which another holder could get in between."""
    lease.check()
    engine, kept, lease_state, context = lease._engine, lease._kept, lease._lease_state, lease._kept.context
    if lease_state.mode == SHARED:
        raise ValueError(f"the lease of {lease.holder!r} on {lease.key!r} is shared already")
    if lease_state.shared:
        raise ValueError(
            f"the lease of {lease.holder!r} on {lease.key!r} cannot become shared: a ticket was made, and its "
            "users rely on an exclusive lease; release it, and acquire it with mode='shared'"
        )
    own, name, until = lease_state.lease, lease_state.lease.name, lease_state.deadline
    fields = engine.registration_fields(lease.holder, own.ttl, lease_state.settings)
    outcome: Joined | Renewal | Over
    joined = outcome = yield from with_retries(
        lambda: attach(own, nonce_of(lease.holder), fields, context), name, context, until=until
    )
    if not isinstance(joined, Over):
        engine.keeper.register(kept, joined)
        lease.check()
        lease_state.downgraded()
        outcome = yield from with_retries(lambda: renew(own, DOWNGRADED, context), name, context, until=until)
    if isinstance(outcome, Over):
        engine.keeper.lose(kept, outcome.reason, outcome.detail)
        raise lease._found_lost()


def give_back(lease: HeldLease, began_at: float, drain: float | None) -> Script[bool]:
    """Release a lease that this process no longer holds; True if this removed the record.

    began_at (boot clock), drain (seconds; None: the default): when the wait for members begins, and how long it is.
    """
    engine, lease_state, context = lease._engine, lease._lease_state, lease._kept.context
    bound_at = began_at + drain_bound(context, drain) if lease_state.shared else math.inf
    outcome = yield from leaving.give_back(lease_state, context, bound_at=bound_at)
    removed = outcome.is_free
    if lease.is_member:
        engine.emit(Detached(lease.key, lease.holder, lease_state.member))
    else:
        engine.emit(Released(lease.key, lease.holder, removed, outcome.value))
    return removed


def drain_bound(context: ProtocolContext, drain: Duration | None) -> float:
    """Return how long a release waits for members, in seconds."""
    return context.drain_bound() if drain is None else seconds(drain, "drain")


# --- one lock -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockOperations:
    """The operations on one lock of an open client. Most raise StoreRefused if the client was closed."""

    engine: Engine
    key: str
    settings: Settings
    slot: str = ""

    @property
    def name(self) -> Name:
        """The name of the lock's record; slot: of the record of a permit."""
        return Name(self.key, Space.PERMIT, self.slot) if self.slot else Name(self.key)

    # --- by ticket -----------------------------------------------------------------------------------------------

    def attached(self, ticket: LeaseTicket | str) -> Script[KeptLease]:
        """Become a member of the lease that a ticket names; the keeper renews it. LeaseLost if it has ended."""
        engine = self.engine
        engine.refuse_if_closed()
        said, lease, context = self._of_ticket(ticket)
        nonce = fresh_nonce()
        fields = engine.registration_fields(nonce, said.ttl, context.settings)
        introduced_by = Introduction(nonce_of(said.holder), said.registration)
        joined = yield from with_retries(
            lambda: attach(lease, nonce, fields, context, mode=said.mode, introduced_by=introduced_by),
            lease.name,
            context,
        )
        if isinstance(joined, Over):
            raise lost_by_ticket(said, joined, "attach to")
        kept = engine.attached(joined, context.settings)
        engine.emit(Attached(self.key, said.holder, kept.lease_state.member))
        return kept

    def released(self, ticket: LeaseTicket | str, drain: Duration | None) -> Script[bool]:
        """Release, as its owner, the lease that a ticket names; True if this removed the record."""
        engine = self.engine
        said, lease, context = self._of_ticket(ticket)
        if said.mode == SHARED:
            outcome = yield from leaving.left_group(_registration(said, lease), lease, context)
        else:
            bound_at = engine.clock.now() + drain_bound(context, drain)
            outcome = yield from leaving.release(
                lease, context, shared=True, bound_at=bound_at, salt=lease.holder, by_ticket=True
            )
        if outcome is leaving.Outcome.ENDED:
            engine.emit(EngineWarning(self.key, (yield from _told_of_revocation(lease, context))))
        engine.emit(Released(self.key, said.holder, outcome.is_free, outcome.value))
        engine.local_queue.wake_first(self.key)
        return outcome.is_free

    def renewed(self, ticket: LeaseTicket | str, progress: str | None) -> Script[float]:
        """Extend, as its owner, the lease that a ticket names; return the seconds until its deadline."""
        said, lease, context = self._of_ticket(ticket)
        renewing = partial(_renewed_once, self.engine, said, lease, context, progress)
        return (yield from with_retries(renewing, lease.name, context))

    def why_over(self, ticket: LeaseTicket | str) -> Script[LeaseLost]:
        """Return why a lost lease cannot be released by its ticket."""
        said, lease, context = self._of_ticket(ticket)
        looked = yield from ask(Read(lease.name))
        return lost_by_ticket(said, over(lease, looked.answer, context) or Over(LossReason.GONE), "release")

    def drained(
        self, ticket: LeaseTicket | str, owner_filter: Callable[[str], bool] | None, timeout: Duration | None
    ) -> tuple[Script[bool], Limits]:
        """Wait until a ticket's lease has no members whose owner is accepted. Return script and limits."""
        limits = self._patience(timeout)
        _said, lease, context = self._of_ticket(ticket)
        script = drain(lease, context, bound_at=limits.gives_up_at, salt=fresh_nonce(), owner_filter=owner_filter)
        return script, limits

    def members(self, ticket: LeaseTicket | str) -> Script[list[LockInfo]]:
        """Return the registered members of the lease that a ticket names, the oldest first."""
        _said, lease, context = self._of_ticket(ticket)
        said = yield from registered(lease)
        shown = (listing(name, seen, context) for name, seen in said.answer.entries)
        return sorted((one for one in shown if one is not None), key=lambda one: one.acquired_epoch or 0.0)

    def withdrawn(self, ticket: LeaseTicket | str, member: LockInfo) -> Script[bool]:
        """Remove the registration of a member that the caller knows to be dead; False if there was none."""
        _said, lease, context = self._of_ticket(ticket)
        name = member_name(lease, nonce_of(member.holder))
        return take_back(LeaseId(name, member.holder, member.incarnation, lease.ttl), context)

    def _of_ticket(self, ticket: LeaseTicket | str) -> tuple[LeaseTicket, LeaseId, ProtocolContext]:
        said = registry.checked_ticket(ticket, self.key, self.engine.store.url)
        context = self.engine.context(self.settings.for_ttl(said.ttl))
        return said, LeaseId(said.name, said.group or said.holder, said.incarnation, said.ttl), context

    # --- inspecting and breaking ---------------------------------------------------------------------------------

    def inspected(self) -> Script[LockInfo | None]:
        """Return the holder of the lock; None if it is free."""
        self.engine.refuse_if_closed()
        context = self.engine.context(self.settings)
        status = yield from leaving.read_status(self.name, context)
        if status is None or status.record.ended:
            return None
        return (yield from _with_readers(holding(self.key, status, context), context))

    def contenders(self) -> list[Contender]:
        """Return the waiters for the lock, in the order of the store's queue; blocks. StoreRefused without a queue."""
        self.engine.refuse_if_closed()
        store = self.engine.store
        if not isinstance(store, ShowsQueue):
            raise StoreRefused(f"{store.traits.scheme}: this store has no queue to show; etcd: and zk: have one")
        return [contender(standing) for standing in store.standing(self.name, self.settings.request_timeout)]

    def freed(
        self, timeout: Duration | None, look: Callable[[ProtocolContext], Script[Found]] | None = None
    ) -> tuple[Script[Found], Limits]:
        """Wait until the lock is free, without acquiring it. Return script and limits; a single check has no other
        limit than its request's. look: as for `until_free`.
        """
        tries_once = timeout is not None and seconds(timeout, "timeout") == 0
        limits = self._patience(None if tries_once else timeout)
        script = until_free(
            self.name,
            self.engine.context(self.settings),
            mode=self.settings.mode,
            look=look,
            gives_up_at=limits.gives_up_at,
            tries_once=tries_once,
            on_wait=lambda seen: self.engine.emit_waiting(self.key, "", seen.record, Waiting),
        )
        return script, limits

    def _patience(self, timeout: Duration | None) -> Limits:
        """Return the limits of a wait that acquires nothing: `timeout` seconds, or until the client is closed."""
        engine = self.engine
        engine.refuse_if_closed()
        gives_up_at = math.inf if timeout is None else engine.clock.now() + seconds(timeout, "timeout")
        return Limits(self.settings.request_timeout, gives_up_at, engine.refuse_if_closed)

    def broken(
        self,
        *,
        reason: str,
        by: str | None,
        now: bool,
        incarnation: str | None,
        reader: LockInfo | None = None,
        judges: Callable[[Record], bool] | None = None,
        insists: bool = False,
    ) -> Script[BreakResult | None]:
        """Revoke or remove the lease on the lock, and write an audit entry; None if there is no lease.

        reader: break the lease of this one reader, and not those of all. judges: whether to revoke the lease as its
        record is when it is revoked; None if not. insists: raise the store's error if the entry could not be written;
        the caller will call this again.

        A lease that was revoked before has its entry already, unless writing it failed: then it is written now, under
        the name that it would have had.
        """
        engine, name = self.engine, self.name
        engine.refuse_if_closed()
        context = engine.context(self.settings)
        revoked = registry.revocation(reason, by, self.settings)
        if reader is not None:
            if not isinstance(reader, LockInfo) or reader.registration is None:
                given = getattr(reader, "holder", reader)
                raise ValueError(f"{given!r} is not a reader; pass one of lock.inspect().readers")
            name, incarnation = Name(self.key, Space.MEMBER, reader.registration), reader.incarnation
        done = yield from leaving.break_lease(
            name, revoked, context, now=now, incarnation=incarnation, salt=fresh_nonce(), judges=judges
        )
        if done is None:
            return None
        if reader is not None:
            # the registration has a number of its own; the reader's token is the group's
            done = replace(
                done, record=replace(done.record, token=reader.token), seen=replace(done.seen, token=reader.token)
            )
        engine.local_queue.wake_first(self.key)
        report = breaking(self.key, done, context, engine.clock.wall())
        mode = f"permit/{self.slot}" if self.slot else done.record.mode if reader is None else SHARED
        report = replace(report, was=replace(report.was, mode=mode))
        was_revoked = None if done.revoked or done.removed else done.record.revoked
        if was_revoked is not None and done.record.is_foreign:
            return report
        part, entry = leaving.audit_entry(done, was_revoked or revoked, engine.clock.wall(), mode)
        try:
            yield from leaving.audit(name, part, entry)
        except StoreError as error:
            if insists:
                raise
            # an exception would say that the lease is not broken
            engine.emit(EngineWarning(self.key, f"the lease was broken, but its audit entry may be missing: {error}"))
        return report


def _with_holders(info: LockInfo, name: Name, seen: Snapshot, context: ProtocolContext) -> Script[LockInfo | None]:
    """Return a lock with its live readers, or a semaphore with its permits; None if it is free."""
    if info.permits is None:
        return (yield from _with_readers(info, context))
    slots = yield from ask(List(Space.PERMIT, name.key))
    return listing(name, seen, context, slots.answer.entries)


def _with_readers(info: LockInfo, context: ProtocolContext) -> Script[LockInfo | None]:
    """Return a lock with its live readers; None if it is a group without any, which is free."""
    if info.mode != SHARED:
        return info
    group = LeaseId(Name(info.key), info.holder, info.incarnation, context.settings.ttl)
    said = yield from registered(group)
    shown = (listing(name, seen, context) for name, seen in said.answer.entries)
    readers = [replace(one, token=info.token) for one in shown if one is not None and not one.is_expired]
    if not readers:
        return None
    return replace(info, readers=tuple(sorted(readers, key=lambda one: one.acquired_epoch or 0.0)))


def _registration(said: LeaseTicket, lease: LeaseId) -> LeaseId:
    """Return the registration of the reader that made a ticket."""
    return LeaseId(member_name(lease, nonce_of(said.holder)), said.holder, said.registration, said.ttl)


def _told_of_revocation(lease: LeaseId, context: ProtocolContext) -> Script[str]:
    """Return the warning that a lease was revoked before its release, and by whom if its record still exists."""
    by = ""
    with suppress(StoreError):
        looked = yield from ask(Read(lease.name))
        seen = over(lease, looked.answer, context)
        if seen is not None and seen.reason is LossReason.REVOKED and seen.detail:
            by = f" ({seen.detail})"
    return f"the lease was revoked before it was released{by}"


def _renewed_once(
    engine: Engine, said: LeaseTicket, lease: LeaseId, context: ProtocolContext, progress: str | None
) -> Script[float]:
    own = lease if said.mode == EXCLUSIVE else _registration(said, lease)
    record = yield from extensible(own, context)
    if isinstance(record, Over):
        raise lost_by_ticket(said, record, "renew")
    fields: dict[str, str] = {}
    if progress is not None:
        fields["progress"] = progress_text(progress)
        if record.expected is not None:
            alert_at = engine.clock.wall() + record.expected
            fields["alert_at"] = number(alert_at)
            if record.auto_unlock_at is not None:
                moved = max(0.0, alert_at - (record.alert_at or alert_at))
                fields["auto_unlock_at"] = number(record.auto_unlock_at + moved)
    verdict: Renewal | MemberRenewed | Over
    if said.mode == EXCLUSIVE:
        verdict = yield from renew(lease, fields, context)
    else:
        verdict = yield from renew_member(lease, own, fields, context, mode=said.mode)
    if isinstance(verdict, Over):
        raise lost_by_ticket(said, verdict, "renew")
    deadline = verdict.deadline
    if deadline is None:
        raise lost_by_ticket(said, Over(LossReason.GONE, BEING_RELEASED), "renew")
    left = deadline - engine.clock.now()
    if left <= 0:
        raise lost_by_ticket(said, Over(LossReason.EXPIRED, "the answer came too late"), "renew")
    engine.emit(Renewed(said.key, said.holder, deadline))
    return left


# --- all locks of a store -------------------------------------------------------------------------------------------


PAGE: Final = 1000
"""About how many records one request of a listing returns."""

PAGE_MAX: Final = 10_000

SHRINK: Final = 16
"""How many times smaller a page is that is asked for instead of one that was too large."""


def scanned(engine: Engine, page: int, cursor: str | None = None) -> Script[tuple[dict[Name, LockInfo], str | None]]:
    """Return the locks of one page, every one that is held or whose record cannot be read, and the next cursor.

    A semaphore or a shared lock takes one more request, for its permits or readers.
    """
    engine.refuse_if_closed()
    context = engine.context(PLAIN)
    said = yield from _page(engine, List(Space.LOCK, page=page, cursor=cursor))
    shown: dict[Name, LockInfo] = {}
    for name, seen in said.entries:
        info = listing(name, seen, context)
        try:
            info = None if info is None else (yield from _with_holders(info, name, seen, context))
        except StoreRefused as error:
            info = None if info is None else replace(info, decode_error=str(error))
        if info is not None:
            shown[name] = info
    return shown, said.next_cursor


def listed(engine: Engine) -> Script[list[LockInfo]]:
    """Return every key that is held or whose record cannot be read, sorted by name."""
    found: dict[Name, LockInfo] = {}
    cursor, cursors = None, Cursors(engine.traits.scheme)
    while True:
        shown, upcoming = yield from scanned(engine, PAGE, cursor)
        cursor = cursors.passed(upcoming)
        for name, info in shown.items():
            if info.decode_error is None or name not in found:
                found[name] = info
        if cursor is None:
            return sorted(found.values(), key=lambda one: one.key)


def _page(engine: Engine, command: List) -> Script[Listing]:
    """Return a page of a listing; a smaller one where the records are too large for one answer."""
    try:
        said = (yield from ask(command)).answer
    except StoreError as error:
        from lockstead.stores.bounds import is_too_long

        size = command.page or PAGE
        if size == 1 or not is_too_long(error):
            raise
        return (yield from _page(engine, replace(command, page=max(1, size // SHRINK))))
    return said


def checked_page(page: int) -> int:
    """Return the size of a page; ValueError or TypeError if it is none."""
    if not isinstance(page, int) or isinstance(page, bool):
        raise TypeError(f"page is a whole number of records, not {type(page).__name__}")
    if not 1 <= page <= PAGE_MAX:
        raise ValueError(f"page is a number of records from 1 to {PAGE_MAX}, not {page}")
    return page


def history(engine: Engine, key: str | None) -> Script[list[AuditEntry]]:
    """Return the broken leases of one key, or of all, the oldest first."""
    engine.refuse_if_closed()
    found: dict[Name, AuditEntry] = {}
    cursor, cursors = None, Cursors(engine.traits.scheme)
    while True:
        said = yield from _page(engine, List(Space.AUDIT, key, page=PAGE, cursor=cursor))
        found |= {name: audited(name, seen) for name, seen in said.entries}
        cursor = cursors.passed(said.next_cursor)
        if cursor is None:
            return sorted(found.values(), key=lambda one: one.at_epoch or 0.0)


def verified(engine: Engine, sequencer: Sequencer | str) -> Script[bool]:
    """Return whether a sequencer names the lease that holds its key."""
    engine.refuse_if_closed()
    said = sequencer if isinstance(sequencer, Sequencer) else Sequencer.parse(sequencer)
    return (yield from verify(said, engine.context(PLAIN)))
