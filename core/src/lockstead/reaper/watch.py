"""What a reaper knows of the overdue leases of a store: a watcher of its rounds that collects what is to be done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lockstead.monitor.leases import leases
from lockstead.monitor.rounds import Round
from lockstead.reaper.rules import Act, LeaseRef, Noted, decide, is_live, is_overdue
from lockstead.views import LockInfo

NOTED_MAX: Final = 10_000
"""Overdue leases of a store that are followed at a time; of more only the number is told."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something to do about a lease. at: when its round began, in seconds since the epoch."""

    act: Act
    lease: LockInfo
    noted: Noted
    at: float


class Watch:
    """Collects the tasks of each round. Everything follows from the records, so a new leader starts with nothing."""

    def __init__(
        self, repeat: float, on_round: Callable[[Round], None], ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self.tasks: list[Task] = []
        self.overdue = 0
        self.is_acting = False
        self.last: Round | None = None
        self.last_whole: Round | None = None
        self._repeat = repeat
        self._on_round = on_round
        self._ticks = ticks
        self._noted: dict[LeaseRef, Noted] = {}
        self._shown: set[LeaseRef] = set()
        self._at = 0.0
        self._now = 0.0
        self._overdue = 0
        self.unnoted = 0

    def forget(self) -> None:
        """Forget what was done: somebody else may lead, or have led."""
        self._noted.clear()
        self.tasks.clear()

    def began(self, at: float) -> None:
        """Begin a round."""
        self._at, self._now, self._overdue, self.unnoted = at, self._ticks(), 0, 0
        self._shown.clear()
        self.tasks.clear()

    def saw(self, info: LockInfo) -> None:
        """Decide about each lease of an entry."""
        for lease in leases(info):
            self._overdue += is_live(lease) and is_overdue(lease, self._at)
            if self.is_acting:
                self._decide(lease)

    def _decide(self, lease: LockInfo) -> None:
        ref = LeaseRef.of(lease)
        if ref in self._shown:
            return  # a listing may show a lease twice
        noted = self._noted.get(ref)
        acts = list(decide(lease, noted, self._at, self._now, self._repeat))
        is_followed = bool(acts) or (noted is not None and (noted.is_done or is_overdue(lease, self._at)))
        if not is_followed:
            return  # progress moved the alert, or it never was overdue: the next crossing is a first one
        if noted is None and len(self._noted) >= NOTED_MAX:
            self.unnoted += 1
            return
        self._shown.add(ref)
        noted = self._noted.setdefault(ref, Noted())
        self.tasks += [Task(act, lease, noted, self._at) for act in acts]

    def alerted(self, noted: Noted) -> None:
        """Note that an alert is being delivered."""
        noted.alerts += 1
        noted.alerted_at = self._ticks()

    def ended(self, done: Round) -> None:
        """Forget the leases that a whole round did not show, and report the end."""
        self.last = done
        if done.error is None:
            self.last_whole, self.overdue = done, self._overdue
            self._noted = {ref: noted for ref, noted in self._noted.items() if ref in self._shown}
        self._on_round(done)
