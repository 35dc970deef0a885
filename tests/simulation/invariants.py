"""The invariants of every run; a violation is raised at the instant at which it happens.

Whether a process considers itself the holder depends only on its deadline: even a paused process does so until its own
clock reaches it. It can start only at a grant or an attachment, and be extended only at a renewal, so a check at each
of these covers every instant.
"""

from __future__ import annotations

from typing import Final

from lockstead.errors import LossReason
from lockstead.protocol import expiry
from lockstead.protocol.commands import StoreClock
from lockstead.protocol.lifecycle import LeaseState, State
from lockstead.protocol.release import Outcome
from lockstead.values import EXCLUSIVE, SHARED, LeaseOutcome, Name, Space
from tests.simulation.store import Entry, SimulatedStore
from tests.simulation.world import Actor, Violation, World

EPSILON: Final = 1e-6
"""Seconds of tolerance for floating-point instants."""

NOTICE_MAX: Final = 0.01
"""Seconds by which the notification of a loss may be late, because a real timing thread needs some time too."""


class InvariantChecker:
    """The observer of every lease, token and loss of a run. Raises `Violation` at once."""

    def __init__(self, world: World, store: SimulatedStore) -> None:
        self._world = world
        self._store = store
        self._holders: dict[int, tuple[Actor, LeaseState]] = {}
        self._moved_at: dict[int, float] = {}  # when the deadline of a lease changed
        self._lost: dict[int, LeaseState] = {}
        self._tokens: dict[int, int] = {}  # by the number of the grant
        self._overlap_until: dict[str, float] = {}  # of leases that were removed by force
        self._deleted: set[str] = set()
        self._replaced: set[str] = set()
        self._revoked: set[str] = set()
        self._last_record: dict[Name, str] = {}
        self._last_informed: dict[Name, int] = {}  # the last grant whose holder was told of its predecessors
        self._unfinished: dict[Name, set[str]] = {}
        self.is_calm = False
        self.grants = 0
        self.losses = 0
        self.tokens = 0

    def fail(self, what: str) -> None:
        """Raise Violation with the invariant that does not hold."""
        raise Violation(f"at {self._world.now:.4f}: {what}")

    # --- holders -------------------------------------------------------------------------------------------------

    def lease_began(self, process: Actor, lease_state: LeaseState) -> None:
        """Handle that a process considers itself a holder from now on."""
        self.grants += 1
        self._holders[id(lease_state)] = (process, lease_state)
        self._check_informed(process, lease_state)
        self.deadline_moved(process, lease_state)

    def deadline_moved(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that no process outside the lease considers itself the holder at this instant."""
        true, mine = self._world.now, lease_state.lease
        self._moved_at[id(lease_state)] = true
        if not lease_state.believes(process.clock.at(true)):
            return
        if id(lease_state) in self._lost:
            self.fail(f"{process.name} holds {mine.incarnation} again, although its loss was notified")
        self._check_overlap(process, lease_state)
        for other, theirs in self._holders.values():
            is_same = theirs.lease.incarnation == mine.incarnation and theirs.mode == lease_state.mode
            if is_same or theirs.lease.name != mine.name:
                continue
            if not theirs.believes(other.clock.at(true) + EPSILON):
                continue
            if mine.incarnation in self._overlap_until or theirs.lease.incarnation in self._overlap_until:
                continue
            until = other.clock.when(theirs.deadline)
            self.fail(
                f"two holders: {process.name} ({mine.holder}, incarnation {mine.incarnation}) and {other.name} "
                f"({theirs.lease.holder}, incarnation {theirs.lease.incarnation}), the latter until {until:.4f}"
            )

    def section_ended(self, lease_state: LeaseState) -> None:
        """Handle the regular end of a section, while its process was still a holder."""
        self._unfinished.get(lease_state.lease.name, set()).discard(lease_state.lease.incarnation)

    def lease_ended(self, lease_state: LeaseState) -> None:
        """Handle that a process no longer considers itself a holder, or died."""
        self._holders.pop(id(lease_state), None)

    def lease_abandoned(self, process: Actor, lease_state: LeaseState) -> None:
        """Handle that an unreferenced lease was abandoned."""
        if lease_state.state is State.HELD:
            self.fail(f"{process.name} abandoned {lease_state.lease.incarnation} and still holds it")
        self.lease_ended(lease_state)

    # --- forced removals -----------------------------------------------------------------------------------------

    def found_expired(self, incarnation: str) -> None:
        """Check a lease that another implementation found expired by its own clock and the `expires_at` field."""
        self.record_deleted(incarnation)
        if incarnation in self._overlap_until:
            return  # an operator gave up mutual exclusion for it
        for process, lease_state in self._holders.values():
            if lease_state.lease.incarnation == incarnation and lease_state.believes(process.clock.at(self._world.now)):
                self.fail(f"{process.name} holds {incarnation}, and its record says that it has expired")

    def record_deleted(self, incarnation: str) -> None:
        """Record that an operator removes the record of this lease, so that later holders find no information."""
        self._deleted.add(incarnation)

    def removal_sent(self, incarnation: str) -> None:
        """Record that an operator is about to remove this lease at once, giving up mutual exclusion for it."""
        self._overlap_until.setdefault(incarnation, float("inf"))

    def removed_by_force(self, incarnation: str, max_overlap: float) -> None:
        """Handle a forced removal of this lease, which its holder may keep for max_overlap (store's seconds)."""
        until = self._world.now + self._store.true_span(max_overlap)
        self._overlap_until[incarnation] = min(until, self._overlap_until.get(incarnation, until))
        for process, lease_state in self._holders.values():
            self._check_overlap(process, lease_state)

    def _check_overlap(self, process: Actor, lease_state: LeaseState) -> None:
        until = self._overlap_until.get(lease_state.lease.incarnation)
        if until is None or lease_state.state is not State.HELD:
            return
        if process.clock.when(lease_state.deadline) > until + EPSILON:
            self.fail(f"{process.name} holds a removed lease for longer than was reported ({until:.4f})")

    # --- predecessors --------------------------------------------------------------------------------------------

    def _check_informed(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that the holder after an unfinished section is not told of a clean end.

        The new holder is then responsible for repairing the state, unless it releases the lease unused.
        """
        if lease_state.previous_lease is None:
            return
        name, mine, order = lease_state.lease.name, lease_state.lease.incarnation, self._store.order
        unfinished = self._unfinished.setdefault(name, set())
        is_reader = lease_state.mode == SHARED
        # a lease deleted by an operator leaves no information, not even about earlier ones
        erased = max((order[one] for one in self._deleted), default=0)
        before = {one for one in unfinished if erased < order[one] < order[mine]}
        if before and lease_state.previous_lease.ending is LeaseOutcome.CLEAN:
            self.fail(f"{process.name} is told of a clean end, but {before} stopped in the middle")
        # a reply may come so late that later holders have worked since and were told
        # readers repair nothing, so the next writer must be told, too
        if not lease_state.unused and not is_reader and order[mine] > self._last_informed.get(name, 0):
            self._last_informed[name] = order[mine]
            self._unfinished[name] = {mine}

    def check_record(self, name: Name, entry: Entry, was: Entry | None) -> None:
        """Check a record of a new incarnation that the store wrote. was: the record that it replaced."""
        self._check_informing(name, entry, was)
        if was is not None:
            self._replaced.add(was.incarnation)
        if name.space is not Space.LOCK or was is None or "ttl" in was.fields or "tombstone" in entry.fields:
            return  # an operator who names this incarnation may replace an unreadable record by a tombstone
        if not self._store.traits.foreign or "v" in was.fields:
            self.fail("an unreadable record was treated as free")
        # by the store's Date, the only clock that is comparable with another implementation's instant
        date = self._store.date(self._store.time())
        if date is None or not date > float(was.fields["expires_at"]) + expiry.FOREIGN_ALLOWANCE:
            self.fail("the lock of another implementation was taken over before its time")

    def _check_informing(self, name: Name, entry: Entry, was: Entry | None) -> None:
        """Check that the holder after an unfinished section finds the record of that section."""
        if name.space is not Space.LOCK or self._store.traits.clock is StoreClock.SERVER_EXPIRES:
            return
        before, self._last_record[name] = self._last_record.get(name), entry.incarnation
        if was is None and before in self._revoked - self._deleted:
            self.fail(f"{before} was revoked, a section stopped in the middle, and the next holder finds nothing")

    # --- tokens --------------------------------------------------------------------------------------------------

    def is_superseded(self, lease_state: LeaseState) -> bool:
        """Return whether a lease is no longer the one in the store, or has ended there."""
        entry = self._store.entries.get(lease_state.lease.name)
        return entry is None or entry.incarnation != lease_state.lease.incarnation or "ended" in entry.fields

    def check_token(self, lease_state: LeaseState, token: int, *, was_superseded: bool) -> None:
        """Check a token that a process obtained. was_superseded: its lease was gone before the request."""
        self.tokens += 1
        if was_superseded:
            self.fail(f"{lease_state.lease.holder} obtained the token {token} after its lease was superseded")
        mine = self._store.order[lease_state.lease.incarnation]
        for order, known in self._tokens.items():
            if (order < mine and known >= token) or (order > mine and known <= token):
                self.fail(f"token {token} of grant {mine} and token {known} of grant {order} are out of order")
            if order == mine and known != token:
                self.fail(f"one lease has two tokens, {known} and {token}")
        self._tokens[mine] = token

    # --- renewals ------------------------------------------------------------------------------------------------

    def check_renewal(self, process: Actor, lease_state: LeaseState, *, is_alone: bool, is_referenced: bool) -> None:
        """Check a renewal by a keeper. is_alone: no other is in flight; is_referenced: the lease is referenced."""
        what = f"{process.name} renews {lease_state.lease.incarnation}"
        if not lease_state.believes(process.clock.at(self._world.now)):
            self.fail(f"{what}, which it no longer holds")
        if not is_alone:
            self.fail(f"{what} twice at once")
        if not is_referenced:
            self.fail(f"{what}, which is not referenced any more")

    # --- losses --------------------------------------------------------------------------------------------------

    def check_loss(self, process: Actor, lease_state: LeaseState) -> None:
        """Check the notification of a loss: its reason must match the state of the store."""
        self.losses += 1
        lease, reason = lease_state.lease, lease_state.reason
        if id(lease_state) in self._lost:
            self.fail(f"{process.name} was notified twice of the loss of {lease.incarnation}")
        self._lost[id(lease_state)] = lease_state
        self.lease_ended(lease_state)
        entry = self._store.entries.get(lease.name)
        is_present = entry is not None and entry.incarnation == lease.incarnation
        is_claim_false = False
        match reason:
            case LossReason.EXPIRED:
                self._check_in_time(process, lease_state)
            case LossReason.UNREACHABLE:
                self._check_unreachable(process, lease_state)
            case LossReason.TAKEN:
                is_claim_false = is_present
            case LossReason.GONE:
                is_claim_false = is_present and lease_state.registration is None
            case LossReason.REVOKED:
                if lease_state.mode == EXCLUSIVE:
                    self._revoked.add(lease.incarnation)
                # the content of a record that was damaged since is unknown
                known = entry.fields.keys() if entry is not None and "ttl" in entry.fields else {"revoked"}
                is_claim_false = is_present and known.isdisjoint(("revoked", "closing", "ended"))
            case _:
                pass
        if is_claim_false and reason is not None:
            self.fail(f"{process.name} was notified of {reason.name}, but the record of its lease says otherwise")

    def check_notified(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that a loss that was found elsewhere was notified soon after."""
        if lease_state.state is State.LOST and id(lease_state) not in self._lost:
            self.fail(f"{process.name} was not notified that {lease_state.lease.incarnation} was found lost")

    def check_notified_in_time(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that a process that counts as a holder has not reached its deadline, or was paused until then.

        Not checked in the calm phase, which begins by waking paused processes.
        """
        due_at = process.clock.when(lease_state.deadline)
        is_unaware = lease_state.state is State.HELD or (
            lease_state.state is State.LOST and id(lease_state) not in self._lost
        )
        if is_unaware and not self.is_calm and process.paused_until < due_at < self._world.now:
            self.fail(f"{process.name} was never notified of the loss of {lease_state.lease.incarnation}")

    def _check_in_time(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that expiry is notified the margin before the deadline, unless it was moved or the process paused."""
        due_at = max(process.clock.when(lease_state.notify_at), self._moved_at[id(lease_state)])
        if not self.is_calm and process.paused_until < due_at < self._world.now - NOTICE_MAX:
            late = self._world.now - due_at
            self.fail(f"{process.name} was notified {late:.3f} s late that {lease_state.lease.incarnation} expires")

    def _check_unreachable(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that UNREACHABLE is notified only after the tolerated failures, however quickly the store refused."""
        settings = lease_state.settings
        tolerated = settings.max_failures * settings.renew_every
        silent = process.clock.at(self._world.now) - lease_state.renewed_at
        if silent < tolerated - EPSILON:
            self.fail(f"{process.name} was notified of UNREACHABLE after {silent:.3f} s of {tolerated:.3f} s")

    # --- releases ------------------------------------------------------------------------------------------------

    def check_release(self, lease_state: LeaseState, outcome: Outcome) -> None:
        """Check the end of an owner's release."""
        lease = lease_state.lease
        if outcome is Outcome.REMOVED and lease.incarnation in self._replaced:
            self.fail(f"{lease.holder} was told that it removed its lease, which had been taken over")
        if outcome.is_free and lease_state.state is State.LOST and lease_state.settings.lock_delay:
            self.fail(f"{lease.holder} lost its lease and cut its lock-delay")
        entry = self._store.entries.get(lease.name)
        if entry is not None and "ttl" not in entry.fields:
            return  # it was damaged at this moment, so its content is unknown
        if outcome is not Outcome.LEFT and not self.is_superseded(lease_state):
            self.fail(f"{lease.holder} was told that its lease is gone, but it is present")

    def check_sweep(self, name: Name, holder: str, sent_at: float) -> None:
        """Check that after the sweep of an abandoned acquisition, what it wrote before the sweep is gone."""
        entry = self._store.entries.get(name)
        if entry is None or "ended" in entry.fields:
            return
        if entry.fields.get("identity") == holder and entry.committed_at < sent_at - EPSILON:
            self.fail(f"the acquisition of {holder} was abandoned and swept, but its record is present")
