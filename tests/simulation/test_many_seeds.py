"""The unbroken engine keeps its promises under every seed of the CI's size; `make sim SEEDS=100000` plays more."""

from __future__ import annotations

import pytest

from lockstead.testing.simulation import play

SEEDS = 3000
PORTIONS = 12


@pytest.mark.slow
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_no_seed_violates_a_property(portion: int) -> None:
    begun = 0
    for seed in range(portion, SEEDS, PORTIONS):
        run = play(seed)
        assert run.violation is None, f"make sim SEED={seed}"
        begun += run.grants
    assert begun > SEEDS / PORTIONS, "hardly anybody ever held the lock: the simulation shows nothing"


def test_one_seed_replays_everything() -> None:
    first, again = play(11, is_told=True), play(11, is_told=True)
    assert first.log
    assert first.log == again.log
