"""The contract for records damaged from outside: never free, hide no other record, removable by an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Conflict, Create, Read, Remove, Removed
from lockstead.protocol.record import decode, is_ours
from lockstead.reading import RECORD_BYTES_MAX
from lockstead.testing.conformance.base import (
    APT,
    OTHER_SLOT,
    SLOT,
    Perform,
    Suite,
    created,
    is_a,
    listed,
    require,
    shows,
)
from lockstead.values import Name, Space

Damage: TypeAlias = "Callable[[Name, bytes], bool]"
"""A function that writes bytes as the stored content of a record; returns False if the server rejects them."""

MEMBER: Final = Name("apt", Space.MEMBER, "1/x")
BESIDE: Final = {APT: Name("other"), MEMBER: Name("apt", Space.MEMBER, "1/y"), SLOT: OTHER_SLOT}

GARBAGE: Final = (
    b"",
    b"hello",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"v":1}',
    b'{"v":' + b"9" * 5000 + b"}",
    b'{"v":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"v":"1","identity":"x/1","ttl":"9","x":"' + b"y" * (RECORD_BYTES_MAX + 1) + b'"}',
)


class HostileConformance(Suite):
    """The contract for records that lockstead did not write. Override `damage` too.

    The store shows such a record, and lists it under its name, with the fields of `lockstead.stores.kept.unreadable`
    and an incarnation of exactly what is stored (`kept.damaged_incarnation`). `Create` conflicts with it; `Remove` with
    that incarnation deletes it. So a record's name must not be kept in what may be damaged.
    """

    @pytest.fixture
    def damage(self) -> Damage:
        """Return a function that damages an existing record."""
        raise NotImplementedError("a class of this suite has a fixture `damage` that damages a record")

    @pytest.mark.parametrize("name", BESIDE, ids=["lock", "member", "permit"])
    def test_h24_an_unreadable_record_is_isolated_and_removable(
        self, perform: Perform, damage: Damage, name: Name
    ) -> None:
        created(perform, BESIDE[name])
        taken = 0
        for garbage in GARBAGE:
            made = created(perform, name)
            if not damage(name, garbage):
                is_a(Removed, perform(Remove(name, made.incarnation)))
                continue
            taken += 1
            is_a(Conflict, perform(Create(name, {"v": "1", "identity": "thief"})))
            seen = shows(perform(Read(name)))
            require(is_ours(seen.fields), f"an operator could not remove {garbage[:40]!r}: {dict(seen.fields)}")
            with pytest.raises(StoreRefused, match="damaged"):
                decode(name, seen.fields)
            found = listed(perform, name.space)
            require(len(found) == 2, f"{garbage[:40]!r} hides another record: {list(found)}")
            require(found[name].incarnation == seen.incarnation, "a listing shows another incarnation than a Read")
            is_a(Conflict, perform(Remove(name, seen.incarnation + "0")))
            is_a(Removed, perform(Remove(name, seen.incarnation)))
            require(len(listed(perform, name.space)) == 1, "what was removed is still listed")
        require(taken > 0, "no garbage could be written: this proves nothing")
