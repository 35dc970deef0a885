"""The properties that must hold in every run; a violation is raised at the instant at which it happens.

Belief (a process considers itself the holder) depends only on its deadline: even a paused process believes until its
own clock reaches it. A belief can start or be extended only at a grant, an attachment or a renewal, so a check at each
of these covers every instant.
"""

from __future__ import annotations

from typing import Final

from lockstead.errors import LossReason
from lockstead.protocol import expiry
from lockstead.protocol.commands import StoreClock
from lockstead.protocol.lifecycle import LeaseState, State
from lockstead.values import LeaseOutcome, Name, Space
from tests.simulation.store import Entry, SimulatedStore
from tests.simulation.world import Actor, Violation, World

HAIR: Final = 1e-6
"""Seconds of tolerance for floating-point instants."""

LATE: Final = 0.01
"""Seconds by which the report of a loss may be late, because a real timing thread needs some time too."""


class Watch:
    """The observer of every belief, token and loss of a run. Raises `Violation` at once."""

    __slots__ = (
        "_answers",
        "_beliefs",
        "_changed_at",
        "_cut_off",
        "_deleted",
        "_forsaken",
        "_latest",
        "_lost",
        "_overtaken",
        "_store",
        "_tokens",
        "_unfinished",
        "_world",
        "grants",
        "is_calm",
        "losses",
        "tokens",
    )

    def __init__(self, world: World, store: SimulatedStore) -> None:
        self._world = world
        self.is_calm = False
        self._store = store
        self._answers: dict[Name, int] = {}
        self._beliefs: dict[int, tuple[Actor, LeaseState]] = {}
        self._changed_at: dict[int, float] = {}
        self._cut_off: set[str] = set()
        self._deleted: set[str] = set()
        self._latest: dict[Name, str] = {}
        self._forsaken: dict[str, float] = {}
        self._lost: dict[int, LeaseState] = {}
        self._overtaken: set[str] = set()
        self._tokens: dict[int, int] = {}
        self._unfinished: dict[Name, set[str]] = {}
        self.grants = 0
        self.losses = 0
        self.tokens = 0

    def violated(self, what: str) -> None:
        """Raise Violation with the property that does not hold."""
        raise Violation(f"at {self._world.now:.4f}: {what}")

    # --- belief --------------------------------------------------------------------------------------------------

    def began(self, process: Actor, lease_state: LeaseState) -> None:
        """Handle the start of a belief."""
        self.grants += 1
        self._beliefs[id(lease_state)] = (process, lease_state)
        self._check_predecessor(process, lease_state)
        self.moved(process, lease_state)

    def moved(self, process: Actor, lease_state: LeaseState) -> None:
        """Handle the start or extension of a belief: no process outside the lease may believe at this instant."""
        true = self._world.now
        mine = lease_state.lease
        self._changed_at[id(lease_state)] = true
        if not lease_state.believes(process.clock.at(true)):
            return
        if id(lease_state) in self._lost:
            self.violated(f"{process.name} holds {mine.incarnation} again, although its loss was told")
        self._check_forsaken(process, lease_state)
        for other, theirs in self._beliefs.values():
            if theirs.lease.incarnation == mine.incarnation or theirs.lease.name != mine.name:
                continue
            if not theirs.believes(other.clock.at(true) + HAIR):
                continue
            if mine.incarnation in self._forsaken or theirs.lease.incarnation in self._forsaken:
                continue
            until = other.clock.when(theirs.deadline)
            self.violated(
                f"{process.name} ({mine.holder}, incarnation {mine.incarnation}) and {other.name} "
                f"({theirs.lease.holder}, incarnation {theirs.lease.incarnation}) both believe; "
                f"the latter until {until:.4f}"
            )

    def _check_predecessor(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that the holder after an unfinished section is not told of a clean end.

        The new holder is then responsible for repairing the state, unless it releases the lease unused.
        """
        if lease_state.previous_lease is None:
            return
        name, mine, order = lease_state.lease.name, lease_state.lease.incarnation, self._store.order
        unfinished = self._unfinished.setdefault(name, set())
        # a lease deleted by an operator leaves no information, not even about earlier ones
        silenced = max((order[one] for one in self._deleted), default=0)
        before = {one for one in unfinished if silenced < order[one] < order[mine]}
        if before and lease_state.previous_lease.ending is LeaseOutcome.CLEAN:
            self.violated(f"{process.name} is told of a clean end, but {before} stopped in the middle")
        # a reply may come so late that later holders have worked since and were told
        if not lease_state.unused and order[mine] > self._answers.get(name, 0):
            self._answers[name] = order[mine]
            self._unfinished[name] = {mine}

    def left(self, lease_state: LeaseState) -> None:
        """Handle the regular end of a section, while its process still believed."""
        self._unfinished.get(lease_state.lease.name, set()).discard(lease_state.lease.incarnation)

    def ended(self, lease_state: LeaseState) -> None:
        """Handle the end of a belief, or the death of its process."""
        self._beliefs.pop(id(lease_state), None)

    def expired(self, incarnation: str) -> None:
        """Handle that another implementation found this lease expired by its own clock and the `expires_at` field."""
        self.deleted(incarnation)
        for process, lease_state in self._beliefs.values():
            if lease_state.lease.incarnation == incarnation and lease_state.believes(process.clock.at(self._world.now)):
                self.violated(f"{process.name} believes in {incarnation}, and its record says that it has expired")

    def at_mercy(self, incarnation: str) -> None:
        """Handle that an operator is about to remove this lease at once, giving up mutual exclusion for it."""
        self._forsaken.setdefault(incarnation, float("inf"))

    def forsaken(self, incarnation: str, max_overlap: float) -> None:
        """Handle a deliberate removal of this lease, whose holder may believe for max_overlap (store's seconds)."""
        until = self._world.now + self._store.true_span(max_overlap)
        self._forsaken[incarnation] = min(until, self._forsaken.get(incarnation, until))
        for process, lease_state in self._beliefs.values():
            self._check_forsaken(process, lease_state)

    def _check_forsaken(self, process: Actor, lease_state: LeaseState) -> None:
        until = self._forsaken.get(lease_state.lease.incarnation)
        if until is None or lease_state.state is not State.HELD:
            return
        if process.clock.when(lease_state.deadline) > until + HAIR:
            self.violated(f"{process.name} believes in a removed lease for longer than was said ({until:.4f})")

    # --- tokens --------------------------------------------------------------------------------------------------

    def is_superseded(self, lease_state: LeaseState) -> bool:
        """Return whether a lease is no longer the one in the store, or has ended there."""
        entry = self._store.entries.get(lease_state.lease.name)
        return entry is None or entry.incarnation != lease_state.lease.incarnation or "ended" in entry.fields

    def got_token(self, lease_state: LeaseState, token: int, *, was_superseded: bool) -> None:
        """Check a token that a process obtained. was_superseded: its lease was gone before the request."""
        self.tokens += 1
        if was_superseded:
            self.violated(f"{lease_state.lease.holder} obtained the token {token} after its lease was superseded")
        mine = self._store.order[lease_state.lease.incarnation]
        for order, known in self._tokens.items():
            if (order < mine and known >= token) or (order > mine and known <= token):
                self.violated(f"token {token} of grant {mine} and token {known} of grant {order} are out of order")
            if order == mine and known != token:
                self.violated(f"one lease has two tokens, {known} and {token}")
        self._tokens[mine] = token

    # --- grants --------------------------------------------------------------------------------------------------

    def granted(self, name: Name, entry: Entry, was: Entry | None) -> None:
        """Check a record of a new incarnation that the store wrote. was: the record that it replaced."""
        self._check_told(name, entry, was)
        if was is not None:
            self._overtaken.add(was.incarnation)
        if name.space is not Space.LOCK or was is None or "ttl" in was.fields or "tombstone" in entry.fields:
            return  # an operator who names this incarnation may replace an unreadable record by a tombstone
        if not self._store.traits.foreign or "v" in was.fields:
            self.violated("a record that nobody can read was treated as free")
        # by the store's Date, the only clock that is comparable with another implementation's instant
        date = self._store.date(self._store.time())
        if date is None or not date > float(was.fields["expires_at"]) + expiry.FOREIGN_ALLOWANCE:
            self.violated("the lock of another implementation was taken over before its time")

    def _check_told(self, name: Name, entry: Entry, was: Entry | None) -> None:
        """Check that the holder after an unfinished section finds the record of that section."""
        if name.space is not Space.LOCK or self._store.traits.clock is StoreClock.SERVER_EXPIRES:
            return
        before, self._latest[name] = self._latest.get(name), entry.incarnation
        if was is None and before in self._cut_off - self._deleted:
            self.violated(f"{before} was revoked, somebody stopped in the middle, and the next holder finds nothing")

    def deleted(self, incarnation: str) -> None:
        """Record that an operator removes the record of this lease, so that later holders find no information."""
        self._deleted.add(incarnation)

    # --- renewals ------------------------------------------------------------------------------------------------

    def renews(self, process: Actor, lease_state: LeaseState, *, is_alone: bool, is_referred: bool) -> None:
        """Check a renewal by a keeper. is_alone: no other is in flight; is_referred: the lease is referenced."""
        what = f"{process.name} renews {lease_state.lease.incarnation}"
        if not lease_state.believes(process.clock.at(self._world.now)):
            self.violated(f"{what}, which it does not hold any more")
        if not is_alone:
            self.violated(f"{what} twice at once")
        if not is_referred:
            self.violated(f"{what}, which nobody refers to any more")

    def abandoned(self, process: Actor, lease_state: LeaseState) -> None:
        """Handle that an unreferenced lease was abandoned."""
        if lease_state.state is State.HELD:
            self.violated(f"{process.name} abandoned {lease_state.lease.incarnation} and holds it on")
        self.ended(lease_state)

    # --- endings -------------------------------------------------------------------------------------------------

    def lost(self, process: Actor, lease_state: LeaseState) -> None:
        """Check a reported loss: its reason must match the state of the store."""
        self.losses += 1
        if id(lease_state) in self._lost:
            self.violated(f"{process.name} was told the loss of {lease_state.lease.incarnation} twice")
        self._lost[id(lease_state)] = lease_state
        self.ended(lease_state)
        reason = lease_state.reason
        if reason is LossReason.EXPIRED:
            self._check_in_time(process, lease_state)
        if reason is LossReason.REVOKED:
            self._cut_off.add(lease_state.lease.incarnation)
        if reason is LossReason.UNREACHABLE:
            self._check_rounds(process, lease_state)
        standing = self._store.entries.get(lease_state.lease.name)
        is_ours = standing is not None and standing.incarnation == lease_state.lease.incarnation
        # the content of a record that was damaged since is unknown
        words = ("revoked", "closing", "ended") if standing is not None and "ttl" in standing.fields else ()
        is_ending = standing is not None and (not words or any(word in standing.fields for word in words))
        if reason is LossReason.TAKEN and is_ours:
            self.violated(f"{process.name} was told TAKEN, but the lease stands")
        if reason is LossReason.REVOKED and is_ours and not is_ending:
            self.violated(f"{process.name} was told REVOKED, but nobody revoked it")
        if reason is LossReason.GONE and is_ours and lease_state.registration is None:
            self.violated(f"{process.name} was told GONE, but the lease stands")

    def is_told(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that a loss that was found elsewhere was reported soon after."""
        if lease_state.state is State.LOST and id(lease_state) not in self._lost:
            self.violated(f"{process.name} was not told that {lease_state.lease.incarnation} was found lost")

    def is_told_in_time(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that a process that counts as a holder has not reached its deadline, or was paused until then.

        Not checked in the calm part, which begins by waking paused processes.
        """
        due_at = process.clock.when(lease_state.deadline)
        is_told = lease_state.state is not State.HELD and (
            lease_state.state is not State.LOST or id(lease_state) in self._lost
        )
        if not self.is_calm and not is_told and process.stopped_until < due_at < self._world.now:
            self.violated(f"{process.name} was never told the loss of {lease_state.lease.incarnation}")

    def _check_in_time(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that expiry is reported the margin before the deadline, unless it was moved or the process paused."""
        due_at = max(process.clock.when(lease_state.notify_at), self._changed_at[id(lease_state)])
        if not self.is_calm and process.stopped_until < due_at < self._world.now - LATE:
            late = self._world.now - due_at
            self.violated(f"{process.name} was told {late:.3f} s late that {lease_state.lease.incarnation} runs out")

    def _check_rounds(self, process: Actor, lease_state: LeaseState) -> None:
        """Check that UNREACHABLE is reported only after the tolerated failures, however quickly the store refused."""
        settings = lease_state.settings
        tolerated = settings.max_failures * settings.renew_every
        silent = process.clock.at(self._world.now) - lease_state.renewed_at
        if silent < tolerated - HAIR:
            self.violated(f"{process.name} was told UNREACHABLE after {silent:.3f} s; {tolerated:.3f} s are tolerated")

    def given_back(self, lease_state: LeaseState, *, is_ours: bool, is_removed: bool, is_gone_by_us: bool) -> None:
        """Check the end of an owner's release.

        is_ours: the key is free by it. is_removed: the lease is gone. is_gone_by_us: this release removed the lease.
        """
        if is_gone_by_us and lease_state.lease.incarnation in self._overtaken:
            self.violated(
                f"{lease_state.lease.holder} was told that it removed its lease, but somebody else had taken it over"
            )
        if is_ours and lease_state.state is State.LOST and lease_state.settings.lock_delay:
            self.violated(f"{lease_state.lease.holder} lost its lease and cut its lock-delay")
        entry = self._store.entries.get(lease_state.lease.name)
        if entry is not None and "ttl" not in entry.fields:
            return  # it was damaged at this moment, so its content is unknown
        if is_removed and not self.is_superseded(lease_state):
            self.violated(f"{lease_state.lease.holder} was told that its lease is gone, but it stands")

    def swept(self, name: Name, holder: str, looked_at: float) -> None:
        """Check that after the sweep of an abandoned acquisition, what it wrote before the sweep is gone."""
        entry = self._store.entries.get(name)
        if entry is None or "ended" in entry.fields:
            return
        if entry.fields.get("identity") == holder and entry.committed_at < looked_at - HAIR:
            self.violated(f"{holder} gave up and was swept, but its record stands")
