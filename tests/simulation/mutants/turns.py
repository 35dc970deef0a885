"""Faults of the queue of one process's waiters: whose turn it is, and who is woken."""

from __future__ import annotations

from typing import Any

from lockstead.protocol.acquire import AcquireRequest
from lockstead.protocol.turns import Turns
from tests.protocol import test_turns
from tests.runtime import test_queueing
from tests.simulation.mutants.patching import Patch, mutant


@mutant(
    "a waiter that leaves the queue wakes nobody",
    "behind a waiter that gave up, the others look for themselves seconds later, while the lock is free",
    test_turns.test_one_asks_and_the_others_follow_in_the_order_they_came,
)
def leaving_wakes_nobody() -> list[Patch]:
    true = Turns.leave

    def leave(self: Any, key: str, waiter: Any) -> None:
        true(self, key, waiter)

    return [(Turns, "leave", leave)]


@mutant(
    "every waiter is first",
    "a thousand threads of one process ask the store at once, again and again",
    test_turns.test_one_asks_and_the_others_follow_in_the_order_they_came,
)
def every_waiter_is_first() -> list[Patch]:
    true = Turns.enter

    def enter(self: Any, key: str, waiter: Any) -> bool:
        true(self, key, waiter)
        return True

    return [(Turns, "enter", enter)]


@mutant(
    "an interrupted waiter keeps its turn",
    "a Ctrl-C at the wrong line, and nobody in this process gets the lock any more",
    test_turns.test_a_waiter_that_was_interrupted_is_passed_over,
)
def interrupted_waiters_keep_their_turn() -> list[Patch]:
    def first(self: Any, key: str) -> Any:
        queue = self._queues.get(key)
        if not queue:
            self._queues.pop(key, None)
            self._noted.pop(key, None)
            return None
        return queue[0]

    return [(Turns, "first", first)]


@mutant(
    "a key that was given back wakes nobody in its process",
    "the next thread sleeps on, for up to the longest pause, before a lock that is free",
    test_turns.test_the_first_is_woken_when_the_key_may_be_free,
)
def freed_keys_wake_nobody() -> list[Patch]:
    def freed(self: Any, key: str) -> None:
        self._noted.pop(key, None)

    return [(Turns, "freed", freed)]


@mutant(
    "a waiter that gives up keeps its place in the store's queue",
    "a waiter times out, and nobody gets the lock until its process ends",
    test_queueing.test_a_waiter_that_gives_up_leaves_the_queue_and_its_subscription,
)
def places_are_kept() -> list[Patch]:
    def forget(_self: Any, _value: bool) -> None:
        pass

    return [(AcquireRequest, "has_waited", property(lambda _self: False, forget))]


@mutant(
    "a grant always takes the waiter out of the store's queue",
    "a late request is granted and found, and after its release nobody gets the lock until the process ends",
    test_queueing.test_h28_a_waiter_whose_own_late_request_is_granted_leaves_the_queue,
)
def places_end_with_the_grant() -> list[Patch]:
    return [(AcquireRequest, "may_keep_place", property(lambda _self: False))]
