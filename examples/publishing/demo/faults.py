"""The faults of the demo, chosen by a seed: which of three is killed and which is paused, where, and at which phase.

Pure. Six consecutive seeds cover each of the six pairs once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations

from examples.publishing.events import Event, EventKind
from examples.publishing.runner import FORMATS

KILLED_BEFORE = ("copy", "metadata", "seal")
"""Before this phase the version is half written, for the next holder to remove."""

PAUSED_BEFORE = ("metadata", "seal", "commit")
"""Before the last of these only one write is missing."""


class Part(StrEnum):
    """The fault that happens to a run."""

    KILLED = "killed"
    PAUSED = "paused"
    UNHARMED = "unharmed"


@dataclass(frozen=True, slots=True)
class Moment:
    """The repository, and the phase before which it happens."""

    repository: str
    phase: str

    @property
    def key(self) -> str:
        """Return its key in `Pace.before`."""
        return f"{self.repository}/{self.phase}"

    def is_reached(self, event: Event) -> bool:
        """Return whether this event says that a run is there."""
        return event.what is EventKind.PHASE and (event.repository, event.phase) == (self.repository, self.phase)

    def __str__(self) -> str:
        return f"{self.repository}, before {self.phase!r}"


@dataclass(frozen=True, slots=True)
class Faults:
    """Who is killed and who is paused, and when; never the same one."""

    killed: str
    killed_at: Moment
    paused: str
    paused_at: Moment

    @classmethod
    def of(cls, seed: int, names: Sequence[str]) -> Faults:
        """Choose them by a seed; ValueError for fewer than two names."""
        pairs = list(permutations(names, 2))
        if not pairs:
            raise ValueError("nobody but one is there to be harmed")
        killed, paused = pairs[seed % len(pairs)]
        dice, kinds = random.Random(seed), list(FORMATS)
        killed_at = Moment(dice.choice(kinds), dice.choice(KILLED_BEFORE))
        return cls(killed, killed_at, paused, Moment(dice.choice(kinds), dice.choice(PAUSED_BEFORE)))

    def part(self, name: str) -> Part:
        """Return the fault of a run."""
        return {self.killed: Part.KILLED, self.paused: Part.PAUSED}.get(name, Part.UNHARMED)

    def moment(self, name: str) -> Moment | None:
        """Return the moment of a run's fault; None if it has none."""
        return {self.killed: self.killed_at, self.paused: self.paused_at}.get(name)

    def __str__(self) -> str:
        return f"{self.killed} is killed ({self.killed_at}), {self.paused} is paused ({self.paused_at})"
