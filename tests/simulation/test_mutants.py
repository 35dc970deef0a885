"""The suite tests the suite: every engine and store that is broken on purpose is caught, by name.

Random search alone misses what one interleaving shows at once, so every fault has a directed test of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import play
from tests.simulation.mutants import MUTANTS, broken
from tests.simulation.mutants.table import found, table, within

SEARCHED = {name: bound for name in found() if (bound := within(name)) is not None}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_directed_test_passes_on_the_whole_engine(name: str, tmp_path: Path) -> None:
    MUTANTS[name].directed.run(tmp_path)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_directed_test_catches_the_fault(name: str, tmp_path: Path) -> None:
    with broken(name), pytest.raises((AssertionError, pytest.fail.Exception)):
        MUTANTS[name].directed.run(tmp_path)


@pytest.mark.parametrize("name", SEARCHED)
def test_random_search_finds_the_fault(name: str) -> None:
    scenario, bound = MUTANTS[name].scenario, SEARCHED[name]
    with broken(name):
        caught = next((seed for seed in range(bound) if play(seed, scenario).violation is not None), None)
    assert caught is not None, f"{name} survived {bound} seeds: python -m tests.simulation.mutants {name}"
    assert play(caught, scenario).violation is None


def test_every_mutant_was_searched_for_and_most_are_found() -> None:
    assert set(found()) == set(MUTANTS)
    without_readers = {name for name, mutant in MUTANTS.items() if mutant.scenario is None}
    assert len(without_readers & set(SEARCHED)) > len(without_readers) / 2
    assert set(SEARCHED) - without_readers
    assert all(bound <= len(MUTANTS[name].seeds) for name, bound in SEARCHED.items())


def test_a_fault_is_taken_out_again() -> None:
    patches = MUTANTS["deadline_from_the_answer"].patches()
    whole = [getattr(owner, attribute) for owner, attribute, _ in patches]
    with broken("deadline_from_the_answer"):
        assert [getattr(owner, attribute) for owner, attribute, _ in patches] != whole
    assert [getattr(owner, attribute) for owner, attribute, _ in patches] == whole


def test_the_table_names_every_fault_and_its_test() -> None:
    printed = table()
    assert [mutant.name for mutant in MUTANTS.values() if f"(`{mutant.name}`)" not in printed] == []
    assert [mutant.name for mutant in MUTANTS.values() if f"`{mutant.directed.name}`" not in printed] == []
