"""Who is woken by a store that wakes asks at once; who is told of a change by any other looks first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from lockstead.protocol.commands import Pause, Paused
from lockstead.runtime.run import Limits, Waker, paused
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name


class Silent:
    """A waker that nobody rings."""

    def wait(self, seconds: float) -> bool:
        return False

    def take(self) -> bool:
        return False


class Waking(MemoryStore):
    """The memory, as a store that wakes."""

    traits = dataclasses.replace(MemoryStore().traits, wakes=True)  # type: ignore[assignment]


class Queueing(MemoryStore):
    """The memory, as a store with a queue."""

    def wait(self, name: Name, seconds: float, is_over: Callable[[float], bool]) -> bool:
        return True

    def queue(self, name: Name, waiter_id: str, seconds: float, is_over: Callable[[float], bool]) -> bool:
        return True

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        return None


@pytest.mark.parametrize(("store", "is_turn"), [(Waking, True), (Queueing, True), (MemoryStore, False)])
def test_it_is_the_turn_of_who_is_woken_where_the_store_wakes(store: type[Any], is_turn: bool) -> None:
    waker: Waker = Silent()
    asked, member = (Pause(Name("apt"), 1.0, 1.0, waiter_id) for waiter_id in ("me", ""))
    assert paused(asked, store(), 1.0, True, waker) == Paused(1.0, True, is_turn)
    # nothing changed, or nobody asks for the lock here
    assert paused(asked, store(), 1.0, False, waker) == Paused(1.0)
    assert paused(member, store(), 1.0, True, waker) == Paused(1.0, True)


def test_nobody_sleeps_past_the_instant_at_which_the_record_can_be_over() -> None:
    drawn = [Limits(1.0).pause(Pause(Name("apt"), 5.0, 9.0, over_in=2.0, spread=0.1), 0.0) for _ in range(100)]
    assert all(2.0 <= one <= 2.1 for one in drawn)
    assert len(set(drawn)) > 1
    assert Limits(1.0, gives_up_at=0.5).pause(Pause(Name("apt"), 5.0, 9.0, over_in=2.0), 0.0) == 0.5
