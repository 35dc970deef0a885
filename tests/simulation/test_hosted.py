"""Real stores in virtual time: whole ones hold in every seed, and those that break a promise are found out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstead.protocol.commands import Extend, Remove, Replace
from lockstead.stores.bootclock import BootIdentity
from lockstead.stores.memory import MemoryStore
from lockstead.stores.sqlite.store import SqliteStore
from tests.simulation import Scenario, play

HERE = BootIdentity("boot", "time:[1]")
Clock = Callable[[], float]


def test_the_memory_store_holds_in_every_seed() -> None:
    runs = [play(seed, store=lambda now: MemoryStore(clock=now)) for seed in range(400)]
    assert [(run.seed, run.violation) for run in runs if run.violation] == []
    assert sum(run.grants for run in runs) > 400


def test_the_memory_store_holds_beside_a_pruner() -> None:
    runs = [play(seed, Scenario.PRUNED, store=lambda now: MemoryStore(clock=now)) for seed in range(90)]
    assert [(run.seed, run.violation) for run in runs if run.violation] == []
    assert sum(run.grants for run in runs) > 90


def test_sqlite_holds_in_every_seed(tmp_path: Path) -> None:
    numbers = itertools.count()

    def opened(now: Clock) -> SqliteStore:
        # its wall clock runs back: it must decide nothing
        return SqliteStore(tmp_path / f"{next(numbers)}.db", now=now, wall=lambda: 1e9 - now(), here=lambda: HERE)

    runs = [play(seed, Scenario.SHORT, store=opened) for seed in range(60)]
    assert [(run.seed, run.violation) for run in runs if run.violation] == []
    assert sum(run.grants for run in runs) > 60


class RemovesWhateverIsThere(MemoryStore):
    def _remove(self, command: Remove, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        return super()._remove(command if entry is None else replace(command, incarnation=str(entry.token)), now)


class ExtendsWhateverIsThere(MemoryStore):
    def _extend(self, command: Extend, now: float) -> Any:
        return super()._extend(replace(command, incarnation=None, revision=None), now)


class ReplacesWhateverRevisionIsThere(MemoryStore):
    def _replace(self, command: Replace, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        return super()._replace(command if entry is None else replace(command, revision=str(entry.revision)), now)


class ExtendLeavesUpdatedAt(MemoryStore):
    def _extend(self, command: Extend, now: float) -> Any:
        entry = self._memory.entries.get(command.name)
        was = now if entry is None else entry.updated_at
        answer = super()._extend(command, now)
        if entry is not None:
            entry.updated_at = was
        return answer


@pytest.mark.parametrize(
    "kind", [RemovesWhateverIsThere, ExtendsWhateverIsThere, ReplacesWhateverRevisionIsThere, ExtendLeavesUpdatedAt]
)
def test_a_store_that_breaks_a_promise_is_found_out(kind: type[MemoryStore]) -> None:
    runs = (play(seed, Scenario.LONG, store=lambda now: kind(clock=now)) for seed in range(2000))
    caught = (run.seed for run in runs if run.violation is not None)
    assert next(caught, None) is not None
