"""The page on safety is complete: every hazard and rule has a row, and tests that carry its number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/safety.md").read_text()
PROTOCOL: Final = (ROOT / "docs/protocol.md").read_text()
NAMES: Final = [
    name for path in sorted(ROOT.glob("tests/**/*.py")) for name in re.findall(r"def (test_\w+)", path.read_text())
]
SHOWN_BY_HAZARDS: Final = {8, 13, 17}
"""The rules whose tests carry the number of a hazard, as the page says."""


def numbers(mark: str) -> list[int]:
    return [int(number) for number in re.findall(rf"^\| {mark} \|", PAGE, re.MULTILINE)]


def test_every_hazard_has_a_row_and_a_test() -> None:
    hazards = numbers(r"H(\d+)")
    assert sorted(hazards) == list(range(1, 40))
    assert [number for number in hazards if not any(f"_h{number:02}_" in name for name in NAMES)] == []


def test_every_rule_has_a_row_and_a_test() -> None:
    rules = numbers(r"\[(\d+)\]")
    assert sorted(rules) == list(range(1, 18))
    without = {number for number in rules if not any(f"_rule_{number:02}_" in name for name in NAMES)}
    assert without == SHOWN_BY_HAZARDS


def test_every_hazard_and_rule_of_readers_has_tests() -> None:
    hazards = numbers(r"M(\d+)")
    assert sorted(hazards) == list(range(1, 21))
    assert [number for number in hazards if not any(f"_m{number:02}_" in name for name in NAMES)] == []
    rules = {int(number) for number in re.findall(r"\[S(\d+)\]", PROTOCOL)}
    assert rules == set(range(1, 13))
    assert [number for number in rules if not any(f"_s{number:02}_" in name for name in NAMES)] == []


def test_every_rule_of_elections_has_tests() -> None:
    rules = {int(number) for number in re.findall(r"\[E(\d+)\]", PROTOCOL)}
    assert rules == set(range(1, 8))
    assert [number for number in rules if not any(f"_e{number:02}_" in name for name in NAMES)] == []


def test_every_file_that_the_page_names_is_there() -> None:
    places = re.findall(r"`(tests/[\w/.]+?)(?:::(\w+))?`", PAGE)
    assert [place for place, name in places if not (ROOT / place).exists() or (name and name not in NAMES)] == []


def test_hazards_have_two_digits_in_the_names_of_tests() -> None:
    """`pytest -k h04` must find them all."""
    assert [name for name in NAMES if re.search(r"_[hm]\d_", name)] == []
