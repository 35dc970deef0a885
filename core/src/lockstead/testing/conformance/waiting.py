"""The contract of `subscribe`."""

from __future__ import annotations

import threading
from typing import Any, Self

from lockstead.protocol.commands import Command, Extend, Read, Remove
from lockstead.stores.port import Store, Subscription, SupportsBatching, SupportsWatch
from lockstead.testing.conformance.base import (
    APT,
    APT_TURN,
    OTHER_SLOT,
    SLOT,
    Perform,
    Suite,
    created,
    is_a,
    require,
    shows,
)
from lockstead.values import Name, Space

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

    def test_a_change_of_any_slot_calls_a_subscriber_to_another(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        created(perform, SLOT)
        made = created(perform, OTHER_SLOT)
        several = [Changed(store, SLOT), Changed(store, SLOT), Changed(store, Name("apt", Space.PERMIT, "2"))]
        for one in several:
            one.settle()
        commands: list[Command[Any]] = [
            Extend(OTHER_SLOT, {"ended": "1"}, made.incarnation),
            Remove(OTHER_SLOT, made.incarnation),
            Remove(SLOT, shows(perform(Read(SLOT))).incarnation),
        ]
        for command in commands:
            twin.perform(command, self.limit)
            for one in several:
                require(one.called(self.limit / 2), f"{type(command).__name__} of a slot was not notified in time")
                one.settle()
        if isinstance(twin, SupportsBatching):
            made = created(perform, OTHER_SLOT)
            for one in several:
                one.settle()
            twin.perform_many([Extend(OTHER_SLOT, {"ended": "1"}, made.incarnation), Read(APT)], self.limit)
            for one in several:
                require(one.called(self.limit / 2), "a batched Extend of a slot was not notified in time")
        require(not any(one.was_free for one in several), "one slot is said to be free, and any may have been meant")
        for one in several:
            one.close()

    def test_changes_of_several_slots_in_a_row_are_all_notified(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        """A subscriber reads at each call; after the last change it must be called once more."""
        names = [Name("apt", Space.PERMIT, str(number)) for number in range(8)]
        made = {name: created(perform, name) for name in names}
        for first, second in zip(names[::2], names[1::2], strict=True):
            with Changed(store, SLOT) as changes:
                changes.settle()
                twin.perform(Remove(first, made[first].incarnation), self.limit)
                require(changes.called(self.limit / 2), "the first removal was not notified")
                changes.seen.clear()
                twin.perform(Remove(second, made[second].incarnation), self.limit)
                require(changes.called(self.limit / 2), "a removal soon after another was not notified")

    def test_a_subscription_to_a_present_slot_calls_at_once(self, store: Store, perform: Perform) -> None:
        """Another slot may have been freed between the caller's read and its subscription."""
        created(perform, SLOT)
        with Changed(store, SLOT) as first:
            require(first.called(self.limit / 2), "the first to subscribe to a slot was not called")
            with Changed(store, SLOT) as second:
                require(second.called(self.limit / 2), "the second to subscribe to a slot was not called")
                first.settle()
                second.settle()
                require(not first.called(QUIET), "nothing changed")

    def test_a_subscriber_to_slots_that_left_keeps_no_change_from_another(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        created(perform, SLOT)
        made = created(perform, OTHER_SLOT)
        with Changed(store, SLOT) as first:
            first.settle()
            with Changed(twin, SLOT) as second:
                second.settle()
                first.close()
                second.seen.clear()
                perform(Remove(OTHER_SLOT, made.incarnation))
                require(second.called(self.limit / 2), "a change was notified only to a subscriber that had left")

    def test_the_turn_is_watched_as_a_lock_is(self, store: Store, twin: Store, perform: Perform) -> None:
        created(perform, APT)
        created(perform, SLOT)
        made = created(perform, APT_TURN)
        with Changed(store, APT_TURN) as turn:
            turn.settle()
            twin.perform(Extend(APT_TURN, {"n": "1"}, made.incarnation), self.limit)
            require(turn.called(self.limit / 2), "an Extend of the turn was not notified in time")
            turn.settle()
            twin.perform(Remove(APT_TURN, made.incarnation), self.limit)
            require(turn.called(self.limit / 2), "a Remove of the turn was not notified in time")
        with Changed(store, APT_TURN) as turn:
            require(turn.called(self.limit / 2), "a subscriber to an absent turn was not called")

    def test_slots_turn_and_lock_of_a_key_notify_their_own_subscribers(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        made = {name: created(perform, name) for name in (APT, SLOT, APT_TURN)}
        watched = {name: Changed(store, name) for name in made}
        for one in watched.values():
            one.settle()
        for name, snapshot in made.items():
            watched[name].settle()
            twin.perform(Remove(name, snapshot.incarnation), self.limit)
            require(watched[name].called(self.limit / 2), f"the removal of {name} was not notified in time")
        for one in watched.values():
            one.close()


class Changed:
    """A subscription, and whether it was called since the last `settle`."""

    def __init__(self, store: Store, name: Name = APT) -> None:
        self.seen = threading.Event()
        self.was_free = False
        self.subscription = self._subscribe(store, name)

    def _subscribe(self, store: Store, name: Name) -> Subscription:
        return is_a(SupportsWatch, store).subscribe(name, self._changed)  # type: ignore[type-abstract]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _changed(self, is_free: bool) -> None:
        self.was_free = self.was_free or is_free
        self.seen.set()

    def called(self, seconds: float) -> bool:
        return self.seen.wait(seconds)

    def settle(self) -> None:
        """Return once there are no more calls, so that the subscription has taken effect."""
        while self.seen.wait(QUIET):
            self.seen.clear()

    def close(self) -> None:
        self.subscription.close()
