"""The contract of `subscribe`."""

from __future__ import annotations

import threading
from typing import Any, Self

from lockstead.protocol.commands import Command, Extend, Remove
from lockstead.stores.port import Store, Subscription, SupportsWatch
from lockstead.testing.conformance.base import APT, Perform, Suite, created, is_a, require
from lockstead.values import Name

QUIET = 0.3
"""Seconds within which an unwanted call would have come."""


class WaitingConformance(Suite):
    """The contract of `subscribe`, for stores that have it. Override the fixtures `store` and `twin`."""

    def test_each_change_by_another_handle_is_notified(self, twin: Store, perform: Perform, store: Store) -> None:
        made = created(perform, APT)
        several = [Changed(store) for _ in range(3)]
        for one in several:
            one.settle()
        commands: list[Command[Any]] = [Extend(APT, {"n": "1"}, made.incarnation), Remove(APT, made.incarnation)]
        for command in commands:
            twin.perform(command, self.limit)
            for one in several:
                require(one.called(self.limit / 2), f"{type(command).__name__} was not notified in time")
                one.settle()
        created(perform, APT)
        for one in several:
            require(one.called(self.limit / 2), "a record that was created was not notified")
            one.close()

    def test_a_subscription_to_an_absent_record_calls_at_once(self, store: Store) -> None:
        # the record may have been removed between the caller's read and its subscription
        for number in ("first", "second"):
            changes = Changed(store)
            require(changes.called(self.limit / 2), f"the {number} to subscribe to an absent record was not called")
            changes.close()
        first, second = Changed(store), Changed(store)
        require(first.called(self.limit / 2), "the first subscriber to an absent record was not called")
        require(second.called(self.limit / 2), "the second subscriber to an absent record was not called")
        first.close()
        second.close()

    def test_a_closed_subscription_is_not_called_and_others_are(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        made = created(perform, APT)
        stays, leaves = Changed(store), Changed(store)
        stays.settle()
        leaves.settle()
        leaves.close()
        leaves.close()
        leaves.seen.clear()
        twin.perform(Remove(APT, made.incarnation), self.limit)
        require(stays.called(self.limit / 2), "an open subscription was not called")
        require(not leaves.called(QUIET), "a closed subscription was called")
        stays.close()

    def test_a_present_record_that_does_not_change_is_quiet(self, store: Store, perform: Perform) -> None:
        created(perform, APT)
        changes = Changed(store)
        changes.settle()
        require(not changes.called(QUIET), "nothing changed")
        changes.close()


class Changed:
    """A subscription, and whether it was called since the last `settle`."""

    def __init__(self, store: Store, name: Name = APT) -> None:
        self.seen = threading.Event()
        self.subscription = self._subscribe(store, name)

    def _subscribe(self, store: Store, name: Name) -> Subscription:
        return is_a(SupportsWatch, store).subscribe(name, self._changed)  # type: ignore[type-abstract]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _changed(self, _is_free: bool) -> None:
        self.seen.set()

    def called(self, seconds: float) -> bool:
        return self.seen.wait(seconds)

    def settle(self) -> None:
        """Return once there are no more calls, so that the subscription has taken effect."""
        while self.seen.wait(QUIET):
            self.seen.clear()

    def close(self) -> None:
        self.subscription.close()
