"""Random runs of readers and writers; the same runs find faults that the simulator does not."""

from __future__ import annotations

from collections import Counter

import pytest

from lockstead.protocol.commands import Traits
from tests.protocol.readers_at_random import played
from tests.protocol.test_shared import ALL, CLOCKS
from tests.simulation.mutants import broken

SEEDS = 150

FOUND = ("group_replaced_by_incarnation_alone", "lists_before_the_mark")


@CLOCKS
def test_no_reader_beside_a_writer(traits: Traits) -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        violation, granted = played(seed, traits)
        assert violation is None, f"seed {seed}: {violation}"
        total += granted
    assert min(total[kind] for kind in ("exclusive", "shared", "downgrade", "ticket")) > SEEDS / 10


@pytest.mark.parametrize("name", FOUND)
def test_the_runs_find_a_fault(name: str) -> None:
    with broken(name):
        assert any(played(seed, traits)[0] for seed in range(SEEDS) for traits in ALL)
