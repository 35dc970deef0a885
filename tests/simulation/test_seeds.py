"""Every invariant holds in every seed: those that failed once, and a few thousand more."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstead.values import Space
from tests.simulation import Scenario, play, scenario_of
from tests.simulation.__main__ import main, replay_line
from tests.simulation.faults import FAULTS
from tests.simulation.mutants import broken
from tests.simulation.plan import FAULTY_DELIVERED
from tests.simulation.store import DATED
from tests.simulation.totals import COUNTED, Totals, play_all, report

CHUNK = 250
KNOWN = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())["seed"]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: str(known["number"]))
def test_a_seed_that_failed_once_holds(known: dict[str, Any]) -> None:
    scenario = Scenario(known["scenario"])
    run = play(known["number"], scenario)
    assert run.violation is None, replay_line(run.seed, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 12 * CHUNK, CHUNK))
def test_every_invariant_holds_in_every_seed(first: int) -> None:
    failed = [
        f"{replay_line(run.seed, run.scenario)}  # {run.violation}"
        for run in map(play, range(first, first + CHUNK))
        if run.violation
    ]
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4 * CHUNK, CHUNK))
def test_every_invariant_holds_with_readers(first: int) -> None:
    runs = (play(seed, Scenario.SHARED) for seed in range(first, first + CHUNK))
    failed = [f"{replay_line(run.seed, run.scenario)}  # {run.violation}" for run in runs if run.violation]
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2 * CHUNK, CHUNK))
def test_every_invariant_holds_beside_a_pruner(first: int) -> None:
    runs = (play(seed, Scenario.PRUNED) for seed in range(first, first + CHUNK))
    failed = [f"{replay_line(run.seed, run.scenario)}  # {run.violation}" for run in runs if run.violation]
    assert not failed, "\n".join(failed)


def test_the_pruner_removes_records_of_all_kinds_that_a_lock_has() -> None:
    history = "\n".join(line for seed in range(60) for line in play(seed, Scenario.PRUNED, keeps_history=True).history)
    for space in (Space.MEMBER, Space.LOCK, Space.AUDIT):
        assert history.count(f"space=<Space.{space.name}:") > 5, space


def test_short_runs_deliver_sixty_messages_or_more() -> None:
    runs = [play(seed, Scenario.SHORT) for seed in range(300)]
    assert min(run.delivered + run.answered for run in runs) >= 60
    assert sum(run.delivered for run in runs) / len(runs) >= 60
    assert min(run.delivered for run in runs) >= FAULTY_DELIVERED


@pytest.mark.parametrize(("scenario", "seeds"), [(Scenario.SHORT, 200), (Scenario.LONG, 150), (Scenario.SHARED, 150)])
def test_every_kind_of_fault_occurs(scenario: Scenario, seeds: int) -> None:
    occurred: Counter[str] = Counter()
    for seed in range(seeds):
        occurred.update(play(seed, scenario).faults)
    assert occurred.keys() == set(FAULTS)


def test_readers_attach_by_ticket_and_writers_downgrade() -> None:
    history = "\n".join(line for seed in range(60) for line in play(seed, Scenario.SHARED, keeps_history=True).history)
    for what in (", shared, ", ", exclusive, ", "by the ticket of a reader", " downgrades "):
        assert history.count(what) > 5, what


def test_several_processes_play_the_same_runs_as_one() -> None:
    alone, together = Totals(), Totals()
    for jobs, totals in ((1, alone), (2, together)):
        for chunk in play_all(range(1000, 1600), Scenario.SHORT, jobs):
            totals.add(chunk[Scenario.SHORT])
    assert (together.runs, together.counts, together.faults) == (alone.runs, alone.counts, alone.faults)
    assert together.runs == 600


def test_the_report_shows_zero_for_a_fault_that_never_occurs() -> None:
    lines = list(report({Scenario.LONG: Totals(runs=1, took=1.0)}, 1.0))
    assert sum(line.endswith(tuple(FAULTS)) and " 0  " in line for line in lines) == len(FAULTS)


def test_the_replay_line_names_only_another_scenario() -> None:
    assert scenario_of(7) is Scenario.SHORT
    assert replay_line(7, Scenario.SHORT) == "make sim SEED=7"
    assert replay_line(7, Scenario.LONG) == "make sim SEED=7 SCENARIO=long"


def test_one_seed_replays_everything() -> None:
    one, again = play(11, keeps_history=True), play(11, keeps_history=True)
    assert one.history == again.history
    assert one.history
    assert play(11).delivered == one.delivered


@pytest.mark.parametrize("scenario", Scenario)
def test_runs_have_grants_losses_and_tokens(scenario: Scenario) -> None:
    runs = [play(seed, scenario) for seed in range(60)]
    for what in COUNTED:
        assert sum(getattr(run, what) for run in runs) > 10, what


def test_the_command_line_prints_the_history_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "11"]) == 0
    printed = capsys.readouterr().out
    assert "holds" in printed
    assert "calm from now on" in printed


def test_the_command_line_plays_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "15", "--from", "7"]) == 0
    printed = capsys.readouterr().out
    assert "15 runs, 0 failed" in printed
    assert "runs a second" in printed


def test_the_command_line_prints_a_line_for_a_seed_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with broken("released_lease_goes_on_believing"):
        assert main(["--seeds", "3", "--jobs", "1", "--scenario", "long"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("make sim SEED=0  # at ")
    assert printed[1].startswith("make sim SEED=1 SCENARIO=long  # at ")


def test_a_store_of_other_traits_can_be_played() -> None:
    coarse = replace(DATED, scheme="coarse", clock_skew_max=10.0, clock_resolution=5.0)
    for seed in range(100):
        run = play(seed, traits=coarse)
        assert run.violation is None, seed
