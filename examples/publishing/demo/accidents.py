"""Decides, from a seed, who of three is killed in mid-section and who is paused, in which repository, at which phase.

Pure. Six seeds in a row harm each of the six pairs once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations

from examples.publishing.events import Event, What
from examples.publishing.runner import FORMATS

KILLED_BEFORE = ("copy", "metadata", "seal")
"""A version is half written then, for the next holder to clear away."""

PAUSED_BEFORE = ("metadata", "seal", "commit")
"""The last of them is one write from readers."""


class Part(StrEnum):
    """What becomes of one who publishes."""

    KILLED = "killed"
    PAUSED = "paused"
    UNHARMED = "unharmed"


@dataclass(frozen=True, slots=True)
class Moment:
    """In which repository, and before which phase, it happens."""

    repository: str
    phase: str

    @property
    def key(self) -> str:
        """How `Pace.before` names it."""
        return f"{self.repository}/{self.phase}"

    def is_reached(self, event: Event) -> bool:
        """Return whether a run that says this is there."""
        return event.what is What.PHASE and (event.repository, event.phase) == (self.repository, self.phase)

    def __str__(self) -> str:
        return f"{self.repository}, before {self.phase!r}"


@dataclass(frozen=True, slots=True)
class Accidents:
    """Who is harmed, and when; killed and paused are not the same."""

    killed: str
    killed_at: Moment
    paused: str
    paused_at: Moment

    @classmethod
    def of(cls, seed: int, names: Sequence[str]) -> Accidents:
        """Draw them from a seed; ValueError for fewer than two names."""
        pairs = list(permutations(names, 2))
        if not pairs:
            raise ValueError("nobody but one is there to be harmed")
        killed, paused = pairs[seed % len(pairs)]
        dice, kinds = random.Random(seed), list(FORMATS)
        killed_at = Moment(dice.choice(kinds), dice.choice(KILLED_BEFORE))
        return cls(killed, killed_at, paused, Moment(dice.choice(kinds), dice.choice(PAUSED_BEFORE)))

    def part(self, name: str) -> Part:
        """Tell what becomes of somebody."""
        return {self.killed: Part.KILLED, self.paused: Part.PAUSED}.get(name, Part.UNHARMED)

    def moment(self, name: str) -> Moment | None:
        """Tell when; None for who is not harmed."""
        return {self.killed: self.killed_at, self.paused: self.paused_at}.get(name)

    def __str__(self) -> str:
        return f"{self.killed} is killed ({self.killed_at}), {self.paused} is paused ({self.paused_at})"
