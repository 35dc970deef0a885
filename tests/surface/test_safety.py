"""The page on safety cannot drift: every test that it names is in the suite, and no hazard or rule is left out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/safety.md").read_text()
HAZARDS = re.compile(r"def (test_h\d\w*)")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", PAGE)))


def collected() -> set[str]:
    """Return the tests of the files that the page names, as pytest itself finds them, without their parameters."""
    files = sorted({name.partition("::")[0] for name in NAMED})
    assert [file for file in files if not (ROOT / file).is_file()] == []
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


def rows(mark: str) -> dict[int, str]:
    return {int(number): text for number, text in re.findall(rf"^\| {mark} \|(.*)$", PAGE, re.MULTILINE)}


def test_every_test_that_the_page_names_is_in_the_suite() -> None:
    assert len(NAMED) > 100
    assert sorted(set(NAMED) - collected()) == [], "a test was renamed or removed: put docs/safety.md right"


def test_every_hazard_has_a_row_and_a_test() -> None:
    hazards = rows(r"H(\d+)")
    assert sorted(hazards) == list(range(1, 36))
    assert [number for number, text in hazards.items() if "::test_" not in text] == []


def test_every_rule_has_a_row_and_a_test_or_says_that_it_has_none() -> None:
    rules = rows(r"\[(\d+)\]")
    assert sorted(rules) == list(range(1, 18))
    assert [number for number, text in rules.items() if "::test_" not in text and "no test yet" not in text] == []


def test_every_file_and_folder_of_the_suite_that_the_page_names_is_there() -> None:
    places = re.findall(r"`(tests/[\w/.]+?)`", PAGE)
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_hazards_stand_in_the_names_of_tests_with_two_digits() -> None:
    """`pytest -k h04` has to find them all."""
    names = [name for path in sorted(ROOT.glob("tests/**/*.py")) for name in HAZARDS.findall(path.read_text())]
    assert len(names) > 300
    assert [name for name in names if re.search(r"_h\d_", name)] == []
