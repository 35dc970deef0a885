"""The contract of names: different keys never collide, and listings show all of them."""

from __future__ import annotations

from typing import Final

from lockstead.protocol.commands import Absent, Read, Remove, Removed
from lockstead.testing.conformance.base import Perform, Suite, created, is_a, is_stored, listed, require, touched
from lockstead.values import KEY_BYTES_MAX, Name, Space

ODD_KEYS: Final = (
    *("apt", "Apt", "APT", " apt", "apt ", "a pt"),
    *("apt/", "/apt", "apt/1", "apt//1", "apt%2F1", "apt%252F1", "apt\\1"),
    *("/", "//", ".", "..", "...", "../apt", "./apt", "%2E", "%2e", "%2E.", "%", "%%", "%zz"),
    *(".lockstead", ".lockstead/", ".lockstead/x", ".lockstead/companion/apt", "lock", "companion", "member/apt"),
    *("?", "a?b", "#", "a#b", "a&b=c", "a;b", "a:b", "a|b", "a,b", "a+b", "a b", "a@b", "a*", "a'b", 'a"b', "a`b"),
    *("-", "_", "~", "=", "=YXB0", "$1", "{a}", "[a]", "<a>", "NULL", "0", "00", "-1", "1e3"),
    *("é", "e\u0301", "É", "ß", "ss", "日本", "😀", "%C3%A9", "Ã©", "ı", "i"),
    *("a" * KEY_BYTES_MAX, "a" * (KEY_BYTES_MAX - 1), "é" * (KEY_BYTES_MAX // 2), "/" * KEY_BYTES_MAX),
    *("%" * KEY_BYTES_MAX, " " * KEY_BYTES_MAX, "." * KEY_BYTES_MAX, "😀" * (KEY_BYTES_MAX // 4)),
)
"""Keys that a store could confuse with each other, with a path, or with its own names."""

RECORDS_LISTED: Final = 60


class NamesConformance(Suite):
    """Names and listings."""

    def test_h23_every_key_is_a_name_of_its_own(self, perform: Perform) -> None:
        made = {}
        for number, key in enumerate(ODD_KEYS):
            is_a(Absent, perform(Read(Name(key))))
            made[Name(key)] = created(perform, Name(key), {"number": str(number)})
        shown = listed(perform, Space.LOCK)
        require(set(shown) == set(made), f"the listing differs by {set(shown) ^ set(made)}")
        for name, snapshot in made.items():
            require(shown[name].fields["number"] == snapshot.fields["number"], f"{name} shows another one's record")
            is_stored(perform, name, snapshot)
        for name, snapshot in made.items():
            is_a(Removed, perform(Remove(name, snapshot.incarnation)))
            is_a(Absent, perform(Read(name)))
        require(listed(perform, Space.LOCK) == {}, "removing all left something")

    def test_h23_no_key_reaches_the_records_of_another_space(self, perform: Perform) -> None:
        hostile = ["apt", ".lockstead/companion/apt", "companion/apt", "../companion/apt", "apt/1/nonce", "apt/1"]
        names = [Name(key) for key in hostile]
        names += [Name(key, Space.COMPANION) for key in hostile]
        for space in (Space.MEMBER, Space.AUDIT):
            names += [Name(key, space, part) for key in hostile for part in ("1/nonce", "1", "nonce", "..", "a b/?#é")]
        made = {name: created(perform, name, {"n": str(number)}) for number, name in enumerate(names)}
        for name, snapshot in made.items():
            is_stored(perform, name, snapshot)
        for space in Space:
            expected = {name for name in names if name.space is space}
            require(set(listed(perform, space)) == expected, f"the listing of {space.value} is not of its records")

    def test_a_listing_can_be_limited_to_a_key_and_part(self, perform: Perform) -> None:
        parts = ("7/a", "7/b", "77/a", "7", "8/a", "%37/a", "7_a")
        names = {Name(key, Space.MEMBER, part) for key in ("apt", "apt2", "ap_", "ap%") for part in parts}
        for name in names:
            created(perform, name)
        require(set(listed(perform, Space.MEMBER)) == names, "the listing of a space is not of its records")
        of_key = {name for name in names if name.key == "apt"}
        require(set(listed(perform, Space.MEMBER, "apt")) == of_key, "a listing of one key is not of that key")
        below = {Name("apt", Space.MEMBER, "7/a"), Name("apt", Space.MEMBER, "7/b")}
        require(set(listed(perform, Space.MEMBER, "apt", "7/")) == below, "a listing below a part is not of that part")
        require(listed(perform, Space.MEMBER, "ap") == {}, "a listing of one key takes it for a prefix")
        require(listed(perform, Space.MEMBER, "apt", "9/") == {}, "a listing below an absent part has something")
        require(listed(perform, Space.LOCK) == {}, "members are listed as locks")
        created(perform, Name("apt"))
        created(perform, Name("apt2"))
        require(set(listed(perform, Space.LOCK, "apt")) == {Name("apt")}, "a listing of one key is not of that key")

    def test_a_listing_is_whole_and_shows_what_a_read_shows(self, perform: Perform) -> None:
        names = [Name(f"key-{number:03}") for number in range(RECORDS_LISTED)]
        made = {name: created(perform, name, {"n": name.key}) for name in names}
        made[names[0]] = touched(perform, names[0], {"more": "1"})
        is_a(Removed, perform(Remove(names[1], made.pop(names[1]).incarnation)))
        shown = listed(perform, Space.LOCK)
        require(set(shown) == set(made), f"the listing differs by {set(shown) ^ set(made)}")
        for name, snapshot in made.items():
            seen = shown[name]
            same = (seen.incarnation, seen.revision) == (snapshot.incarnation, snapshot.revision)
            require(same and dict(seen.fields) == dict(snapshot.fields), f"listed {seen}, written {snapshot}")
