"""A simulated server that expires records itself, and renews all records of one server lease together.

Like etcd: a new record is attached to a server lease that its process may have renewed some time ago, and two renewals
in quick succession count as one. Must not know which process should hold the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from lockstead.protocol.commands import (
    Command,
    Create,
    Extend,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from tests.simulation.store import Session, SimulatedStore
from tests.simulation.world import BootClock, World

EXPIRING: Final = Traits("expiring", "simulated", StoreClock.SERVER_EXPIRES, TokenSource.NATIVE)

_ATTACHABLE: Final = 0.9
"""Fraction of `min_retention` after which a process's renewal is too old to attach another record to it."""

_SAME: Final = 1 / 4
"""Fraction of `min_retention` within which another renewal of the same process counts as the same as the last."""

_DISPLAYED: Final = frozenset({"expires_at"})
"""Fields that a keep-alive does not write."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """The last renewal of a process: when it was sent (process's clock), and when it arrived (store's clock)."""

    sent_at: float
    arrived_at: float


class ExpiringStore(SimulatedStore):
    """A store that expires records that are not renewed. grants_at_most: the longest lifetime it grants; 0 for any."""

    def __init__(self, world: World, traits: Traits, clock: BootClock, grants_at_most: float = 0.0) -> None:
        super().__init__(world, traits, clock)
        self._grants_at_most = grants_at_most
        self._renewals: dict[Session | None, Renewal] = {}

    def perform(self, command: Command[Any], session: Session | None = None, sent_at: float | None = None) -> Any:
        """Expire records that were not renewed in time, then carry out one command at this true instant."""
        now = self.time()
        for name in [name for name, entry in self.entries.items() if 0.0 < entry.expires_at <= now]:
            del self.entries[name]
        reply = super().perform(command)
        if not isinstance(reply, Snapshot) or not isinstance(command, Create | Replace | Extend):
            return reply
        entry = self.entries[command.name]
        if not isinstance(command, Extend):
            entry.min_retention = command.min_retention
        elif command.fields.keys() <= _DISPLAYED:
            # a keep-alive does not change the record
            entry.revision -= 1
            reply = replace(reply, revision=str(entry.revision))
        if not entry.min_retention:
            return reply
        granted = min(entry.min_retention, self._grants_at_most or entry.min_retention)
        lifetime = granted if granted < entry.min_retention else None
        last, counts_for = self._renewals.get(session), _SAME if isinstance(command, Extend) else _ATTACHABLE
        if last is not None and now - last.arrived_at < granted * counts_for:
            entry.expires_at = max(entry.expires_at, last.arrived_at + granted)
            return replace(reply, renewed_at=last.sent_at, lifetime=lifetime)
        entry.expires_at = now + granted
        if sent_at is not None:
            self._renewals[session] = Renewal(sent_at, now)
        return replace(reply, lifetime=lifetime)
