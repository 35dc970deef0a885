"""A memory store that keeps a queue: the smallest one that promises what `SupportsFifoQueue` says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstead.protocol.commands import Command, Conflict, Create, Replace, Snapshot
from lockstead.stores.memory.store import Memory, MemoryStore
from lockstead.stores.port import Standing
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name

OnTurn = Callable[[bool], None]


@dataclass
class Queues:
    """The waiters of each record, in order, with the store that enqueued them and their callback."""

    waiters: dict[Name, dict[str, MemoryStore]] = field(default_factory=dict)
    on_turn: dict[tuple[Name, str], OnTurn] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class FifoStore(MemoryStore):
    """Several of them on one memory and one set of queues are one place."""

    def __init__(self, memory: Memory | None = None, queues: Queues | None = None) -> None:
        super().__init__(memory)
        self.queues = queues or Queues()
        self.seen: list[Command[Any]] = []
        self.before: Callable[[Command[Any]], None] = lambda _command: None

    def beside(self) -> FifoStore:
        """Return another store of the same place."""
        return FifoStore(self._memory, self.queues)

    def waiting(self, name: Name) -> list[str]:
        """Return the waiters of a record."""
        return [*self.queues.waiters.get(name, {})]

    def perform(self, command: Command[Any], limit: float) -> Any:
        self.seen.append(command)
        self.before(command)
        if not isinstance(command, Create | Replace) or not command.waiter_id:
            return super().perform(command, limit)
        with self.queues.lock:
            waiting = self.waiting(command.name)
            is_overtaking = waiting and waiting[0] != command.waiter_id
            if is_overtaking and (isinstance(command, Replace) or command.name not in self._memory.entries):
                return Conflict(is_queued=True)
            answer = super().perform(command, limit)
            if isinstance(answer, Snapshot):
                self._drop(command.name, command.waiter_id)
            return answer

    def enqueue(self, name: Name, waiter_id: str, on_turn: OnTurn) -> Subscription:
        with self.queues.lock:
            self.queues.waiters.setdefault(name, {}).setdefault(waiter_id, self)
            self.queues.on_turn[name, waiter_id] = on_turn

        def changed(_is_free: bool) -> None:
            if self.waiting(name)[:1] == [waiter_id]:
                on_turn(name not in self._memory.entries)

        return self.subscribe(name, changed)

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        with self.queues.lock:
            self._drop(name, waiter_id)

    def _drop(self, name: Name, waiter_id: str) -> None:
        waiters = self.queues.waiters.get(name, {})
        was_first = self.waiting(name)[:1] == [waiter_id]
        waiters.pop(waiter_id, None)
        self.queues.on_turn.pop((name, waiter_id), None)
        if was_first and waiters:
            self.queues.on_turn[name, next(iter(waiters))](name not in self._memory.entries)

    def standing(self, name: Name, limit: float) -> Sequence[Standing]:
        return [Standing(waiter_id) for waiter_id in self.waiting(name)]

    def close(self) -> None:
        for name, waiters in self.queues.waiters.items():
            for waiter_id in [one for one, store in waiters.items() if store is self]:
                self.leave(name, waiter_id, 0.0)
        super().close()
