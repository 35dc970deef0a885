"""The queue of a simulated store: places in order of arrival, which processes take, renew and leave by messages.

Like in etcd and ZooKeeper, the places of a process belong to its session and end with it. Must not know what a lock is.
"""

from __future__ import annotations

from typing import Final

from lockstead.values import Name
from tests.simulation.world import World

SESSION_TTL: Final = 4.0
"""Seconds without a renewal after which a process's places end."""

RENEW_EVERY: Final = 1.0
"""Seconds between two renewals of a session while its process has a place."""

Session = tuple[str, int]
"""A process's name and epoch."""


class Places:
    """The places in all queues of one store. A waiter that has left or was granted never gets a place again."""

    __slots__ = ("_gone", "_renewed_at", "_waiters", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiters: dict[Name, dict[str, Session]] = {}
        self._renewed_at: dict[Session, float] = {}
        self._gone: set[str] = set()

    def take(self, name: Name, waiter_id: str, session: Session) -> None:
        """Add a place, or keep an existing one, and renew the session."""
        self.renew(session)
        if waiter_id not in self._gone:
            self._waiters.setdefault(name, {}).setdefault(waiter_id, session)

    def renew(self, session: Session) -> None:
        """Renew a session."""
        self._renewed_at[session] = self._world.now

    def has(self, session: Session) -> bool:
        """Return whether any place belongs to a session."""
        return any(session in waiters.values() for waiters in self._waiters.values())

    def leave(self, name: Name, waiter_id: str) -> None:
        """Remove a waiter permanently."""
        self._gone.add(waiter_id)
        self._waiters.get(name, {}).pop(waiter_id, None)

    def first(self, name: Name) -> str | None:
        """Return the first waiter; None if there is none."""
        waiters = self._waiters.get(name)
        if not waiters:
            return None
        oldest = self._world.now - SESSION_TTL
        for waiter_id, session in list(waiters.items()):
            if self._renewed_at[session] > oldest:
                return waiter_id
            del waiters[waiter_id]
        return None

    def is_turn(self, name: Name, waiter_id: str) -> bool:
        """Return whether no other waiter is before this one."""
        return self.first(name) in (None, waiter_id)
