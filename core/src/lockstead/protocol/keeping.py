"""The decisions of the keeper: which renewals are sent, what their answers change, and which losses are notified.

Pure: no clock, thread, socket or random numbers. Time and events are arguments, and the actions are returned; the
caller performs them outside every lock. The engine's keeper and the simulator both run this class.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from lockstead.errors import LossReason, StoreError
from lockstead.protocol.acquire import AcquireRequest, Grant
from lockstead.protocol.lifecycle import Action, LeaseState, State
from lockstead.protocol.members import Attached, MemberRenewed
from lockstead.protocol.renew import Over, Renewed
from lockstead.protocol.schedule import RenewalSchedule
from lockstead.settings import Settings
from lockstead.values import SHARED

DROPPED_FOR: Final = 0.2
"""Seconds without a reference to a lease until it is abandoned: the garbage collector first clears the references, and
only then closes the generator whose block releases the lease."""

Outcome: TypeAlias = Renewed | MemberRenewed | Over | StoreError
"""How a renewal ended."""


class HasLeaseState(Protocol):
    """The caller's reference to a lease, which may be weak."""

    @property
    def lease_state(self) -> LeaseState:
        """The lease's state in this process."""
        ...


K = TypeVar("K", bound=HasLeaseState)


@dataclass(slots=True)
class SendNext(Generic[K]):
    """Have a worker send the renewal of the queued lease with least time left; `kept` was queued for it."""

    kept: K


@dataclass(slots=True)
class SendBatch(Generic[K]):
    """Have a worker send these renewals in one request. limit: seconds for it."""

    batch: list[K]
    limit: float


@dataclass(slots=True)
class NotifyLoss(Generic[K]):
    """Notify the loss, unless `Keeping.may_notify` returns False."""

    kept: K


@dataclass(slots=True)
class ReportAbandoned(Generic[K]):
    """Report that a lease is no longer referenced, so that it is left to expire."""

    kept: K


@dataclass(slots=True)
class ReportRenewed(Generic[K]):
    """Report a renewal that succeeded."""

    kept: K
    deadline: float


@dataclass(slots=True)
class ReportFailed(Generic[K]):
    """Report a renewal that failed. left: seconds until the lease's deadline."""

    kept: K
    error: StoreError
    left: float


KeeperAction: TypeAlias = (
    SendNext[K] | SendBatch[K] | NotifyLoss[K] | ReportAbandoned[K] | ReportRenewed[K] | ReportFailed[K]
)


class Keeping(Generic[K]):
    """All leases of a client that are renewed. Not safe to share between threads.

    batch_max: maximum renewals in one request to the store, 1 if it does not batch. An exception raised in a method, by
    an interrupt for instance, leaves every lease either as it was or in a state from which the next `round` continues.
    """

    __slots__ = ("_by_holder", "_count", "_found", "_kept", "_orphans", "_queue", "_schedule", "batch_max")

    def __init__(self, batch_max: int = 1) -> None:
        self.batch_max = batch_max
        self._schedule = RenewalSchedule()
        self._kept: dict[int, K] = {}
        self._by_holder: dict[str, K] = {}
        self._queue: list[tuple[float, int, K]] = []
        """A heap of due renewals that were not sent yet: the lease with the least time left is first."""
        self._orphans: dict[int, tuple[float, K]] = {}
        """Leases without references, with the instant at which each is abandoned; in this order."""
        self._found: deque[K] = deque()
        """Leases that may be lost, found outside the step."""
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        return iter([*self._kept.values()])

    def of(self, lease_state: LeaseState) -> K | None:
        """Return the reference that is kept for a lease."""
        return self._kept.get(id(lease_state))

    def of_holder(self, holder: str) -> K | None:
        """Return the reference that is kept for a holder's newest lease."""
        return self._by_holder.get(holder)

    def wake_at(self) -> float:
        """Return the instant at which the next round is due; infinity if none is."""
        orphans = next(iter(self._orphans.values()), None)
        return min(self._schedule.wake_at(), float("inf") if orphans is None else orphans[0])

    # --- adding and removing leases ------------------------------------------------------------------------------

    def keep(self, kept: K) -> float:
        """Renew a lease from now on, even if it was orphaned; return the instant at which it is due."""
        lease_state = kept.lease_state
        self._kept[id(lease_state)] = self._by_holder[lease_state.holder] = kept
        self._orphans.pop(id(lease_state), None)
        return self._schedule.plan(lease_state)

    def registered(self, lease_state: LeaseState, joined: Attached, now: float) -> None:
        """Note that an owner became a member too: the earlier deadline counts."""
        lease_state.registration = joined.registration
        lease_state.registered(joined.registration_deadline, now)
        if id(lease_state) in self._kept:
            self._schedule.plan(lease_state)

    def leave(self, kept: K, now: float) -> bool:
        """End the renewals; return whether the lease was held until now. If its deadline has passed, it is lost."""
        lease_state = kept.lease_state
        if lease_state.state is State.HELD and not lease_state.believes(now):
            self.lose(kept, LossReason.EXPIRED)
        was_held = lease_state.leave()
        self._drop(lease_state)
        return was_held

    def lose(self, kept: K, reason: LossReason, detail: str = "") -> bool:
        """Note a loss that was found outside the step; True if it is new. The next round notifies it."""
        # first: the caller may be interrupted before the end of this method
        self._found.append(kept)
        is_lost = kept.lease_state.lose(reason, detail)
        if is_lost:
            self._drop(kept.lease_state)
        return is_lost

    def orphaned(self, kept: K, now: float) -> None:
        """Note that a lease has no references: it is abandoned after `DROPPED_FOR`, unless it is kept again."""
        lease_state = kept.lease_state
        if self._kept.get(id(lease_state)) is kept:
            self._schedule.drop(lease_state)
            self._orphans[id(lease_state)] = now + DROPPED_FOR, kept

    def leave_all(self, spared: Container[int]) -> list[K]:
        """Leave all leases to expire except those whose ids are spared; return them."""
        left = [one for number, one in self._kept.items() if number not in spared]
        for one in left:
            one.lease_state.leave()
            one.lease_state.left()
            self._drop(one.lease_state)
        return left

    def _drop(self, lease_state: LeaseState) -> None:
        kept = self._kept.pop(id(lease_state), None)
        if kept is not None:
            self._orphans.pop(id(lease_state), None)
            self._schedule.drop(lease_state)
            if self._by_holder.get(lease_state.holder) is kept:
                del self._by_holder[lease_state.holder]

    # --- the step ------------------------------------------------------------------------------------------------

    def round(self, now: float, actions: list[KeeperAction[K]]) -> None:
        """Append what must be done at this instant to the actions. If it raises, those appended before still apply."""
        while self._found:
            found = self._found.popleft()
            if found.lease_state.state is State.LOST:
                actions.append(NotifyLoss(found))
        self._abandon(now, actions)
        due: list[K] = []
        for lease_state in self._schedule.due(now):
            kept = self._kept[id(lease_state)]
            match lease_state.next_action(now):
                case Action.RENEW:
                    lease_state.queue()
                    due.append(kept)
                case Action.NOTIFY_LOSS:
                    self._drop(lease_state)
                    actions.append(NotifyLoss(kept))
                    continue
                case Action.NOTHING:
                    pass
            self._schedule.plan(lease_state)
        if due:
            self._send(due, now, actions)

    def _abandon(self, now: float, actions: list[KeeperAction[K]]) -> None:
        for at, kept in [*self._orphans.values()]:
            if at > now:
                break
            self._drop(kept.lease_state)
            if kept.lease_state.leave():
                kept.lease_state.left()
                actions.append(ReportAbandoned(kept))

    def _send(self, due: list[K], now: float, actions: list[KeeperAction[K]]) -> None:
        """Add actions that send the due renewals; if the store batches, in one request with those that are due soon."""
        if self.batch_max == 1:
            for kept in due:
                heapq.heappush(self._queue, (kept.lease_state.deadline, next(self._count), kept))
                actions.append(SendNext(kept))
            return
        if len(self._kept) > len(due):
            # renewing a little early brings leases that were acquired at different times into one batch
            for number, kept in self._kept.items():
                if kept.lease_state.may_join(now) and number not in self._orphans:
                    kept.lease_state.queue()
                    self._schedule.plan(kept.lease_state)
                    due.append(kept)
        # batches of equal limits: a single short limit must not apply to a thousand leases with long ones
        alike: dict[float, list[K]] = {}
        for kept in sorted(due, key=lambda one: one.lease_state.deadline):
            alike.setdefault(kept.lease_state.settings.request_timeout, []).append(kept)
        for limit, together in alike.items():
            for first in range(0, len(together), self.batch_max):
                actions.append(SendBatch(together[first : first + self.batch_max], limit))

    def take_queued(self) -> K | None:
        """Remove and return the queued lease with the least time left; None if there is none.

        `sending` returns whether it must still be renewed.
        """
        return heapq.heappop(self._queue)[2] if self._queue else None

    def sending(self, lease_state: LeaseState, now: float) -> bool:
        """Note that a renewal is sent now; return False if it must no longer be sent."""
        if not lease_state.is_queued:
            return False
        if not lease_state.believes(now) or id(lease_state) in self._orphans:
            lease_state.in_flight = lease_state.is_queued = False
            return False
        lease_state.sending(now)
        self._schedule.plan(lease_state)
        return True

    def not_sent(self, lease_state: LeaseState, error: StoreError, now: float) -> None:
        """Note that a queued renewal could not be sent, which counts as a failed attempt."""
        if lease_state.is_queued:
            lease_state.failed(now, error)
            self._replan(lease_state)

    def answered(self, kept: K, outcome: Outcome, now: float, *, is_ours: bool = True) -> KeeperAction[K] | None:
        """Note the outcome of a renewal. is_ours: the step sent it, not the lease's user."""
        lease_state = kept.lease_state
        in_flight, was_held = lease_state.in_flight, lease_state.state is State.HELD
        _apply(lease_state, outcome, now)
        if not is_ours:
            lease_state.in_flight = in_flight
        self._replan(lease_state)
        if not was_held:
            return None
        if lease_state.state is State.LOST:
            return NotifyLoss(kept)
        if isinstance(outcome, StoreError):
            return ReportFailed(kept, outcome, lease_state.deadline - now)
        return ReportRenewed(kept, lease_state.deadline)

    def _replan(self, lease_state: LeaseState) -> None:
        if lease_state.state is not State.HELD or id(lease_state) not in self._kept:
            self._drop(lease_state)
        elif id(lease_state) not in self._orphans:
            self._schedule.plan(lease_state)

    def may_notify(self, lease_state: LeaseState) -> bool:
        """Return whether to notify the loss now: True once for each lease."""
        was_notified, lease_state.is_notified = lease_state.is_notified, True
        return not was_notified

    def recover(self) -> None:
        """Repair the state after an exception in a round: keep every lease, and plan unsent renewals again."""
        for number, kept in self._kept.items():
            lease_state = kept.lease_state
            if lease_state.is_queued:
                lease_state.in_flight = lease_state.is_queued = False
            if number not in self._orphans:
                self._schedule.plan(lease_state)


def granted(grant: Grant, request: AcquireRequest, settings: Settings, jitter: float) -> LeaseState:
    """Return the state of a lease that was just granted."""
    return LeaseState(
        lease=grant.lease,
        settings=settings,
        deadline=grant.deadline,
        renewed_at=grant.sent_at,
        jitter=jitter,
        unsettled=request.unsettled,
        token=grant.token,
        previous_lease=grant.previous_lease,
        **_of_reader(grant.joined),
    )


def _of_reader(joined: Attached | None) -> dict[str, Any]:
    return {} if joined is None else {"mode": SHARED, **_of_member(joined)}


def _of_member(joined: Attached) -> dict[str, Any]:
    return {
        "registration": joined.registration,
        "record_deadline": joined.record_deadline,
        "registration_deadline": joined.registration_deadline,
    }


def attached(joined: Attached, settings: Settings, jitter: float) -> LeaseState:
    """Return the state of a membership that was just registered."""
    return LeaseState(
        lease=joined.lease,
        settings=settings,
        deadline=min(joined.registration_deadline, joined.record_deadline),
        renewed_at=joined.sent_at,
        jitter=jitter,
        is_owner=False,
        shared=True,
        token=joined.token,
        mode=joined.mode,
        **_of_member(joined),
    )


def _apply(lease_state: LeaseState, outcome: Outcome, now: float) -> None:
    match outcome:
        case StoreError():
            lease_state.failed(now, outcome)
        case Over():
            lease_state.in_flight = False
            lease_state.lose(outcome.reason, outcome.detail)
        case MemberRenewed():
            lease_state.registered(outcome.registration_deadline, now)
            lease_state.renewed(outcome.sent_at, outcome.record_deadline, now)
        case Renewed():
            lease_state.renewed(outcome.sent_at, outcome.deadline, now)
