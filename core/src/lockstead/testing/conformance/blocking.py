"""What `wait` promises."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from lockstead.protocol.commands import Command, Extend, Remove
from lockstead.stores.port import Store, SupportsWait
from lockstead.testing.conformance.base import Ask, Suite, created, is_a, require
from lockstead.values import Name

APT = Name("apt")


class BlockingConformance(Suite):
    """What `wait` promises, for stores that have it. Override the fixtures `store` and `twin`."""

    def test_wait_sees_a_change_by_another_handle(self, store: Store, twin: Store, ask: Ask) -> None:
        made = created(ask, APT)
        changes: list[Command[Any]] = [Extend(APT, {"n": "1"}, made.incarnation), Remove(APT, made.incarnation)]
        for change in changes:
            waiting = _Waiting(store, self.limit)
            require(waiting.has_begun.wait(self.limit), "a store that waits must come back to is_over")
            began_at = time.monotonic()
            twin.perform(change, self.limit)
            require(waiting.result() is True, f"{type(change).__name__} was not seen")
            require(time.monotonic() - began_at < self.limit / 2, f"{type(change).__name__} was seen late")

    def test_wait_ends_when_time_is_up_or_the_caller_wants_to_stop(self, store: Store, ask: Ask) -> None:
        created(ask, APT)
        waits = is_a(SupportsWait, store)  # type: ignore[type-abstract]
        require(not waits.wait(APT, 0.0, lambda _pause: False), "no time to wait, and nothing changed")
        require(not waits.wait(APT, 0.06, _asleep), "nothing changed")
        began_at = time.monotonic()
        require(not waits.wait(APT, self.limit, lambda _pause: True), "the caller wanted to stop")
        require(time.monotonic() - began_at < self.limit / 2, "the caller wanted to stop, and had to wait")

    def test_wait_on_an_absent_record_is_short(self, store: Store) -> None:
        # it may have gone between the caller's read and the wait
        waits = is_a(SupportsWait, store)  # type: ignore[type-abstract]
        began_at = time.monotonic()
        waits.wait(APT, self.limit, _asleep)
        require(time.monotonic() - began_at < self.limit / 2, "who waits for what is not there waits for nobody")


def _asleep(seconds: float) -> bool:
    """Sleep as a caller does who does not want to stop."""
    time.sleep(min(seconds, 0.05))
    return False


LOOKS: Final = 3
"""Calls of `is_over` after which a wait is certainly under way: the first comes before it has looked at the record."""


class _Waiting:
    """A wait in a thread of its own."""

    def __init__(self, store: Store, limit: float) -> None:
        self.has_begun = threading.Event()
        self._waits = is_a(SupportsWait, store)  # type: ignore[type-abstract]
        self._limit = limit
        self._seen: bool | None = None
        self._looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._seen = self._waits.wait(APT, self._limit, self._pause)

    def _pause(self, seconds: float) -> bool:
        self._looks += 1
        if self._looks >= LOOKS:
            self.has_begun.set()
        return _asleep(seconds)

    def result(self) -> bool | None:
        self._thread.join(2 * self._limit)
        return self._seen
