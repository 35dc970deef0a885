"""Faults of stores: what they expect, count and show. Patched into the simulator's store, or into SQLite's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstead.protocol import renew
from lockstead.protocol.commands import Conflict, Snapshot
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.values import Space
from tests.protocol import test_hazards, test_rules
from tests.simulation.mutants.patching import Patch, everywhere, mutant
from tests.simulation.store import DATED, SHARED, SimulatedStore
from tests.stores.sqlite import test_store as test_sqlite


@mutant(
    "expects the metageneration (revision) alone",
    "the published algorithm and both implementations: the count starts at 1 for each holder",
    test_hazards.test_h02_a_delayed_request_does_not_hit_the_next_holder,
    is_store=True,
    traits=SHARED,
    late="delete",
)
def metageneration_alone() -> list[Patch]:
    known: dict[tuple[int, str], int] = {}
    true_extend, true_remove, true_grant = SimulatedStore._extend, SimulatedStore._remove, SimulatedStore._grant

    def as_expected(self: Any, command: Any, entry: Any) -> Any:
        """Put the expectation of the revision that was shown last under the incarnation in its place."""
        if command.incarnation is None:
            return command
        if known.get((id(self), command.incarnation)) != entry.revision:
            return None
        return replace(command, incarnation=entry.incarnation, revision=None)

    def extend(self: Any, command: Any, entry: Any, now: float) -> Any:
        loose = as_expected(self, command, entry)
        answer = Conflict() if loose is None else true_extend(self, loose, entry, now)
        if isinstance(answer, Snapshot):
            known[id(self), answer.incarnation] = int(answer.revision)
        return answer

    def remove(self: Any, command: Any, entry: Any, now: float) -> Any:
        loose = as_expected(self, command, entry)
        return Conflict() if loose is None else true_remove(self, loose, entry, now)

    def grant(self: Any, *args: Any) -> Any:
        shown = true_grant(self, *args)
        known[id(self), shown.incarnation] = 1
        return shown

    return [(SimulatedStore, "_extend", extend), (SimulatedStore, "_remove", remove), (SimulatedStore, "_grant", grant)]


@mutant(
    "client supplies the revision",
    "two renewals write the same number: the record seems to stand still",
    test_rules.test_rule_01_concurrent_siblings_leave_a_revision_each,
    is_store=True,
)
def revision_supplied_by_the_client() -> list[Patch]:
    true_renew, true_extend = renew.renew, SimulatedStore._extend
    counted: dict[tuple[int, str], int] = {}

    def renewing(lease: Any, fields: Any, context: Any) -> Any:
        key = (id(context.observations), lease.incarnation)
        mine = counted.get(key, 1) + 1
        outcome = yield from true_renew(lease, {**fields, "revision": str(mine)}, context)
        counted[key] = mine
        return outcome

    def extend(self: Any, command: Any, entry: Any, now: float) -> Any:
        fields = dict(command.fields)
        supplied = fields.pop("revision", None)
        answer = true_extend(self, replace(command, fields=fields), entry, now)
        if supplied is None or not isinstance(answer, Snapshot):
            return answer
        entry.revision = int(supplied)
        return replace(answer, revision=supplied)

    renewing.__name__ = "renew"
    return [*everywhere(true_renew, renewing), (SimulatedStore, "_extend", extend)]


@mutant(
    "tokens are the companion's revision",
    "the companion is deleted: tokens restart, and the fence accepts older ones",
    test_rules.test_rule_10_tokens_grow_over_a_deleted_companion,
    is_store=True,
)
def tokens_begin_again_with_the_companion() -> list[Patch]:
    true = SimulatedStore._show

    def show(self: Any, entry: Any, now: float, name: Any) -> Any:
        shown = true(self, entry, now, name)
        is_drawn = name.space is Space.COMPANION and self.traits is DATED
        return replace(shown, token=entry.revision) if is_drawn else shown

    return [(SimulatedStore, "_show", show)]


@contextmanager
def _opened(folder: Path) -> Iterator[Mapping[str, Any]]:
    stores: list[SqliteStore] = []

    def opens(at: Path = folder / "locks.db", **settings: Any) -> SqliteStore:
        stores.append(SqliteStore(at, **settings))
        return stores[-1]

    try:
        yield {"opened": opens}
    finally:
        for store in stores:
            store.close()


@mutant(
    "wall clock in SQLite",
    "`CURRENT_TIMESTAMP` is stepped by a time server: a live lock is taken",
    test_sqlite.test_h07_the_wall_clock_decides_nothing,
    fixtures=_opened,
    is_store=True,
)
def wall_clock_in_sqlite() -> list[Patch]:
    true = SqliteStore.__init__

    def init(self: Any, *args: Any, **settings: Any) -> None:
        true(self, *args, **settings)
        self._now = self._wall

    return [(SqliteStore, "__init__", init)]


@mutant(
    "SQLite: a stalled write turns `updated` back",
    "a fresh renewal looks old",
    test_sqlite.test_h20_a_write_that_was_stalled_does_not_turn_updated_at_back,
    fixtures=_opened,
    is_store=True,
)
def sqlite_turns_updated_back() -> list[Patch]:
    true = SqliteStore._row

    def row(self: Any, granted: int, revision: int, updated: float, fields: dict[str, str]) -> Any:
        return true(self, granted, revision, self._now(), fields)

    return [(SqliteStore, "_row", row)]


@mutant(
    "SQLite: clocks of two boots are compared",
    "after a restart yesterday's holder seems alive",
    test_sqlite.test_h06_after_another_boot_every_holder_is_dead,
    fixtures=_opened,
    is_store=True,
)
def sqlite_compares_clocks_of_two_boots() -> list[Patch]:
    true = SqliteStore._set_place

    def set_place(self: Any, place: Any) -> None:
        true(self, replace(place, boot="any", namespace="any"))

    return [(SqliteStore, "_set_place", set_place)]
