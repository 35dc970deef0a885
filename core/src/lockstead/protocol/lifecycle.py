"""What becomes of a lease in the process that holds it: a table of states, and the arithmetic of its rounds.

Several actors push a lease (the keeper, a renewal's answer, the body, an operator's word), so its life is a table.
LOST absorbs everything: a renewal that succeeds late never revives a lease. Must not know threads or clocks: every
instant is handed in, in seconds on the holder's boot clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from lockstead.errors import LossReason, StoreError
from lockstead.protocol.context import LeaseId
from lockstead.renewal import may_renew_early, renewal_due_at, retry_after
from lockstead.settings import Settings
from lockstead.values import PreviousLease


class State(Enum):
    """Where a lease stands in this process."""

    HELD = "held"
    LEAVING = "being released or detached: the body is over and nobody here believes any more"
    LEFT = "released, detached or left to expire"
    LOST = "may no longer be ours"

    # a member is one object, and every step looks it up in the table: by identity that costs a tenth
    __hash__ = object.__hash__


class Event(Enum):
    """What can happen to a lease."""

    RENEWED = "a renewal succeeded"
    LOSE = "the loss became certain, or the margin for the abort has come"
    LEAVE = "the body is over"
    LEFT = "the giving back has ended, however"

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
    """What a keeper owes a lease at an instant."""

    NOTHING = "nothing is due"
    RENEW = "send a renewal"
    NOTIFY_LOSS = "tell the loss"


@dataclass(slots=True)
class LeaseState:
    """One lease's life in one process. Moves only through its methods; read freely.

    deadline is the end of the belief: for a member the earlier of the record's and its registration's. jitter is in
    [0, 1) and fixed. renewal_sent_at: when the last renewal was sent. shared: a ticket was ever made. unsettled: an
    acquisition with an unknown outcome. unused: nobody works or ever worked under it. is_notified: its loss was.
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

    def __post_init__(self) -> None:
        self.record_deadline = self.record_deadline or self.deadline
        self._plan(self.renewed_at)

    def believes(self, now: float) -> bool:
        """Return whether the lease is held: not lost, and before its deadline. Never "the keeper is alive"."""
        return self.state is State.HELD and now < self.deadline

    @property
    def notify_at(self) -> float:
        """The instant at which the loss is told at the latest, whatever is in flight."""
        return self.deadline - self.settings.abort_margin

    def wake_at(self) -> float:
        """Return the instant at which something is due next; infinity once the keeper owes nothing more."""
        if self.state is not State.HELD:
            return float("inf")
        due = self.notify_at
        if not self.in_flight:
            due = min(due, self.due_at)
        if self.round_started_at is not None:
            due = min(due, self.round_started_at + self.settings.renew_every)
        return due

    def next_action(self, now: float) -> Action:
        """Say what is due, and count a round that went by without success.

        A round that nobody tried in is not counted: a process that was stopped must not blame the store.
        """
        if self.state is not State.HELD:
            return Action.NOTHING
        if now >= self.notify_at:
            return Action.NOTIFY_LOSS if self.lose(LossReason.EXPIRED) else Action.NOTHING
        if self.round_started_at is not None and now >= self.round_started_at + self.settings.renew_every:
            self.failures += 1
            # a renewal that waits to be sent is nobody's fault but ours: the next round begins when it is sent
            self.round_started_at = now if self.in_flight and not self.is_queued else None
            if self.failures >= self.settings.max_failures:
                return Action.NOTIFY_LOSS if self.lose(LossReason.UNREACHABLE) else Action.NOTHING
        if self.in_flight or now < self.due_at:
            return Action.NOTHING
        return Action.RENEW

    def may_join(self, now: float) -> bool:
        """Return whether a renewal may go out early, in a batch with one that is due."""
        if self.state is not State.HELD or self.in_flight:
            return False
        return may_renew_early(self.due_at - now, self.settings.renew_every)

    def queue(self) -> None:
        """A renewal is to go out as soon as it can."""
        self.in_flight = self.is_queued = True

    def sending(self, now: float) -> None:
        """A renewal goes out."""
        self.in_flight, self.is_queued = True, False
        self.renewal_sent_at = now
        if self.round_started_at is None:
            self.round_started_at = now

    def renewed(self, sent_at: float, deadline: float | None, received_at: float) -> None:
        """A renewal came back good. deadline None: the lease is closing, a member's deadline stands.

        Who works under a lease that others may close is a member of it. An owner that is none and sees it closing is
        being taken for dead by a process of the same name (reclaim): it stops at once, and extends nothing any more.
        An answer processed after the deadline is ignored: once past, the belief is over for good.
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
        """A member's registration was renewed, or an owner that shares its lease registered as a member."""
        if self.state is State.HELD and received_at < self.deadline:
            self.registration_deadline = max(self.registration_deadline, deadline)
            self._settle()

    def failed(self, now: float, error: StoreError) -> None:
        """A renewal came back with nothing known: state and deadline do not move, another attempt is planned."""
        self.in_flight = self.is_queued = False
        self.last_error = error
        self.due_at = now + retry_after(self.settings.ttl)

    def lose(self, reason: LossReason, detail: str = "") -> bool:
        """Note the loss. Return True exactly once: to the caller that has to report it."""
        was = self.state
        if self._move(Event.LOSE) is State.LOST and was is not State.LOST:
            self.reason, self.detail = reason, detail
            return True
        return False

    def leave(self) -> bool:
        """The body is over: the belief ends here, and no renewal is sent any more. False if it was over before."""
        was = self.state
        return self._move(Event.LEAVE) is State.LEAVING and was is State.HELD

    def left(self) -> None:
        """The giving back has ended, however."""
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
