"""Renewal schedule: when the next action of each lease of a client is due. Pure: the time is an argument.

One heap entry per lease; the lease's `wake_at` determines the instant.
"""

from __future__ import annotations

import heapq
import itertools

from lockstead.protocol.lifecycle import LeaseState


class RenewalSchedule:
    """Leases by the instant at which something is due next. Not safe to share between threads."""

    __slots__ = ("_count", "_heap", "_planned")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LeaseState]] = []
        self._planned: dict[int, tuple[float, int]] = {}
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._planned)

    def plan(self, lease_state: LeaseState) -> float:
        """Schedule or reschedule a lease at its `wake_at`; return that instant."""
        at = lease_state.wake_at()
        known = self._planned.get(id(lease_state))
        if known is not None and known[0] == at:
            return at
        if at == float("inf"):
            self.drop(lease_state)
            return at
        number = next(self._count)
        self._planned[id(lease_state)] = (at, number)
        heapq.heappush(self._heap, (at, number, lease_state))
        return at

    def drop(self, lease_state: LeaseState) -> None:
        """Remove a lease from the schedule."""
        self._planned.pop(id(lease_state), None)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._planned):
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def wake_at(self) -> float:
        """Return the instant of the first action; infinity if there is none."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> list[LeaseState]:
        """Remove and return every lease that is due. The caller acts, then plans each again."""
        ready = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                del self._planned[id(entry[2])]
                ready.append(entry[2])
        return ready

    def _is_current(self, entry: tuple[float, int, LeaseState]) -> bool:
        known = self._planned.get(id(entry[2]))
        return known is not None and known[1] == entry[1]
