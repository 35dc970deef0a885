"""The queue of a simulated store: places that processes take, renew and leave by messages, in the order of arrival.

As etcd and ZooKeeper keep it: places of a process hang on its session, and end with it. Must not know what a lock is.
"""

from __future__ import annotations

from typing import Final

from lockstead.testing.simulation.world import World
from lockstead.values import Name

SESSION_TTL: Final = 4.0
"""Seconds after which the places of a process that renews nothing are gone."""

RENEW_EVERY: Final = 1.0
"""Seconds after which a process renews its session while it has a place."""

Session = tuple[str, int]
"""A process's name and life."""


class Places:
    """The places in the queues of one store. A waiter that has left, or was granted, never gets a place again."""

    __slots__ = ("_gone", "_renewed_at", "_waiters", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiters: dict[Name, dict[str, Session]] = {}
        self._renewed_at: dict[Session, float] = {}
        self._gone: set[str] = set()

    def take(self, name: Name, waiter_id: str, session: Session) -> None:
        """Take a place, or keep it, and renew the session."""
        self.renew(session)
        if waiter_id not in self._gone:
            self._waiters.setdefault(name, {}).setdefault(waiter_id, session)

    def renew(self, session: Session) -> None:
        """Renew a session."""
        self._renewed_at[session] = self._world.now

    def has(self, session: Session) -> bool:
        """Return whether any place hangs on a session."""
        return any(session in waiters.values() for waiters in self._waiters.values())

    def leave(self, name: Name, waiter_id: str) -> None:
        """Remove a waiter, for good."""
        self._gone.add(waiter_id)
        self._waiters.get(name, {}).pop(waiter_id, None)

    def first(self, name: Name) -> str | None:
        """Return the waiter whose turn it is; None if nobody waits."""
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
        """Return whether nobody waits before this waiter."""
        return self.first(name) in (None, waiter_id)
