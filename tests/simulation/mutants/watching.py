"""Faults of waiting by subscription: what is missed, and what wakes a waiter in vain."""

from __future__ import annotations

from typing import Any

from lockstead.runtime.watching import Watching
from lockstead.stores.memory.store import MemoryStore
from lockstead.stores.subscriptions import Subscriptions
from tests.runtime import test_watching
from tests.simulation.mutants.patching import Patch, mutant


@mutant(
    "a change between two pauses is forgotten",
    "the lock is released while the waiter reads, and the waiter sleeps for the longest pause",
    test_watching.test_a_subscription_lasts_over_pauses_and_misses_nothing,
)
def changes_between_pauses_are_forgotten() -> list[Patch]:
    true = Watching.begin

    def begin(self: Any, command: Any) -> bool:
        self._changes.has_changed = False
        return true(self, command)

    return [(Watching, "begin", begin)]


@mutant(
    "a request without an answer wakes its own sender",
    "a store that answers no write is asked without a pause, by each waiter",
    test_watching.test_a_change_after_an_unknown_outcome_ends_no_pause,
)
def own_requests_wake() -> list[Patch]:
    true = Watching.begin

    def begin(self: Any, command: Any) -> bool:
        if command.wake_on_change:
            return true(self, command)
        self._changes.is_heeded = True
        return bool(self._changes.has_changed)

    return [(Watching, "begin", begin)]


@mutant(
    "every change is a turn",
    "each renewal of the holder makes every waiter write",
    test_watching.test_a_change_that_is_no_release_is_not_worth_a_write,
)
def every_change_is_a_turn() -> list[Patch]:
    true = Watching.end

    def end(self: Any, command: Any, seconds: float) -> Any:
        self._changes.is_free = self._changes.has_changed
        return true(self, command, seconds)

    return [(Watching, "end", end)]


@mutant(
    "a subscription is not closed",
    "a process that waited for many keys is notified of all of them, for as long as it lives",
    test_watching.test_a_wait_that_timed_out_leaves_no_subscription,
)
def subscriptions_stay_open() -> list[Patch]:
    return [(Subscriptions, "_tidy", lambda _self: None)]


@mutant(
    "a store does not notify of what it missed",
    "the lock is released between a waiter's read and its subscription, and the waiter sleeps for the longest pause",
    test_watching.test_a_release_before_the_subscription_is_noticed,
)
def absent_records_are_not_notified() -> list[Patch]:
    def subscribe(self: Any, name: Any, on_change: Any) -> Any:
        return self._memory.subscriptions.add(name, on_change)[0]

    return [(MemoryStore, "subscribe", subscribe)]
