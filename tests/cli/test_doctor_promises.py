"""The doctor's checks of any store find the faulty stores with which the conformance suite is tested."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from lockstead.cli.doctor.command import examined_store
from lockstead.cli.doctor.prober import Prober
from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import Command, Create, Replace
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.stores.examination import Guarantee, Severity
from lockstead.stores.memory.store import Memory, MemoryStore
from lockstead.stores.port import Store, SupportsDiagnostics
from tests.conformance.test_the_suite_catches import CAUGHT_BY

CAUGHT_AS = {
    "CreateOverwrites": "promise.create-present",
    "CreateChecksThenActs": "promise.create-race",
    "RemoveForgetsTheIncarnation": "promise.remove-incarnation",
    "RemoveForgetsTheRevision": "promise.remove-revision",
    "RemoveExpectsTheRevisionAlone": "promise.stale-remove",
    "RegistrationsForgetTheRevision": "promise.remove-revision",
    "RemoveSaysRemovedOfWhatIsAbsent": "promise.absent",
    "ExtendForgetsTheIncarnation": "promise.extend-incarnation",
    "ExtendForgetsTheRevision": "promise.extend-revision",
    "ExtendDropsOtherFields": "promise.extend-keeps",
    "ExtendDropsEmptyValues": "promise.extend-keeps",
    "ExtendCreatesWhatIsAbsent": "promise.absent",
    "ExtendLeavesUpdatedAt": "promise.extend-updated-moves",
    "ReplaceForgetsTheRevision": "promise.replace-revision",
    "ReplaceKeepsTheIncarnation": "promise.replace",
    "ReplaceMerges": "promise.replace",
    "IncarnationsBeginAgain": "promise.fresh-incarnation",
    "HasOneSpace": "promise.list",
    "ListsAllParts": "promise.list",
    "ShowsNoTime": "clock",
    "ShowsNoToken": "promise.token",
    "TokensBeginAgain": "promise.token",
    "LosesMergesInARace": "promise.extend-incarnation",
}
"""Which finding must name which broken store; others may, too."""

NOT_LOOKED_FOR = {
    # keys are never other than the doctor's own, in a place that is in use
    "FoldsCase",
    "NormalisesLetters",
    "StripsBlanks",
    "WalksPaths",
    "CutsLongKeys",
    "ListsKeysByPrefix",
    # it takes many records, a second handle, or the end of the store
    "ListsOnePage",
    *("PagesAreWhole", "PagesBeginAgain", "PagesByNumber", "PagesSkipOne", "TakesAnyCursor"),
    "IncarnationsAreCountedByTheHandle",
    "WorksOnAfterClose",
    "DropsTheRecordsAtClose",
    # no matter of what is stored
    "AnswersShareTheStoresMap",
    "ShowsItsPassword",
    # every renewal of a lock changes a field
    "ExtendSkipsWhatChangesNothing",
    # its own locks have no permits
    "PermitsHaveNoParts",
    "PermitsHaveNoTokens",
    # nor readers
    "GroupsHaveNoTokens",
    "MembersAreListedLate",
}


def severities(store: Store) -> dict[str, Severity]:
    prober = Prober(store, 5.0, SYSTEM_CLOCK.now() + 60)
    found = {finding.check: finding.severity for finding in examined_store(store, prober, 5.0, None)}
    prober.clean()
    return found


KINDS = {kind.__name__: kind for kind in CAUGHT_BY}


def test_every_broken_store_is_caught_or_listed_as_out_of_scope() -> None:
    assert CAUGHT_AS.keys() | NOT_LOOKED_FOR == KINDS.keys()
    assert CAUGHT_AS.keys() & NOT_LOOKED_FOR == set()


@pytest.mark.parametrize("name", CAUGHT_AS)
def test_a_store_that_the_suite_catches_is_caught_here_by_name(name: str) -> None:
    found = severities(KINDS[name](Memory()))
    assert found[CAUGHT_AS[name]] in (Severity.FAILURE, Severity.WARNING)


def test_a_good_store_keeps_every_guarantee() -> None:
    memory = Memory()
    found = severities(MemoryStore(memory))
    assert {promise.check for promise in Guarantee} <= found.keys()
    assert set(found.values()) == {Severity.OK, Severity.NOTE}
    assert memory.entries == {}


class Fails(MemoryStore):
    """A store that answers everything with one error."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(Memory())
        self.error = error

    def perform(self, command: Command[Any], limit: float) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [StoreUnavailable("dead"), OutcomeUnknown("silent")])
def test_a_record_may_be_left_only_if_its_request_was_sent(error: StoreError) -> None:
    prober = Prober(Fails(error), 5.0, SYSTEM_CLOCK.now() + 60)
    name = prober.fresh()
    assert prober.once(Create(name, {"n": "1"})) is error
    assert prober.clean() == ([name] if isinstance(error, OutcomeUnknown) else [])
    lent = prober.lent("rights")
    assert lent in prober.clean()


def test_an_interrupted_start_of_a_thread_does_not_end_the_clean_up() -> None:
    memory = Memory()
    prober = Prober(MemoryStore(memory), 5.0, SYSTEM_CLOCK.now() + 60)
    prober.settled(Create(prober.fresh(), {"n": "1"}))
    prober._racers.append(threading.Thread())
    assert prober.clean() == []
    assert memory.entries == {}


class AddsItsOwn(MemoryStore):
    """A store whose server adds fields of its own to every write."""

    def perform(self, command: Command[Any], limit: float) -> Any:
        match command:
            case Create():
                command = dataclasses.replace(command, fields={**command.fields, "server": "x"})
            case Replace():
                command = dataclasses.replace(command, fields={**command.fields, "server": "x"})
            case _:
                pass
        return super().perform(command, limit)


def test_fields_that_the_server_adds_break_no_promise() -> None:
    assert set(severities(AddsItsOwn(Memory())).values()) == {Severity.OK, Severity.NOTE}


class Plain:
    """A store with the five members that it must have, and no other."""

    def __init__(self, store: Store) -> None:
        self.traits, self.url = store.traits, store.url
        self.perform, self.after_fork, self.close = store.perform, store.after_fork, store.close


def test_a_store_without_diagnostics_is_examined_by_commands() -> None:
    plain = Plain(MemoryStore())
    assert not isinstance(plain, SupportsDiagnostics)
    found = severities(plain)
    assert {promise.check for promise in Guarantee} <= found.keys()
    assert set(found.values()) == {Severity.OK}
