"""Every property holds in every seed: those that failed once, and a few thousand more."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import Scenario, play, scenario_of
from tests.simulation.__main__ import main, replay_line
from tests.simulation.mutants import broken
from tests.simulation.network import FAULTS
from tests.simulation.plans import ROUGH_DELIVERED
from tests.simulation.store import DATED
from tests.simulation.tally import Tally, play_all, shown

CHUNK = 250
KNOWN = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())["seed"]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: str(known["number"]))
def test_a_seed_that_failed_once_holds(known: dict[str, Any]) -> None:
    scenario = Scenario(known["scenario"])
    run = play(known["number"], scenario)
    assert run.violation is None, replay_line(run.seed, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 12 * CHUNK, CHUNK))
def test_every_property_holds_in_every_seed(first: int) -> None:
    failed = [
        f"{replay_line(run.seed, run.scenario)}  # {run.violation}"
        for run in map(play, range(first, first + CHUNK))
        if run.violation
    ]
    assert not failed, "\n".join(failed)


def test_sixty_messages_or_more_are_delivered_in_every_short_run_and_as_many_requests_on_the_average() -> None:
    runs = [play(seed, Scenario.SHORT) for seed in range(300)]
    assert min(run.delivered + run.answered for run in runs) >= 60
    assert sum(run.delivered for run in runs) / len(runs) >= 60
    assert min(run.delivered for run in runs) >= ROUGH_DELIVERED


def test_every_kind_of_fault_fires_in_both_scenarios() -> None:
    for scenario, seeds in ((Scenario.SHORT, 200), (Scenario.LONG, 150)):
        faults = [
            sum(of_a_kind) for of_a_kind in zip(*(play(seed, scenario).faults for seed in range(seeds)), strict=True)
        ]
        assert not [kind for kind, times in zip(FAULTS, faults, strict=True) if not times], scenario


def test_several_processes_play_the_same_runs_as_one() -> None:
    alone, together = Tally(), Tally()
    for tallies in play_all(range(1000, 1600), Scenario.SHORT, 1):
        alone.add(tallies[Scenario.SHORT])
    for tallies in play_all(range(1000, 1600), Scenario.SHORT, 2):
        together.add(tallies[Scenario.SHORT])
    assert (together.runs, together.delivered, together.faults) == (alone.runs, alone.delivered, alone.faults)
    assert together.runs == 600


def test_the_report_shows_a_nought_for_a_fault_that_never_fires() -> None:
    lines = list(shown({Scenario.LONG: Tally(runs=1, took=1.0)}, 1.0))
    assert sum(line.endswith(tuple(FAULTS)) and " 0  " in line for line in lines) == len(FAULTS)


def test_the_line_that_replays_a_seed_names_the_scenario_only_if_the_seed_does_not() -> None:
    assert scenario_of(7) is Scenario.SHORT
    assert replay_line(7, Scenario.SHORT) == "make sim SEED=7"
    assert replay_line(7, Scenario.LONG) == "make sim SEED=7 SCENARIO=long"


def test_one_seed_replays_everything() -> None:
    one, again = play(11, is_told=True), play(11, is_told=True)
    assert one.log == again.log
    assert one.log
    assert play(11).delivered == one.delivered


def test_the_runs_are_worth_their_time() -> None:
    for scenario in Scenario:
        runs = [play(seed, scenario) for seed in range(60)]
        for what in ("delivered", "grants", "losses", "tokens"):
            assert sum(getattr(run, what) for run in runs) > 10, (scenario, what)


def test_the_command_line_prints_the_event_log_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "11"]) == 0
    said = capsys.readouterr().out
    assert "holds" in said
    assert "calm from now on" in said


def test_the_command_line_plays_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "15", "--from", "7"]) == 0
    said = capsys.readouterr().out
    assert "15 runs, 0 failed" in said
    assert "runs a second" in said


def test_the_command_line_prints_one_line_for_a_seed_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with broken("released_lease_goes_on_believing"):
        assert main(["--seeds", "3", "--jobs", "1", "--scenario", "long"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("make sim SEED=0  # at ")
    assert said[1].startswith("make sim SEED=1 SCENARIO=long  # at ")


def test_a_store_of_other_traits_can_be_played() -> None:
    coarse = replace(DATED, scheme="coarse", clock_skew_max=10.0, clock_resolution=5.0)
    for seed in range(100):
        run = play(seed, traits=coarse)
        assert run.violation is None, seed
