"""A simulated server that expires records itself, and renews all records of one server lease together.

Like etcd: a new record is attached to a server lease that its process may have renewed some time ago, and two renewals
in quick succession count as one. Must not know what fields mean, nor which process should hold the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.values import Name
from tests.simulation.store import SimulatedStore
from tests.simulation.world import BootClock, World

H = TypeVar("H", Snapshot | Conflict, Snapshot | Conflict | Absent)

ENFORCED: Final = Traits("enforced", "simulated", StoreClock.SERVER_EXPIRES, TokenSource.NATIVE)

_HANGS_ON: Final = 0.9
"""Fraction of `min_retention` after which a process's renewal is too old to attach another record to it."""

_ONE_WITH: Final = 1 / 4
"""Fraction of `min_retention` within which another renewal of the same process counts as the same as the last."""


_FOR_PEOPLE: Final = frozenset({"expires_at"})


@dataclass(frozen=True, slots=True)
class Renewal:
    """The last renewal of a process: when it was sent (process's clock), and when it arrived (store's clock)."""

    sent_at: float
    arrived_at: float


@dataclass(slots=True)
class Life:
    """The lifetime of a record after each renewal (store's seconds), and when it expires (0: never)."""

    min_retention: float
    ends_at: float


class EnforcedStore(SimulatedStore):
    """A store that expires records that are not renewed. grants_at_most: the longest lifetime it grants; 0 for any."""

    __slots__ = ("_asker", "_grants_at_most", "_lives", "_renewals", "_sent_at")

    def __init__(self, world: World, traits: Traits, clock: BootClock, grants_at_most: float = 0.0) -> None:
        super().__init__(world, traits, clock)
        self._grants_at_most = grants_at_most
        self._has_date = False
        self._lives: dict[Name, Life] = {}
        self._renewals: dict[object, Renewal] = {}
        self._asker: object = None
        self._sent_at: float | None = None

    def asked(self, command: Command[Any], waiter_id: object, sent_at: float | None) -> Any:
        """Carry out a command. sent_at: when the process sent it (its own clock); None: it no longer waits."""
        self._asker, self._sent_at = waiter_id, sent_at
        try:
            return self.perform(command)
        finally:
            self._asker = self._sent_at = None

    def perform(self, command: Command[Any]) -> Any:
        """Expire records that were not renewed in time, then carry out one command at this true instant."""
        now = self.time()
        for name in [name for name, life in self._lives.items() if 0.0 < life.ends_at <= now]:
            del self._lives[name]
            self.entries.pop(name, None)
        return super().perform(command)

    def _create(self, command: Create, now: float) -> Snapshot | Conflict:
        return self._hung(command, super()._create(command, now), now)

    def _replace(self, command: Replace, now: float) -> Snapshot | Conflict | Absent:
        return self._hung(command, super()._replace(command, now), now)

    def _extend(self, command: Extend, now: float) -> Snapshot | Conflict | Absent:
        answer = super()._extend(command, now)
        if not isinstance(answer, Snapshot):
            return answer
        if command.fields.keys() <= _FOR_PEOPLE:
            # a keep-alive does not change the record
            entry = self.entries[command.name]
            entry.revision -= 1
            answer = replace(answer, revision=str(entry.revision))
        life = self._lives[command.name]
        return self._renewed(life, answer, now, _ONE_WITH)

    def _hung(self, command: Create | Replace, answer: H, now: float) -> H | Snapshot:
        if not isinstance(answer, Snapshot):
            return answer
        life = self._lives[command.name] = Life(command.min_retention, 0.0)
        return self._renewed(life, answer, now, _HANGS_ON)

    def _renewed(self, life: Life, answer: Snapshot, now: float, young: float) -> Snapshot:
        if not life.min_retention:
            return answer
        granted = min(life.min_retention, self._grants_at_most or life.min_retention)
        lifetime = granted if granted < life.min_retention else None
        last = self._renewals.get(self._asker)
        if last is not None and now - last.arrived_at < granted * young:
            life.ends_at = max(life.ends_at, last.arrived_at + granted)
            return replace(answer, renewed_at=last.sent_at, lifetime=lifetime)
        life.ends_at = now + granted
        if self._sent_at is not None:
            self._renewals[self._asker] = Renewal(self._sent_at, now)
        return replace(answer, lifetime=lifetime)

    def erase(self, name: Name) -> None:
        """Delete a record as an administrator could."""
        self._lives.pop(name, None)
        super().erase(name)

    def _remove(self, command: Any, now: float) -> Any:
        answer = super()._remove(command, now)
        if command.name not in self.entries:
            self._lives.pop(command.name, None)
        return answer
