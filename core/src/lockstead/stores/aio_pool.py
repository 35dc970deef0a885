"""Connection pool for any store: which connection serves a request, how many there are, how long each is used.

Must not know what a connection is, nor what is sent over it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar

from lockstead.errors import StoreUnavailable
from lockstead.stores.awaiting import Limiter


class AsyncPooled(Protocol):
    """A connection that a pool can manage.

    opened_at: when it was opened (monotonic clock). is_good: whether it may be used again after its last use. permit:
    set by the pool while the connection is in use.
    """

    opened_at: float
    is_good: bool
    permit: object

    async def is_usable(self) -> bool:
        """Return whether an idle connection is still open and has received no unexpected data."""
        ...

    async def aclose(self) -> None:
        """Close the connection. Idempotent; raises nothing."""
        ...


K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=AsyncPooled)


class AsyncPool(Generic[K, C]):
    """The connections of one process to one store, by key (usually the address).

    Safe to share between threads; an asynchronous pool belongs to one event loop instead. Giving back takes no lock:
    each step on a deque is atomic, and a coroutine that is being garbage-collected may do it. A connection that an
    interrupt prevents from being given back is dropped, and its permit with it.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[K, float], Awaitable[C]],
        limit: int,
        *,
        age_max: float = math.inf,
        idle_max: float = math.inf,
        checked_after: float = 0.0,
    ) -> None:
        """Create a pool. connect(key, ends_at) opens a connection by `ends_at` (monotonic clock) or raises StoreError.

        name: the store's name, for messages. limit: maximum number of connections in use at once. age_max, idle_max:
        seconds after a connection was opened, or last used, after which it is closed instead of being reused.
        checked_after: seconds of idling after which `is_usable` is asked before it is reused.
        """
        self._name = name
        self._connect = connect
        self._limit = limit
        self._age_max = age_max
        self._idle_max = idle_max
        self._checked_after = checked_after
        self._limiter = Limiter(limit)
        self._idle: dict[K, deque[tuple[C, float]]] = {}
        self._is_open = True

    async def take(self, key: K, ends_at: float) -> C:
        """Return a connection that is ready by `ends_at` (monotonic clock); it must be given back.

        Raises StoreUnavailable, or any error of `connect`; nothing was sent in either case.
        """
        permit = await self._limiter.acquire(ends_at)
        if permit is None:
            raise StoreUnavailable(f"{self._name}: all {self._limit} connections were busy for too long")
        try:
            connection = await self._ready(key, ends_at)
            connection.permit = permit
            return connection
        finally:
            del permit  # an error that is kept for later must not keep it

    async def _ready(self, key: K, ends_at: float) -> C:
        while self._is_open:
            try:
                connection, idle_since = self._idle[key].pop()
            except LookupError:
                return await self._connect(key, ends_at)
            if await self._is_usable(connection, idle_since):
                return connection
        raise StoreUnavailable(f"the store {self._name} is closed")

    async def _is_usable(self, connection: C, idle_since: float) -> bool:
        """Return whether a connection may be reused; close it if not."""
        now, is_usable = time.monotonic(), False
        try:
            if now - connection.opened_at < self._age_max and now - idle_since < self._idle_max:
                is_usable = now - idle_since < self._checked_after or await connection.is_usable()
        finally:
            if not is_usable:
                await connection.aclose()
        return is_usable

    async def give_back(self, key: K, connection: C) -> None:
        """Take back a connection; keep it if it may be reused, else close it."""
        connection.permit = None
        if not connection.is_good:
            await connection.aclose()
            return
        idle, now = self._idle.get(key), time.monotonic()
        if idle is None:
            idle = self._idle.setdefault(key, deque())
        idle.append((connection, now))
        if self._idle_max < math.inf:
            await self._close_idle(idle, now - self._idle_max)

    async def drop(self, key: K) -> None:
        """Close the idle connections of a key, because its server failed."""
        await self._close_idle(self._idle.get(key, deque()), math.inf)

    async def _close_idle(self, idle: deque[tuple[C, float]], since: float) -> None:
        """Close connections that were last used at or before `since`."""
        while True:
            try:
                if idle[0][1] > since:
                    return
                connection, _ = idle.popleft()
            except IndexError:
                return
            await connection.aclose()

    async def aclose(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back. Idempotent."""
        self._is_open = False
        self._idle_max = -math.inf  # connections given back from now on count as idle for too long
        self._limiter.lift()
        for key in list(self._idle):
            await self.drop(key)
