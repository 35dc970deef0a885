"""A store passes over the records of a later version, in a space that this one does not know."""

from __future__ import annotations

from enum import Enum
from typing import cast

from lockstead.protocol.commands import Create, Remove, Removed
from lockstead.testing.conformance.base import APT, SLOT, Perform, Suite, created, is_a, is_stored, listed
from lockstead.values import Name, Space


class _Later(Enum):
    LATER = "later"

    @property
    def is_lock(self) -> bool:
        return False


LATER = cast("Space", _Later.LATER)


class LaterSpaces(Suite):
    """For every store that keeps records by the names of their spaces."""

    def test_records_in_an_unknown_space_are_passed_over(self, perform: Perform) -> None:
        names = [APT, SLOT, *(Name("apt", space, "1/a") for space in (Space.MEMBER, Space.AUDIT))]
        made = {name: created(perform, name) for name in [*names, Name("apt", Space.COMPANION)]}
        later = {name: created(perform, name) for name in (Name("apt", LATER, "0"), Name("yum", LATER, "1/a"))}
        for name, snapshot in (made | later).items():
            is_stored(perform, name, snapshot)
        for space in Space:
            known = {name for name in made if name.space is space}
            assert set(listed(perform, space)) == set(listed(perform, space, "apt")) == known
        for name, snapshot in made.items():
            is_a(Removed, perform(Remove(name, snapshot.incarnation)))
        for name, snapshot in later.items():
            is_stored(perform, name, snapshot)
        perform(Create(APT, {"v": "1"}))
        assert set(listed(perform, Space.LOCK)) == {APT}
