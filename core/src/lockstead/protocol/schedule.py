"""Who is due when: the keeper's plan for all leases of a client. Pure: it is told the time, it never waits.

One heap entry a lease; an entry that came too early is put back where the lease's own `wake_at` says.
"""

from __future__ import annotations

import heapq
import itertools

from lockstead.protocol.lifecycle import Tenure


class RenewalSchedule:
    """Tenures by the instant at which something is due next. Not safe to share between threads."""

    __slots__ = ("_count", "_heap", "_planned")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Tenure]] = []
        self._planned: dict[int, tuple[float, int]] = {}
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._planned)

    def plan(self, tenure: Tenure) -> float:
        """Put a tenure where its `wake_at` says, whether it was planned before or not; give that instant."""
        at = tenure.wake_at()
        known = self._planned.get(id(tenure))
        if known is not None and known[0] == at:
            return at
        if at == float("inf"):
            self.drop(tenure)
            return at
        number = next(self._count)
        self._planned[id(tenure)] = (at, number)
        heapq.heappush(self._heap, (at, number, tenure))
        return at

    def drop(self, tenure: Tenure) -> None:
        """Forget a tenure."""
        self._planned.pop(id(tenure), None)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._planned):
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def wake_at(self) -> float:
        """Return the instant of the first duty; infinity when there is none."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> list[Tenure]:
        """Take out every tenure whose instant has come. The caller acts, then plans each again."""
        ready = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                del self._planned[id(entry[2])]
                ready.append(entry[2])
        return ready

    def _is_current(self, entry: tuple[float, int, Tenure]) -> bool:
        known = self._planned.get(id(entry[2]))
        return known is not None and known[1] == entry[1]
