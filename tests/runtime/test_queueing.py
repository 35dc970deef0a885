"""A store that keeps a queue: who is granted stands in line no more, and whose turn it is asks without a look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockstead import Client
from lockstead.errors import NotAcquired, OutcomeUnknown
from lockstead.protocol.commands import Command, Create, Read, Remove, Snapshot
from lockstead.stores.port import SupportsFifoQueue
from lockstead.values import Name
from tests.runtime.faulty import Faulty, until


class Queueing(Faulty):
    """A memory store with a queue that lets everybody through, and notes who stands in it."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self.on_turn: Callable[[], bool] = lambda: False

    def wait(self, name: Name, seconds: float, is_over: Callable[[float], bool]) -> bool:
        return is_over(seconds)

    def queue(self, name: Name, waiter_id: str, seconds: float, is_over: Callable[[float], bool]) -> bool:
        if waiter_id not in self.places:
            self.places.append(waiter_id)
        is_over(min(seconds, 0.01))
        return self.on_turn()

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        if waiter_id in self.places:
            self.places.remove(waiter_id)


def test_h28_who_finds_a_late_request_of_its_own_granted_leaves_the_line() -> None:
    store = Queueing()
    assert isinstance(store, SupportsFifoQueue)
    other = store.beside()
    lost: list[Command[Any]] = []

    def hold_back_the_first_grant(command: Command[Any]) -> None:
        if isinstance(command, Create) and not lost:
            lost.append(command)
            taken.append(other.perform(Create(Name("apt"), {"v": "1", "identity": "other", "ttl": "60"}), 1.0))
            raise OutcomeUnknown("no answer in time")

    def it_arrives_after_all() -> bool:
        if store.places and taken:
            held = taken.pop()
            assert isinstance(held, Snapshot)
            other.perform(Remove(Name("apt"), held.incarnation), 1.0)
            other.perform(lost[0], 1.0)
        return True

    taken: list[object] = []
    store.before, store.on_turn = hold_back_the_first_grant, it_arrives_after_all
    with Client(store) as client, client.lock("apt", ttl=60).hold(timeout=30) as lease:
        assert isinstance(lost[0], Create)
        assert lost[0].waiter_id == lease.holder
        until(lambda: not store.places)


@pytest.mark.parametrize(("is_turn", "kind"), [(True, Create), (False, Read)])
def test_whose_turn_it_is_asks_at_once_and_who_is_only_woken_looks_first(
    is_turn: bool, kind: type[Command[Any]]
) -> None:
    store, asked = Queueing(), []
    store.beside().perform(Create(Name("apt"), {"v": "1", "identity": "other", "ttl": "60"}), 1.0)

    def turn() -> bool:
        store.before = lambda command: asked.append(type(command))
        return is_turn

    store.on_turn = turn
    with Client(store) as client, pytest.raises(NotAcquired):
        client.lock("apt", ttl=60).acquire(timeout=0.05)
    assert asked[0] is kind
