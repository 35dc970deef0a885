"""The contract of each command, tested one at a time."""

from __future__ import annotations

import re

from lockstead.protocol.commands import (
    FIELDS_BYTES_MAX,
    Absent,
    Conflict,
    Create,
    Extend,
    Read,
    Remove,
    Removed,
    Replace,
)
from lockstead.stores.port import Store
from lockstead.testing.conformance.base import (
    APT,
    Perform,
    Suite,
    created,
    is_a,
    is_stored,
    listed,
    performing,
    require,
    same_state,
    shows,
    touched,
)
from lockstead.values import Name, Space


class CommandsConformance(Suite):
    """The contract of each command, tested one at a time."""

    def test_a_store_says_what_it_is(self, store: Store) -> None:
        traits = store.traits
        require(store.url.startswith(f"{traits.scheme}:"), f"{store.url!r} does not begin with {traits.scheme!r}")
        require(bool(re.fullmatch(r"[a-z][a-z0-9+.-]*", traits.scheme)), f"{traits.scheme!r} is not a scheme")
        require(bool(traits.guarantee), "traits.guarantee must say what the locks of this store are worth")
        durations = (traits.clock_skew_max, traits.clock_resolution, traits.ttl_recommended)
        require(all(duration >= 0 for duration in durations), f"a duration is negative: {traits}")
        require(store.traits == traits, "traits must be constant")

    def test_what_is_not_there_is_absent(self, perform: Perform) -> None:
        is_a(Absent, perform(Read(APT)))
        is_a(Absent, perform(Extend(APT, {"a": "1"}, "1")))
        is_a(Absent, perform(Extend(APT, {"a": "1"}, None)))
        is_a(Absent, perform(Remove(APT, "1")))
        is_a(Absent | Conflict, perform(Replace(APT, {"a": "1"}, "1", "1")))  # type: ignore[arg-type]  # a union is a kind
        is_a(Absent, perform(Read(APT)))
        require(listed(perform, Space.LOCK) == {}, "an empty store lists nothing")

    def test_create_writes_what_read_shows(self, perform: Perform) -> None:
        fields = {"v": "1", "identity": "airflow:publish/run-7", "ttl": "300"}
        made = created(perform, APT, fields)
        require(dict(made.fields) == fields, f"created {fields}, the answer shows {made.fields}")
        is_stored(perform, APT, made)

    def test_create_refuses_what_is_there_and_changes_nothing(self, perform: Perform) -> None:
        made = created(perform, APT, {"identity": "first"})
        is_a(Conflict, perform(Create(APT, {"identity": "second"})))
        is_stored(perform, APT, made)

    def test_fields_are_text_of_any_kind_and_come_back_as_they_were(self, perform: Perform) -> None:
        fields = {
            "empty": "",
            "blank": "  both sides  ",
            "quotes": "\"'`\\",
            "lines": "one\ntwo",
            "markup": "<a&b>{[%41]}; -- $1",
            "letters": "grün 日本 😀 e\u0301",
            "with-dash.and_dot": "1",
        }
        is_stored(perform, APT, created(perform, APT, fields))
        require(dict(shows(perform(Read(APT))).fields) == fields, "the fields were changed on the way")
        empty = created(perform, Name("none"), {})
        require(dict(empty.fields) == {}, f"a record without fields shows {empty.fields}")

    def test_fields_of_8_kib_fit(self, perform: Perform) -> None:
        fields = {"identity": "me", "backtrace": "é" * ((FIELDS_BYTES_MAX - 64) // 2)}
        is_stored(perform, APT, created(perform, APT, fields))

    def test_h24_h30_extend_merges_and_keeps_fields_it_was_not_given(self, perform: Perform) -> None:
        made = created(perform, APT, {"identity": "me", "progress": "1 of 5", "from-a-newer-version": "yes"})
        extended = shows(perform(Extend(APT, {"progress": "", "token": "7"}, made.incarnation)))
        expected = {"identity": "me", "progress": "", "from-a-newer-version": "yes", "token": "7"}
        require(dict(extended.fields) == expected, f"expected {expected}, got {dict(extended.fields)}")
        is_stored(perform, APT, extended)

    def test_extend_keeps_the_incarnation_and_moves_the_revision(self, perform: Perform) -> None:
        made = created(perform, APT, {"identity": "me", "n": "0"})
        revisions = [made.revision]
        for fields in ({}, {"n": "0"}, {"n": "1"}, {"n": "1"}):
            extended = shows(perform(Extend(APT, fields, made.incarnation)))
            require(extended.incarnation == made.incarnation, "an Extend changed the incarnation")
            revisions.append(extended.revision)
        require(len(set(revisions)) == len(revisions), f"a revision came back, or stood still: {revisions}")

    def test_extend_expects_the_given_incarnation_and_revision(self, perform: Perform) -> None:
        first = created(perform, APT, {"n": "0"})
        second = shows(perform(Extend(APT, {"n": "1"}, first.incarnation, first.revision)))
        is_a(Conflict, perform(Extend(APT, {"n": "2"}, first.incarnation, first.revision)))
        is_a(Conflict, perform(Extend(APT, {"n": "2"}, _other(first.incarnation))))
        is_a(Conflict, perform(Extend(APT, {"n": "2"}, _other(first.incarnation), second.revision)))
        is_stored(perform, APT, second)
        third = touched(perform, APT, {"n": "3"})
        require(dict(third.fields) == {"n": "3"} and not same_state(third, second), f"it did not extend: {third}")

    def test_replace_writes_a_new_incarnation_of_the_expected_state(self, perform: Perform) -> None:
        first = created(perform, APT, {"identity": "dead", "progress": "half"})
        second = shows(perform(Replace(APT, {"identity": "next"}, first.incarnation, first.revision)))
        require(second.incarnation != first.incarnation, "a Replace kept the incarnation")
        require(dict(second.fields) == {"identity": "next"}, f"fields of the old record are left: {second.fields}")
        is_a(Conflict, perform(Replace(APT, {"identity": "late"}, first.incarnation, first.revision)))
        is_stored(perform, APT, second)

    def test_replace_refuses_a_record_that_was_renewed_in_between(self, perform: Perform) -> None:
        first = created(perform, APT)
        renewed = shows(perform(Extend(APT, {"n": "1"}, first.incarnation)))
        is_a(Conflict, perform(Replace(APT, {"identity": "thief"}, first.incarnation, first.revision)))
        is_stored(perform, APT, renewed)

    def test_remove_expects_the_given_incarnation_and_revision(self, perform: Perform) -> None:
        first = created(perform, APT)
        second = touched(perform, APT, {"n": "1"})
        is_a(Conflict, perform(Remove(APT, _other(first.incarnation))))
        is_a(Conflict, perform(Remove(APT, first.incarnation, first.revision)))
        is_stored(perform, APT, second)
        is_a(Removed, perform(Remove(APT, first.incarnation, second.revision)))
        is_a(Absent, perform(Read(APT)))
        again = created(perform, APT)
        touched(perform, APT)
        is_a(Removed, perform(Remove(APT, again.incarnation)))

    def test_h02_an_old_holders_requests_are_refused(self, perform: Perform) -> None:
        old = created(perform, APT, {"identity": "old"})
        is_a(Removed, perform(Remove(APT, old.incarnation)))
        new = created(perform, APT, {"identity": "new"})
        is_a(Conflict, perform(Remove(APT, old.incarnation)))
        is_a(Conflict, perform(Remove(APT, old.incarnation, old.revision)))
        is_a(Conflict, perform(Extend(APT, {"identity": "old"}, old.incarnation)))
        is_a(Conflict, perform(Extend(APT, {"identity": "old"}, old.incarnation, old.revision)))
        is_a(Conflict, perform(Replace(APT, {"identity": "old"}, old.incarnation, old.revision)))
        is_stored(perform, APT, new)

    def test_h02_an_incarnation_never_comes_back(self, perform: Perform, twin: Store) -> None:
        by_twin = performing(twin, self.limit)
        incarnations = []
        # alternating between two handles: uniqueness must not depend on the memory of one handle
        for creator, remover in ((perform, by_twin), (by_twin, perform), (by_twin, by_twin), (perform, perform)):
            made = created(creator, APT)
            replaced = shows(remover(Replace(APT, {}, made.incarnation, made.revision)))
            is_a(Removed, remover(Remove(APT, replaced.incarnation)))
            incarnations += [made.incarnation, replaced.incarnation]
        require(len(set(incarnations)) == len(incarnations), f"an incarnation came back: {incarnations}")

    def test_what_one_handle_wrote_another_reads_at_once(self, perform: Perform, twin: Store) -> None:
        made = created(perform, APT)
        require(same_state(shows(twin.perform(Read(APT), self.limit)), made), "the twin sees another state")
        extended = shows(twin.perform(Extend(APT, {"by": "twin"}, made.incarnation), self.limit))
        is_stored(perform, APT, extended)
        require(set(listed(perform, Space.LOCK)) == {APT}, "the listing does not show the record")

    def test_an_answer_is_a_picture_of_its_instant(self, perform: Perform) -> None:
        given = {"n": "0"}
        first = created(perform, APT, given)
        given["n"] = "changed by the caller"
        seen = shows(perform(Read(APT)))
        if isinstance(seen.fields, dict):
            seen.fields["n"] = "changed by the caller"
        touched(perform, APT, {"more": "1"})
        require(dict(first.fields) == {"n": "0"}, f"an old answer changed to {first.fields}")
        require(shows(perform(Read(APT))).fields["n"] == "0", "a caller's map is the store's own")


def _other(incarnation: str) -> str:
    """Return a different incarnation of the same format."""
    return str(int(incarnation) + 1) if incarnation.isdigit() else incarnation + "0"
