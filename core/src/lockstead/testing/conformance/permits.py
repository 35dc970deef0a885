"""The contract of permit records: locks that are named by key and part, and whose slots are watched together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    Read,
    Remove,
    Removed,
    Replace,
    TokenSource,
)
from lockstead.stores.port import Store
from lockstead.testing.conformance.base import APT, Perform, Suite, created, is_a, is_stored, listed, require, shows
from lockstead.testing.conformance.waiting import QUIET, Changed
from lockstead.values import TURN, Name, Space

SLOT: Final = Name("apt", Space.PERMIT, "0")
OTHER_SLOT: Final = Name("apt", Space.PERMIT, "1")
TURN_NAME: Final = Name("apt", Space.PERMIT, TURN)


class PermitsConformance(Suite):
    """Names, listings and tokens of permit records."""

    def test_permit_records_are_independent_of_each_other(self, perform: Perform) -> None:
        keys = ("apt", "apt2", "apt/1", "ap%", "é:{0}")
        names = [Name(key, Space.PERMIT, part) for key in keys for part in ("0", "1", "10", TURN)]
        locks = [Name(key) for key in (*keys, "permit/apt/0")]
        made = {name: created(perform, name, {"n": str(number)}) for number, name in enumerate((*names, *locks))}
        for name, snapshot in made.items():
            is_stored(perform, name, snapshot)
            is_a(Conflict, perform(Create(name, {"v": "1"})))
        require(set(listed(perform, Space.PERMIT)) == set(names), "the listing of permits is not of its records")
        require(set(listed(perform, Space.LOCK)) == set(locks), "permits are listed as locks")
        of_key = {name for name in names if name.key == "apt"}
        shown = listed(perform, Space.PERMIT, "apt")
        require(set(shown) == of_key, f"a listing of one key's permits shows {list(shown)}")
        require(all(shown[name].fields == made[name].fields for name in of_key), "a listing shows another record")
        below = {name for name in of_key if name.part.startswith("1")}
        require(set(listed(perform, Space.PERMIT, "apt", "1")) == below, "a listing below a part is not of that part")
        is_a(Removed, perform(Remove(SLOT, made[SLOT].incarnation)))
        require(set(listed(perform, Space.PERMIT, "apt")) == of_key - {SLOT}, "removing one changed others")
        require(listed(perform, Space.PERMIT, "ap") == {}, "a listing of one key takes it for a prefix")

    def test_a_permit_record_is_granted_as_a_lock_is(self, perform: Perform) -> None:
        made = shows(perform(Create(SLOT, {"v": "1", "identity": "a"}, 30.0, "", 33.0)))
        extended = shows(perform(Extend(SLOT, {"n": "1"}, made.incarnation)))
        is_a(Conflict, perform(Replace(SLOT, {}, made.incarnation, made.revision, 30.0)))
        replaced = shows(perform(Replace(SLOT, {"v": "1"}, made.incarnation, extended.revision, 30.0, "", 33.0)))
        is_a(Conflict, perform(Extend(SLOT, {}, made.incarnation)))
        is_a(Conflict, perform(Remove(SLOT, made.incarnation)))
        is_stored(perform, SLOT, replaced)
        is_a(Removed, perform(Remove(SLOT, replaced.incarnation)))
        is_a(Absent, perform(Read(SLOT)))

    def test_tokens_of_each_permit_record_grow_with_every_grant(self, store: Store, perform: Perform) -> None:
        if store.traits.tokens is not TokenSource.NATIVE:
            return  # the engine draws them from the companion of the key
        tokens: dict[Name, list[int | None]] = {name: [] for name in (SLOT, OTHER_SLOT, TURN_NAME)}
        for _ in range(3):
            made = {name: created(perform, name) for name in tokens}
            for name, first in made.items():
                second = shows(perform(Replace(name, {}, first.incarnation, first.revision)))
                require(second.token == shows(perform(Extend(name, {}, None))).token, "a token changed with an Extend")
                tokens[name] += [first.token, second.token]
                is_a(Removed, perform(Remove(name, second.incarnation)))
        for name, of_slot in tokens.items():
            known = [token for token in of_slot if token is not None]
            require(len(known) == len(of_slot), f"an answer about {name} has no token: {of_slot}")
            require(all(one < two for one, two in pairwise(known)), f"tokens of {name} do not grow: {of_slot}")


class PermitsWaitingConformance(Suite):
    """The contract of `subscribe` for permit records: a subscriber to a slot is called for every slot of its key."""

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

    def test_the_turn_is_watched_as_a_lock_is(self, store: Store, twin: Store, perform: Perform) -> None:
        created(perform, APT)
        created(perform, SLOT)
        made = created(perform, TURN_NAME)
        with Changed(store, TURN_NAME) as turn:
            turn.settle()
            twin.perform(Extend(TURN_NAME, {"n": "1"}, made.incarnation), self.limit)
            require(turn.called(self.limit / 2), "an Extend of the turn was not notified in time")
            turn.settle()
            twin.perform(Remove(TURN_NAME, made.incarnation), self.limit)
            require(turn.called(self.limit / 2), "a Remove of the turn was not notified in time")
        with Changed(store, TURN_NAME) as turn:
            require(turn.called(self.limit / 2), "a subscriber to an absent turn was not called")

    def test_slots_turn_and_lock_of_a_key_notify_their_own_subscribers(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        made = {name: created(perform, name) for name in (APT, SLOT, TURN_NAME)}
        watched = {name: Changed(store, name) for name in made}
        for one in watched.values():
            one.settle()
        for name, snapshot in made.items():
            watched[name].settle()
            twin.perform(Remove(name, snapshot.incarnation), self.limit)
            require(watched[name].called(self.limit / 2), f"the removal of {name} was not notified in time")
        for one in watched.values():
            one.close()
