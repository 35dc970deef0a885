"""The state machine of a lease in the process that holds it: a transition table, and the arithmetic of renewal rounds.

The keeper, a renewal's answer, the task code and an operator all act on a lease, so its transitions are a table. No
event leads out of LOST: a late renewal never revives a lease. Must not know threads or clocks: every instant is an
argument, in seconds on the holder's boot clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from lockstead.errors import LossReason, StoreError
from lockstead.protocol.context import LeaseId
from lockstead.renewal import may_renew_early, renewal_due_at, retry_after
from lockstead.settings import Settings
from lockstead.values import EXCLUSIVE, SHARED, PreviousLease


class State(Enum):
    """State of a lease in this process."""

    HELD = "held"
    LEAVING = "being released or detached: the task code has ended and the lease is no longer used"
    LEFT = "released, detached or left to expire"
    LOST = "may no longer be ours"

    # members are singletons, and every step looks one up in the table: hashing by identity takes a tenth of the time
    __hash__ = object.__hash__


class Event(Enum):
    """What can happen to a lease."""

    RENEWED = "a renewal succeeded"
    LOSE = "the loss is certain, or the abort margin has begun"
    LEAVE = "the task code has ended"
    LEFT = "the release has ended, in whatever way"

    __hash__ = object.__hash__  # as for `State`


TABLE: Final[dict[tuple[State, Event], State]] = {
    (State.HELD, Event.RENEWED): State.HELD,
    (State.HELD, Event.LOSE): State.LOST,
    (State.HELD, Event.LEAVE): State.LEAVING,
    (State.HELD, Event.LEFT): State.LEFT,
    (State.LEAVING, Event.RENEWED): State.LEAVING,
    (State.LEAVING, Event.LOSE): State.LEAVING,
    (State.LEAVING, Event.LEAVE): State.LEAVING,
    (State.LEAVING, Event.LEFT): State.LEFT,
    (State.LEFT, Event.RENEWED): State.LEFT,
    (State.LEFT, Event.LOSE): State.LEFT,
    (State.LEFT, Event.LEAVE): State.LEFT,
    (State.LEFT, Event.LEFT): State.LEFT,
    (State.LOST, Event.RENEWED): State.LOST,
    (State.LOST, Event.LOSE): State.LOST,
    (State.LOST, Event.LEAVE): State.LOST,
    (State.LOST, Event.LEFT): State.LOST,
}


class Action(Enum):
    """What the keeper has to do for a lease now."""

    NOTHING = "nothing is due"
    RENEW = "send a renewal"
    NOTIFY_LOSS = "notify the loss"


@dataclass(slots=True)
class LeaseState:
    """One lease in one process. Changed only by its methods and `keeping`; read freely.

    deadline: until when the lease is valid without a renewal; for a member the earlier of the record's and its
    registration's. jitter: in [0, 1), fixed. renewal_sent_at: when the last renewal was sent. shared: a ticket exists.
    unsettled: a write of the acquisition has an unknown outcome. unused: no work was done under it. heir: the owner
    that the ended record is left to. is_notified: its loss was notified. mode: "shared" for a reader; `lease` is then
    the group's, and `registration` the reader's.
    """

    lease: LeaseId
    settings: Settings
    deadline: float
    renewed_at: float
    jitter: float = 0.0
    is_owner: bool = True
    shared: bool = False
    unsettled: bool = False
    unused: bool = False
    heir: str | None = None
    token: int | None = None
    previous_lease: PreviousLease | None = None
    registration: LeaseId | None = None
    record_deadline: float = 0.0
    registration_deadline: float = 0.0
    state: State = State.HELD
    reason: LossReason | None = None
    detail: str = ""
    last_error: StoreError | None = None
    failures: int = 0
    round_started_at: float | None = None
    due_at: float = 0.0
    renewal_sent_at: float = float("-inf")
    in_flight: bool = False
    is_queued: bool = False
    is_notified: bool = False
    mode: str = EXCLUSIVE

    def __post_init__(self) -> None:
        self.record_deadline = self.record_deadline or self.deadline
        self._plan(self.renewed_at)

    @property
    def holder(self) -> str:
        """The holder in this process: a reader is not the holder of its group's record."""
        return self.lease.holder if self.registration is None or self.mode == EXCLUSIVE else self.registration.holder

    @property
    def member(self) -> str:
        """The registration of a process that was attached; empty for the owner of the lease."""
        return "" if self.is_owner or self.registration is None else self.registration.name.part

    def believes(self, now: float) -> bool:
        """Return whether the lease is held: not lost, and before its deadline. Does not depend on a live keeper."""
        return self.state is State.HELD and now < self.deadline

    @property
    def is_clean(self) -> bool:
        """Return whether the lease was not lost: a term that its leader ended counts as released."""
        return self.reason in (None, LossReason.ENDED)

    @property
    def is_over(self) -> bool:
        """Return whether this process has released or lost the lease."""
        return self.state in (State.LEFT, State.LOST)

    @property
    def notify_at(self) -> float:
        """The latest instant at which the loss is notified, whatever is in flight."""
        return self.deadline - self.settings.abort_margin

    def wake_at(self) -> float:
        """Return the instant of the next action; infinity if there is none."""
        if self.state is not State.HELD:
            return float("inf")
        due = self.notify_at
        if not self.in_flight:
            due = min(due, self.due_at)
        if self.round_started_at is not None:
            due = min(due, self.round_started_at + self.settings.renew_every)
        return due

    def next_action(self, now: float) -> Action:
        """Return what is due, and count a round that passed without success.

        A round without an attempt is not counted: a process that was stopped must not blame the store.
        """
        if self.state is not State.HELD:
            return Action.NOTHING
        if now >= self.notify_at:
            return Action.NOTIFY_LOSS if self.lose(LossReason.EXPIRED) else Action.NOTHING
        if self.round_started_at is not None and now >= self.round_started_at + self.settings.renew_every:
            self.failures += 1
            # a queued renewal is not the store's failure: the next round begins when it is sent
            self.round_started_at = now if self.in_flight and not self.is_queued else None
            if self.failures >= self.settings.max_failures:
                return Action.NOTIFY_LOSS if self.lose(LossReason.UNREACHABLE) else Action.NOTHING
        if self.in_flight or now < self.due_at:
            return Action.NOTHING
        return Action.RENEW

    def may_join(self, now: float) -> bool:
        """Return whether a renewal may be sent early, in a batch with one that is due."""
        if self.state is not State.HELD or self.in_flight:
            return False
        return may_renew_early(self.due_at - now, self.settings.renew_every)

    def queue(self) -> None:
        """Note that a renewal is queued."""
        self.in_flight = self.is_queued = True

    def sending(self, now: float) -> None:
        """Note that a renewal is sent."""
        self.in_flight, self.is_queued = True, False
        self.renewal_sent_at = now
        if self.round_started_at is None:
            self.round_started_at = now

    def renewed(self, sent_at: float, deadline: float | None, received_at: float) -> None:
        """Note a successful renewal. deadline None: the lease is closing, and a member's deadline does not change.

        An owner that is not a member and sees its lease closing is being reclaimed by a process of the same owner: it
        loses the lease at once. An answer processed after the deadline is ignored.
        """
        self.in_flight = False
        if self.state is State.HELD and received_at >= self.deadline:
            self.lose(LossReason.EXPIRED)
        if self._move(Event.RENEWED) is not State.HELD:
            return
        if deadline is None and self.registration is None:
            self.lose(LossReason.REVOKED, "a process of the same owner reclaims it")
            return
        if deadline is not None:
            self.record_deadline = max(self.record_deadline, deadline)
        self._settle()
        self.renewed_at = sent_at
        self.failures = 0
        self.round_started_at = None
        self.last_error = None
        self._plan(sent_at)

    def registered(self, deadline: float, received_at: float) -> None:
        """Note that a member's registration was renewed, or that an owner became a member."""
        if self.state is State.HELD and received_at < self.deadline:
            self.registration_deadline = max(self.registration_deadline, deadline)
            self._settle()

    def downgraded(self) -> None:
        """Note that this process is a reader from now on. Called before the record is changed, with a registration."""
        self.mode = SHARED

    def failed(self, now: float, error: StoreError) -> None:
        """Note a failed renewal: state and deadline do not change, another attempt is planned."""
        self.in_flight = self.is_queued = False
        self.last_error = error
        self.due_at = now + retry_after(self.settings.ttl)

    def lose(self, reason: LossReason, detail: str = "") -> bool:
        """Note the loss. Returns True exactly once: to the caller that has to report it."""
        was = self.state
        if self._move(Event.LOSE) is State.LOST and was is not State.LOST:
            self.reason, self.detail = reason, detail
            return True
        return False

    def leave(self) -> bool:
        """End the use of the lease, and so its renewals; return False if it was not held."""
        was = self.state
        return self._move(Event.LEAVE) is State.LEAVING and was is State.HELD

    def left(self) -> None:
        """Note that the release has ended, in whatever way."""
        self._move(Event.LEFT)

    def _move(self, event: Event) -> State:
        self.state = TABLE[self.state, event]
        return self.state

    def _plan(self, sent_at: float) -> None:
        settings = self.settings
        self.due_at = renewal_due_at(sent_at, self.renewal_sent_at, settings.renew_every, settings.ttl, self.jitter)

    def _settle(self) -> None:
        self.deadline = self.record_deadline
        if self.registration is not None:
            self.deadline = min(self.deadline, self.registration_deadline)
