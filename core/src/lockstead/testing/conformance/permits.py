"""The contract of permit records: locks that are named by key and part, and whose slots are watched together."""

from __future__ import annotations

from itertools import pairwise

from lockstead.protocol.commands import (
    Absent,
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
from lockstead.testing.conformance.base import (
    APT_TURN,
    OTHER_SLOT,
    SLOT,
    Perform,
    Suite,
    created,
    is_a,
    is_stored,
    listed,
    require,
    shows,
)
from lockstead.values import TURN, Name, Space


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
        tokens: dict[Name, list[int | None]] = {name: [] for name in (SLOT, OTHER_SLOT, APT_TURN)}
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
