"""Who is killed and who is paused follows from the seed alone, and six seeds in a row try all pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.publishing.demo.faults import KILLED_BEFORE, PAUSED_BEFORE, Faults, Part
from examples.publishing.events import Event, EventKind
from examples.publishing.pipeline import PHASES

NAMES = ("airflow", "prefect", "dagster")


@given(st.integers())
def test_a_seed_chooses_two_different_victims_and_moments(seed: int) -> None:
    drawn = Faults.of(seed, NAMES)
    assert drawn == Faults.of(seed, NAMES)
    assert {drawn.killed, drawn.paused} < set(NAMES)
    assert drawn.killed != drawn.paused
    assert drawn.killed_at.phase in KILLED_BEFORE
    assert drawn.paused_at.phase in PAUSED_BEFORE
    assert {drawn.killed_at.repository, drawn.paused_at.repository} <= {"apt", "yum"}


@given(st.integers())
def test_six_seeds_in_a_row_harm_each_pair_once(seed: int) -> None:
    pairs = {(one.killed, one.paused) for one in (Faults.of(seed + more, NAMES) for more in range(6))}
    assert len(pairs) == 6


def test_every_moment_is_drawn_for_some_seed() -> None:
    drawn = [Faults.of(seed, NAMES) for seed in range(200)]
    assert len({one.killed_at for one in drawn}) == 2 * len(KILLED_BEFORE)
    assert len({one.paused_at for one in drawn}) == 2 * len(PAUSED_BEFORE)


def test_the_moments_are_between_claim_and_commit() -> None:
    """Then there is half a version to clear away, and nothing is published yet."""
    first, last = PHASES.index("claim") + 1, PHASES.index("commit")
    assert {PHASES.index(phase) for phase in KILLED_BEFORE + PAUSED_BEFORE} <= set(range(first, last + 1))


def test_everybody_has_a_part_and_only_the_harmed_a_moment() -> None:
    drawn = Faults.of(0, NAMES)
    parts = {name: drawn.part(name) for name in (*NAMES, "shell")}
    assert sorted(parts.values()) == [Part.KILLED, Part.PAUSED, Part.UNHARMED, Part.UNHARMED]
    assert {name for name in parts if drawn.moment(name) is None} == {
        name for name, part in parts.items() if part is Part.UNHARMED
    }


def test_a_moment_is_reached_by_the_phase_in_its_repository_alone() -> None:
    moment = Faults.of(0, NAMES).killed_at
    other = "apt" if moment.repository == "yum" else "yum"
    assert moment.is_reached(Event("x", moment.repository, EventKind.PHASE, moment.phase))
    assert not moment.is_reached(Event("x", other, EventKind.PHASE, moment.phase))
    assert not moment.is_reached(Event("x", moment.repository, EventKind.PHASE, "fence"))
    assert not moment.is_reached(Event("x", moment.repository, EventKind.HOLDS, moment.phase))


def test_one_alone_cannot_be_harmed() -> None:
    with pytest.raises(ValueError, match="nobody but one"):
        Faults.of(0, ("airflow",))
