"""Faults of the queue of one process's waiters: whose turn it is, and who is woken."""

from __future__ import annotations

from typing import Any

from lockstead.protocol.acquire import AcquireRequest
from lockstead.runtime.local_queue import LocalQueue
from tests.runtime import test_queueing, test_turns
from tests.simulation.mutants.patching import Patch, mutant


@mutant(
    "a waiter that leaves the queue wakes nobody",
    "behind a waiter that gave up, the others look for themselves seconds later, while the lock is free",
    test_turns.test_the_first_waiter_sends_and_hands_over_to_the_next,
)
def leaving_wakes_nobody() -> list[Patch]:
    true = LocalQueue._without

    def without(self: Any, key: str, waiter: Any) -> None:
        true(self, key, waiter)

    return [(LocalQueue, "_without", without)]


@mutant(
    "every waiter is first",
    "a thousand threads of one process ask the store at once, again and again",
    test_turns.test_the_first_waiter_sends_and_hands_over_to_the_next,
)
def every_waiter_is_first() -> list[Patch]:
    true = LocalQueue.enter

    def enter(self: Any, key: str, waiter: Any) -> bool:
        true(self, key, waiter)
        return True

    return [(LocalQueue, "enter", enter)]


@mutant(
    "an interrupted waiter keeps its turn",
    "a Ctrl-C at the wrong line, and nobody in this process gets the lock any more",
    test_turns.test_who_is_over_before_it_asks_is_passed_over,
)
def interrupted_waiters_keep_their_turn() -> list[Patch]:
    def first(self: Any, key: str) -> Any:
        queue = self._queues.get(key)
        if not queue:
            self._queues.pop(key, None)
            self._noted.pop(key, None)
            return None
        return queue[0]

    return [(LocalQueue, "_first", first)]


@mutant(
    "a key that was given back wakes nobody in its process",
    "the next thread sleeps on, for up to the longest pause, before a lock that is free",
    test_turns.test_a_ring_wakes_the_first_alone_and_one_for_all_wakes_everybody,
)
def freed_keys_wake_nobody() -> list[Patch]:
    def wake_first(self: Any, key: str) -> None:
        self._noted.pop(key, None)

    return [(LocalQueue, "wake_first", wake_first)]


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
    test_queueing.test_h28_a_late_grant_of_a_waiter_leaves_the_queue,
)
def places_end_with_the_grant() -> list[Patch]:
    return [(AcquireRequest, "may_keep_place", property(lambda _self: False))]
