"""The keeper's step: which renewals are sent, what their answers change, and which losses are notified.

Pure: no clock, thread, socket or dice. It is given the time and what happened, and returns what must be done; the
caller does that outside every lock. The engine's keeper and the simulator both run this class.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from lockstead.errors import LossReason, StoreError
from lockstead.protocol.lifecycle import Duty, State, Tenure
from lockstead.protocol.members import Attached, MemberRenewed
from lockstead.protocol.renew import Over, Renewed
from lockstead.protocol.schedule import RenewalSchedule

DROPPED_FOR: Final = 0.2
"""Seconds for which nothing has to refer to a lease until it is abandoned: the collector first clears what refers to
it, and only then closes the block that gives it back."""

Outcome: TypeAlias = Renewed | MemberRenewed | Over | StoreError
"""How a renewal ended."""


class HasTenure(Protocol):
    """A lease as the one who runs the step refers to it, perhaps weakly."""

    @property
    def tenure(self) -> Tenure:
        """The lease's life in this process."""
        ...


K = TypeVar("K", bound=HasTenure)


@dataclass(slots=True)
class SendNext(Generic[K]):
    """Have a worker send the renewal of the queued lease that has least time left; `kept` was queued for it."""

    kept: K


@dataclass(slots=True)
class SendBatch(Generic[K]):
    """Have a worker send these renewals in one request. limit: seconds for it."""

    batch: list[K]
    limit: float


@dataclass(slots=True)
class NotifyLoss(Generic[K]):
    """Notify everybody concerned of the loss; `Keeping.may_notify` says whether that was done before."""

    kept: K


@dataclass(slots=True)
class ReportAbandoned(Generic[K]):
    """Report that nothing refers to a lease any more, so that it is left to expire."""

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

    batch_max: renewals that the store takes in one request, 1 if it does not batch. An exception raised in a method, by
    an interrupt for instance, leaves every lease either as it was or in a state that the next `round` continues from.
    """

    __slots__ = ("_by_holder", "_count", "_found", "_kept", "_orphans", "_queue", "_schedule", "batch_max")

    def __init__(self, batch_max: int = 1) -> None:
        self.batch_max = batch_max
        self._schedule = RenewalSchedule()
        self._kept: dict[int, K] = {}
        self._by_holder: dict[str, K] = {}
        self._queue: list[tuple[float, int, K]] = []
        """A heap of what is due and was not sent yet: the lease that has least time left goes first."""
        self._orphans: dict[int, tuple[float, K]] = {}
        """What nothing refers to any more, and when it is abandoned; in this order."""
        self._found: deque[K] = deque()
        """Leases that may be lost, found so by others than the step."""
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        return iter([*self._kept.values()])

    def of(self, tenure: Tenure) -> K | None:
        """Return what is kept for a tenure."""
        return self._kept.get(id(tenure))

    def of_holder(self, holder: str) -> K | None:
        """Return what is kept for a holder: its newest lease."""
        return self._by_holder.get(holder)

    def wake_at(self) -> float:
        """Return the instant at which the next round is due; infinity if none is."""
        orphans = next(iter(self._orphans.values()), None)
        return min(self._schedule.wake_at(), float("inf") if orphans is None else orphans[0])

    # --- leases come and go --------------------------------------------------------------------------------------

    def keep(self, kept: K) -> float:
        """Renew a lease from now on, also one that was orphaned; return the instant at which it is due."""
        tenure = kept.tenure
        self._kept[id(tenure)] = self._by_holder[tenure.lease.holder] = kept
        self._orphans.pop(id(tenure), None)
        return self._schedule.plan(tenure)

    def registered(self, tenure: Tenure, joined: Attached, now: float) -> None:
        """An owner that works beside members became one too: the earlier deadline counts."""
        tenure.registration = joined.registration
        tenure.registered(joined.registration_deadline, now)
        if id(tenure) in self._kept:
            self._schedule.plan(tenure)

    def leave(self, kept: K, now: float) -> bool:
        """End the renewing; True if the lease was held until this instant. If its deadline has passed, it is lost."""
        tenure = kept.tenure
        if tenure.state is State.HELD and not tenure.believes(now):
            self.lose(kept, LossReason.EXPIRED)
        was_held = tenure.leave()
        self._drop(tenure)
        return was_held

    def lose(self, kept: K, reason: LossReason, detail: str = "") -> bool:
        """Note a loss that was found elsewhere; True if it was not lost before. The next round notifies it."""
        # noted first: the caller may be interrupted before the end of this
        self._found.append(kept)
        is_lost = kept.tenure.lose(reason, detail)
        if is_lost:
            self._drop(kept.tenure)
        return is_lost

    def orphaned(self, kept: K, now: float) -> None:
        """Nothing refers to a lease any more. It is abandoned after a moment, unless it is kept again until then."""
        tenure = kept.tenure
        if self._kept.get(id(tenure)) is kept:
            self._schedule.drop(tenure)
            self._orphans[id(tenure)] = now + DROPPED_FOR, kept

    def leave_all(self, spared: Container[int]) -> list[K]:
        """Leave all leases to expire but those whose tenures' ids are spared; return which."""
        left = [one for number, one in self._kept.items() if number not in spared]
        for one in left:
            one.tenure.leave()
            one.tenure.left()
            self._drop(one.tenure)
        return left

    def _drop(self, tenure: Tenure) -> None:
        kept = self._kept.pop(id(tenure), None)
        if kept is not None:
            self._orphans.pop(id(tenure), None)
            self._schedule.drop(tenure)
            if self._by_holder.get(tenure.lease.holder) is kept:
                del self._by_holder[tenure.lease.holder]

    # --- the step ------------------------------------------------------------------------------------------------

    def round(self, now: float, actions: list[KeeperAction[K]]) -> None:
        """Add what must be done at this instant to the actions. If it raises, those added until then still hold."""
        while self._found:
            found = self._found.popleft()
            if found.tenure.state is State.LOST:
                actions.append(NotifyLoss(found))
        self._abandon(now, actions)
        due: list[K] = []
        for tenure in self._schedule.due(now):
            kept = self._kept[id(tenure)]
            match tenure.duty(now):
                case Duty.RENEW:
                    tenure.queue()
                    due.append(kept)
                case Duty.NOTIFY_LOSS:
                    self._drop(tenure)
                    actions.append(NotifyLoss(kept))
                    continue
                case Duty.NOTHING:
                    pass
            self._schedule.plan(tenure)
        if due:
            self._send(due, now, actions)

    def _abandon(self, now: float, actions: list[KeeperAction[K]]) -> None:
        for at, kept in [*self._orphans.values()]:
            if at > now:
                break
            self._drop(kept.tenure)
            if kept.tenure.leave():
                kept.tenure.left()
                actions.append(ReportAbandoned(kept))

    def _send(self, due: list[K], now: float, actions: list[KeeperAction[K]]) -> None:
        """Have renewals sent; to a store that batches in one request, with those that are due soon."""
        if self.batch_max == 1:
            for kept in due:
                heapq.heappush(self._queue, (kept.tenure.deadline, next(self._count), kept))
                actions.append(SendNext(kept))
            return
        if len(self._kept) > len(due):
            # renewed a little early, leases that were acquired at different times come to be renewed together
            for number, kept in self._kept.items():
                if kept.tenure.may_join(now) and number not in self._orphans:
                    kept.tenure.queue()
                    self._schedule.plan(kept.tenure)
                    due.append(kept)
        # leases of one limit in each: where a short one stands beside a thousand long ones, its limit is not for all
        alike: dict[float, list[K]] = {}
        for kept in sorted(due, key=lambda one: one.tenure.deadline):
            alike.setdefault(kept.tenure.settings.request_timeout, []).append(kept)
        for limit, together in alike.items():
            for first in range(0, len(together), self.batch_max):
                actions.append(SendBatch(together[first : first + self.batch_max], limit))

    def take_queued(self) -> K | None:
        """Take out the queued lease that has least time left; `sending` says whether it is still to be renewed."""
        return heapq.heappop(self._queue)[2] if self._queue else None

    def sending(self, tenure: Tenure, now: float) -> bool:
        """Note that a renewal is sent at this instant; False if it must not be sent any more."""
        if not tenure.is_queued:
            return False
        if not tenure.believes(now) or id(tenure) in self._orphans:
            tenure.in_flight = tenure.is_queued = False
            return False
        tenure.sending(now)
        self._schedule.plan(tenure)
        return True

    def not_sent(self, tenure: Tenure, error: StoreError, now: float) -> None:
        """A queued renewal could not be sent: that counts as an attempt that failed."""
        if tenure.is_queued:
            tenure.failed(now, error)
            self._replan(tenure)

    def answered(self, kept: K, outcome: Outcome, now: float, *, is_ours: bool = True) -> KeeperAction[K] | None:
        """A renewal ended. is_ours: it was sent for the step, and not by somebody beside it."""
        tenure = kept.tenure
        in_flight, was_held = tenure.in_flight, tenure.state is State.HELD
        _apply(tenure, outcome, now)
        if not is_ours:
            tenure.in_flight = in_flight
        self._replan(tenure)
        if not was_held:
            return None
        if tenure.state is State.LOST:
            return NotifyLoss(kept)
        if isinstance(outcome, StoreError):
            return ReportFailed(kept, outcome, tenure.deadline - now)
        return ReportRenewed(kept, tenure.deadline)

    def _replan(self, tenure: Tenure) -> None:
        if tenure.state is not State.HELD or id(tenure) not in self._kept:
            self._drop(tenure)
        elif id(tenure) not in self._orphans:
            self._schedule.plan(tenure)

    def may_notify(self, tenure: Tenure) -> bool:
        """Whether the loss is to be notified now: True once for each lease."""
        was_notified, tenure.is_notified = tenure.is_notified, True
        return not was_notified

    def recover(self) -> None:
        """After a fault of our own in a round: forget no lease, and queue anew what may not have been handed on."""
        for number, kept in self._kept.items():
            tenure = kept.tenure
            if tenure.is_queued:
                tenure.in_flight = tenure.is_queued = False
            if number not in self._orphans:
                self._schedule.plan(tenure)


def _apply(tenure: Tenure, outcome: Outcome, now: float) -> None:
    match outcome:
        case StoreError():
            tenure.failed(now, outcome)
        case Over():
            tenure.in_flight = False
            tenure.lose(outcome.reason, outcome.detail)
        case MemberRenewed():
            tenure.registered(outcome.registration_deadline, now)
            tenure.renewed(outcome.sent_at, outcome.record_deadline, now)
        case Renewed():
            tenure.renewed(outcome.sent_at, outcome.deadline, now)
