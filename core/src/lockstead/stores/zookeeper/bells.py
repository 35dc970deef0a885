"""Who is woken when a node of a ZooKeeper changes: everybody who has a bell there.

Must not know what a node is.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from kazoo.protocol.states import EventType


class Bell(threading.Event):
    """Rung when a node that is watched changes. is_gone: it was deleted."""

    is_gone = False


class Bells:
    """Who is woken when a node changes. kazoo keeps one watch a node for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[str, list[Bell]] = {}

    def add(self, path: str, bell: Bell) -> _Ringer:
        """Have a bell rung when the node changes; give what kazoo is to call."""
        with self._lock:
            self._bells.setdefault(path, []).append(bell)
        return _Ringer(self, path)

    def remove(self, path: str, bell: Bell) -> None:
        """Ring it no more."""
        with self._lock:
            bells = self._bells.get(path, [])
            if bell in bells:
                bells.remove(bell)
            if not bells:
                self._bells.pop(path, None)

    def ring(self, path: str, *, is_gone: bool) -> None:
        """Wake all who wait for the node."""
        with self._lock:
            for bell in self._bells.pop(path, ()):
                bell.is_gone = is_gone
                bell.set()


@dataclass(frozen=True)
class _Ringer:
    """What kazoo calls when a node changes, or the connection is lost. Equal ones are one, however often set."""

    bells: Bells
    path: str

    def __call__(self, event: Any) -> None:
        self.bells.ring(self.path, is_gone=event.type == EventType.DELETED)
