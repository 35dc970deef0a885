"""The conformance suite is tested by stores that each break one promise: it must catch every one of them."""

from __future__ import annotations

import inspect
import time
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.memory.store import Memory, MemoryStore
from lockstead.testing.conformance import StoreConformance
from lockstead.testing.conformance.base import performing, performing_at_once
from lockstead.values import Name, Space


class CreateOverwrites(MemoryStore):
    def _create(self, command: Create, now: float) -> Any:
        return self._grant(command.name, command.fields, now, now)


class CreateChecksThenActs(MemoryStore):
    """Two steps where one is needed: what a store without a conditional write does."""

    def perform(self, command: Command[Any], limit: float) -> Any:
        if isinstance(command, Create):
            if command.name in self._memory.entries:
                return Conflict()
            time.sleep(0.002)
            with self._memory.lock:
                return self._grant(command.name, command.fields, 0.0, 0.0)
        return super().perform(command, limit)


class RemoveForgetsTheIncarnation(MemoryStore):
    def _remove(self, command: Remove, now: float) -> Any:
        return Removed(now) if self._memory.entries.pop(command.name, None) else Absent(now)


class RemoveForgetsTheRevision(MemoryStore):
    def _remove(self, command: Remove, now: float) -> Any:
        return super()._remove(replace(command, revision=None), now)


class RemoveExpectsTheRevisionAlone(MemoryStore):
    """The algorithm as first published: metageneration begins at 1 again with every generation."""

    def _remove(self, command: Remove, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        is_same = entry is not None and command.revision is not None and entry.is_at(None, command.revision)
        return super()._remove(replace(command, incarnation=str(entry.token)) if is_same else command, now)


class RemoveSaysRemovedOfWhatIsAbsent(MemoryStore):
    def _remove(self, command: Remove, now: float) -> Any:
        answer = super()._remove(command, now)
        return Removed(now) if isinstance(answer, Absent) else answer


class ExtendForgetsTheIncarnation(MemoryStore):
    def _extend(self, command: Extend, now: float) -> Any:
        return super()._extend(replace(command, incarnation=None, revision=None), now)


class ExtendForgetsTheRevision(MemoryStore):
    def _extend(self, command: Extend, now: float) -> Any:
        return super()._extend(replace(command, revision=None), now)


class ExtendDropsOtherFields(MemoryStore):
    def _extend(self, command: Extend, now: float) -> Any:
        if command.fields and command.name in self._memory.entries:
            self._memory.entries[command.name].fields.clear()
        return super()._extend(command, now)


class ExtendDropsEmptyValues(MemoryStore):
    def _extend(self, command: Extend, now: float) -> Any:
        return super()._extend(replace(command, fields={k: v for k, v in command.fields.items() if v}), now)


class ExtendSkipsWhatChangesNothing(MemoryStore):
    limit = 0.2

    def _extend(self, command: Extend, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        is_right = entry is not None and entry.is_at(command.incarnation, command.revision)
        if is_right and command.fields.items() <= entry.fields.items():
            return entry.snapshot(now)
        return super()._extend(command, now)


class ExtendCreatesWhatIsAbsent(MemoryStore):
    def _extend(self, command: Extend, now: float) -> Any:
        if command.name not in self._memory.entries:
            return self._grant(command.name, command.fields, now, now)
        return super()._extend(command, now)


class ExtendLeavesUpdatedAt(MemoryStore):
    limit = 0.2

    def _extend(self, command: Extend, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        return super()._extend(command, now if entry is None else entry.updated_at)


class ReplaceForgetsTheRevision(MemoryStore):
    def _replace(self, command: Replace, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        return super()._replace(command if entry is None else replace(command, revision=str(entry.revision)), now)


class ReplaceKeepsTheIncarnation(MemoryStore):
    def _replace(self, command: Replace, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        answer = super()._replace(command, now)
        if entry is not None and isinstance(answer, Snapshot):
            self._memory.entries[command.name].token = entry.token
            return replace(answer, incarnation=str(entry.token))
        return answer


class ReplaceMerges(MemoryStore):
    def _replace(self, command: Replace, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        old: Mapping[str, str] = {} if entry is None else entry.fields
        return super()._replace(replace(command, fields={**old, **command.fields}), now)


class IncarnationsBeginAgain(MemoryStore):
    """A counter in the record: gone with it."""

    def _create(self, command: Create, now: float) -> Any:
        self._memory.grants = 0
        return super()._create(command, now)


class IncarnationsAreCountedByTheHandle(MemoryStore):
    granted = 0

    def _grant(self, name: Name, fields: Mapping[str, str], updated_at: float, now: float) -> Snapshot:
        self.granted += 1
        self._memory.grants = self.granted - 1
        return super()._grant(name, fields, updated_at, now)


class RenamesKeys(MemoryStore):
    def renamed(self, key: str) -> str:
        raise NotImplementedError

    def perform(self, command: Command[Any], limit: float) -> Any:
        if isinstance(command, List):
            return super().perform(command, limit)
        name = command.name  # type: ignore[attr-defined]
        return super().perform(replace(command, name=replace(name, key=self.renamed(name.key))), limit)


class FoldsCase(RenamesKeys):
    def renamed(self, key: str) -> str:
        return key.casefold()


class NormalisesLetters(RenamesKeys):
    def renamed(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


class StripsBlanks(RenamesKeys):
    def renamed(self, key: str) -> str:
        return key.strip() or key


class WalksPaths(RenamesKeys):
    def renamed(self, key: str) -> str:
        return key.replace("//", "/")


class CutsLongKeys(RenamesKeys):
    def renamed(self, key: str) -> str:
        return key[:255]


class HasOneSpace(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        if isinstance(command, List):
            return super().perform(command, limit)
        name = command.name  # type: ignore[attr-defined]
        path = "/".join(filter(None, (name.key, name.part)))
        return super().perform(replace(command, name=Name(path)), limit)


class ListsAllParts(MemoryStore):
    def _list(self, command: List, now: float) -> Listing:
        return super()._list(replace(command, part_prefix=""), now)


class ListsKeysByPrefix(MemoryStore):
    def _list(self, command: List, now: float) -> Listing:
        everything = super()._list(replace(command, key=None), now).entries
        return Listing(tuple(entry for entry in everything if entry[0].key.startswith(command.key or "")))


class ListsOnePage(MemoryStore):
    def _list(self, command: List, now: float) -> Listing:
        return Listing(super()._list(command, now).entries[:50])


class AnswersShareTheStoresMap(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        if isinstance(answer, Snapshot):
            return replace(answer, fields=self._memory.entries[command.name].fields)  # type: ignore[attr-defined]
        return answer


class ShowsNoTime(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        return replace(answer, store_now=None) if isinstance(answer, Snapshot) else answer


class ShowsNoToken(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        return replace(answer, token=None) if isinstance(answer, Snapshot) else answer


class PermitsHaveNoParts(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        if not isinstance(command, List) and (name := command.name).space is Space.PERMIT:  # type: ignore[attr-defined]
            command = replace(command, name=replace(name, part="0"))  # type: ignore[call-arg]
        return super().perform(command, limit)


class PermitsHaveNoTokens(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        if isinstance(answer, Snapshot) and command.name.space is Space.PERMIT:  # type: ignore[attr-defined]
            return replace(answer, token=None)
        return answer


class TokensBeginAgain(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        return replace(answer, token=1) if isinstance(answer, Snapshot) else answer


class WorksOnAfterClose(MemoryStore):
    def close(self) -> None:
        pass


class PagesByNumber(MemoryStore):
    """Counts records instead of naming the last one: of those that move up, some are passed over."""

    def _list(self, command: List, now: float) -> Listing:
        whole = super()._list(replace(command, page=None, cursor=None), now).entries
        first = 0 if command.cursor is None else int(command.cursor)
        if command.page is None or first + command.page >= len(whole):
            return Listing(whole[first:])
        return Listing(whole[first : first + command.page], str(first + command.page))


class PagesSkipOne(MemoryStore):
    def _list(self, command: List, now: float) -> Listing:
        listing = super()._list(command, now)
        cursor = listing.next_cursor
        return listing if cursor is None else replace(listing, next_cursor=str(int(cursor) + 1))


class PagesBeginAgain(MemoryStore):
    def _list(self, command: List, now: float) -> Listing:
        return super()._list(replace(command, cursor=None), now)


class PagesAreWhole(MemoryStore):
    def _list(self, command: List, now: float) -> Listing:
        pages = super()._list(command, now)
        return Listing(super()._list(replace(command, page=None), now).entries, pages.next_cursor)


class TakesAnyCursor(MemoryStore):
    def _list(self, command: List, now: float) -> Listing:
        is_own = (command.cursor or "0").isdecimal()
        return super()._list(command if is_own else replace(command, cursor=None), now)


class IgnoresPages(MemoryStore):
    """No fault: a store that cannot page answers in one."""

    def _list(self, command: List, now: float) -> Listing:
        return super()._list(replace(command, page=None, cursor=None), now)


class MembersAreListedLate(MemoryStore):
    """A listing by an index that follows the records: what replicas of many databases do."""

    def perform(self, command: Command[Any], limit: float) -> Any:
        if isinstance(command, Extend):
            time.sleep(0.002)
        return super().perform(command, limit)

    def _list(self, command: List, now: float) -> Listing:
        seen = super()._list(command, now)
        newest = self._memory.grants
        kept = tuple(pair for pair in seen.entries if pair[0].space is not Space.MEMBER or pair[1].token != newest)
        return replace(seen, entries=kept)


class RegistrationsForgetTheRevision(MemoryStore):
    def _remove(self, command: Remove, now: float) -> Any:
        is_member = command.name.space is Space.MEMBER
        return super()._remove(replace(command, revision=None) if is_member else command, now)


class GroupsHaveNoTokens(MemoryStore):
    """Each handle counts its own: two readers of one group show different tokens."""

    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        is_group = isinstance(answer, Snapshot) and answer.fields.get("mode") == "shared"
        return replace(answer, token=id(self)) if is_group else answer


class DropsTheRecordsAtClose(MemoryStore):
    def close(self) -> None:
        super().close()
        self._memory.entries.clear()


class LosesMergesInARace(MemoryStore):
    def perform(self, command: Command[Any], limit: float) -> Any:
        if isinstance(command, Extend) and (entry := self._memory.entries.get(command.name)) is not None:
            merged = {**entry.fields, **command.fields}
            time.sleep(0.002)
            entry.fields = merged
        return super().perform(command, limit)


class ShowsItsPassword(MemoryStore):
    def __repr__(self) -> str:
        return "MemoryStore('memory://me:password@host')"


CAUGHT_BY: dict[type[MemoryStore], str] = {
    CreateOverwrites: "test_create_refuses_what_is_there_and_changes_nothing",
    CreateChecksThenActs: "test_h11_of_many_creates_one_wins",
    RemoveForgetsTheIncarnation: "test_remove_expects_the_given_incarnation_and_revision",
    RemoveForgetsTheRevision: "test_remove_expects_the_given_incarnation_and_revision",
    RemoveExpectsTheRevisionAlone: "test_h02_an_old_holders_requests_are_refused",
    RemoveSaysRemovedOfWhatIsAbsent: "test_h05_of_many_removes_one_removes",
    ExtendForgetsTheIncarnation: "test_extend_expects_the_given_incarnation_and_revision",
    ExtendForgetsTheRevision: "test_extend_expects_the_given_incarnation_and_revision",
    ExtendDropsOtherFields: "test_h24_h30_extend_merges_and_keeps_fields_it_was_not_given",
    ExtendDropsEmptyValues: "test_h24_h30_extend_merges_and_keeps_fields_it_was_not_given",
    ExtendSkipsWhatChangesNothing: "test_extend_keeps_the_incarnation_and_moves_the_revision",
    ExtendCreatesWhatIsAbsent: "test_what_is_not_there_is_absent",
    ExtendLeavesUpdatedAt: "test_h07_updated_at_moves_with_every_write_and_never_back",
    ReplaceForgetsTheRevision: "test_replace_refuses_a_record_that_was_renewed_in_between",
    ReplaceKeepsTheIncarnation: "test_replace_writes_a_new_incarnation_of_the_expected_state",
    ReplaceMerges: "test_replace_writes_a_new_incarnation_of_the_expected_state",
    IncarnationsBeginAgain: "test_h02_an_incarnation_never_comes_back",
    IncarnationsAreCountedByTheHandle: "test_h02_an_incarnation_never_comes_back",
    FoldsCase: "test_h23_every_key_is_a_name_of_its_own",
    NormalisesLetters: "test_h23_every_key_is_a_name_of_its_own",
    StripsBlanks: "test_h23_every_key_is_a_name_of_its_own",
    WalksPaths: "test_h23_every_key_is_a_name_of_its_own",
    CutsLongKeys: "test_h23_every_key_is_a_name_of_its_own",
    HasOneSpace: "test_h23_no_key_reaches_the_records_of_another_space",
    ListsAllParts: "test_a_listing_can_be_limited_to_a_key_and_part",
    ListsKeysByPrefix: "test_a_listing_can_be_limited_to_a_key_and_part",
    ListsOnePage: "test_a_listing_is_whole_and_shows_what_a_read_shows",
    AnswersShareTheStoresMap: "test_an_answer_is_a_picture_of_its_instant",
    ShowsNoTime: "test_the_time_of_an_answer_is_what_the_traits_say",
    ShowsNoToken: "test_tokens_grow_with_every_grant",
    PermitsHaveNoParts: "test_permit_records_are_independent_of_each_other",
    PermitsHaveNoTokens: "test_tokens_of_each_permit_record_grow_with_every_grant",
    TokensBeginAgain: "test_tokens_grow_with_every_grant",
    WorksOnAfterClose: "test_a_closed_store_is_unavailable_and_may_be_closed_again",
    PagesByNumber: "test_what_exists_throughout_is_shown_whatever_changes_between_pages",
    PagesSkipOne: "test_the_pages_of_a_listing_show_every_record",
    PagesBeginAgain: "test_the_pages_of_a_listing_show_every_record",
    PagesAreWhole: "test_a_page_is_about_as_large_as_asked_for",
    TakesAnyCursor: "test_a_cursor_that_the_store_did_not_give_is_refused",
    MembersAreListedLate: "test_m01_a_reader_and_a_writer_see_each_other",
    RegistrationsForgetTheRevision: "test_a_registration_is_renewed_and_removed_as_a_lock_is",
    GroupsHaveNoTokens: "test_readers_share_a_lock_and_a_writer_waits_for_all",
    DropsTheRecordsAtClose: "test_records_outlive_the_handle_that_wrote_them",
    LosesMergesInARace: "test_no_extend_is_lost_when_many_extend_at_once",
    ShowsItsPassword: "test_h22_what_is_printed_has_no_credentials",
}
"""Which test of the suite must see which fault; others may see it too."""


def broken_promises(kind: type[MemoryStore]) -> list[str]:
    """Run every test of the suite on stores of this kind, each on an empty one; name those that fail."""

    class Suite(StoreConformance):
        limit = getattr(kind, "limit", 5.0)

    found = []
    for name, promise in inspect.getmembers(Suite(), inspect.ismethod):
        if not name.startswith("test_") or "h13" in name:  # a child's copy of a memory is not a store's fault
            continue
        memory = Memory()
        store = kind(memory)
        given = {
            "store": store,
            "twin": kind(memory),
            "perform": performing(store, Suite.limit),
            "at_once": performing_at_once(store, Suite.limit),
        }
        try:
            promise(**{parameter: given[parameter] for parameter in inspect.signature(promise).parameters})
        except (Exception, pytest.fail.Exception):
            found.append(name)
    return found


@pytest.mark.parametrize("kind", [MemoryStore, IgnoresPages], ids=lambda kind: kind.__name__)
def test_the_store_that_they_are_made_of_keeps_all_promises(kind: type[MemoryStore]) -> None:
    assert broken_promises(kind) == []


def test_every_broken_store_has_the_test_that_must_see_it() -> None:
    broken = {kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, MemoryStore)}
    assert broken - {MemoryStore, RenamesKeys, IgnoresPages} == set(CAUGHT_BY)


@pytest.mark.parametrize("kind", CAUGHT_BY, ids=lambda kind: kind.__name__)
def test_a_broken_promise_is_caught_by_name(kind: type[MemoryStore]) -> None:
    assert CAUGHT_BY[kind] in broken_promises(kind)
