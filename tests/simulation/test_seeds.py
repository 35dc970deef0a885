"""Every property holds in every seed: those that failed once, and a few thousand more."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lockstead.testing.simulation import play
from lockstead.testing.simulation.__main__ import main

CHUNK = 250
KNOWN = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())["seed"]


@pytest.mark.parametrize("seed", [known["number"] for known in KNOWN])
def test_a_seed_that_failed_once_holds(seed: int) -> None:
    run = play(seed)
    assert run.violation is None, f"make sim SEED={seed}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 12 * CHUNK, CHUNK))
def test_every_property_holds_in_every_seed(first: int) -> None:
    failed = [
        f"make sim SEED={run.seed}  # {run.violation}"
        for run in map(play, range(first, first + CHUNK))
        if run.violation
    ]
    assert not failed, "\n".join(failed)


def test_one_seed_replays_everything() -> None:
    one, again = play(11, is_told=True), play(11, is_told=True)
    assert one.log == again.log
    assert one.log
    assert play(11).delivered == one.delivered


def test_the_runs_are_worth_their_time() -> None:
    runs = [play(seed) for seed in range(60)]
    for what in ("delivered", "faulted", "grants", "losses", "tokens"):
        assert sum(getattr(run, what) for run in runs) > 20, what


def test_the_command_line_prints_the_event_log_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "11"]) == 0
    shown = capsys.readouterr().out
    assert "holds" in shown
    assert "calm from now on" in shown


def test_the_command_line_plays_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--from", "7"]) == 0
    assert "5 runs, 0 failed" in capsys.readouterr().out
