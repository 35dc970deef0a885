"""Sharing of one coroutine by all tasks of an event loop that await the same. Must not know what it does."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Errand(Generic[T]):
    task: asyncio.Task[T]
    users: int = 0
    done_at: float | None = None


class Shared(Generic[T]):
    """One coroutine for all concurrent callers with the same key; its result is cached for `keep` seconds.

    It is cancelled when its last waiter is cancelled. An error is raised in all its waiters, and not cached.
    """

    def __init__(self, keep: float = 0.0) -> None:
        self._keep = keep
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Errand[T]]] = (
            weakref.WeakKeyDictionary()
        )

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `make`, or of another caller's coroutine under the same key."""
        errands = self._loops.setdefault(asyncio.get_running_loop(), {})
        errand = errands.get(key)
        if errand is None or self._is_stale(errand):
            errand = errands[key] = _Errand(asyncio.create_task(make()))
            errand.task.add_done_callback(lambda task, mine=errand: self._done(errands, key, mine, task))  # type: ignore[misc]  # the default argument binds the current errand
        errand.users += 1
        try:
            return await asyncio.shield(errand.task)
        finally:
            errand.users -= 1
            if not errand.users and not errand.task.done():
                errand.task.cancel()
                if errands.get(key) is errand:
                    del errands[key]

    def _is_stale(self, errand: _Errand[T]) -> bool:
        return errand.done_at is not None and time.monotonic() >= errand.done_at + self._keep

    def _done(
        self, errands: dict[Hashable, _Errand[T]], key: Hashable, errand: _Errand[T], task: asyncio.Task[T]
    ) -> None:
        errand.done_at = time.monotonic()
        failed = task.cancelled() or task.exception() is not None
        if (failed or not self._keep) and errands.get(key) is errand:
            del errands[key]
