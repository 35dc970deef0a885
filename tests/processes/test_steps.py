"""SIGKILL between every two SQL statements of the SQLite store, and finer: the file is as before or as after (H1)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.processes.shims import preloaded
from tests.processes.steps import COMMANDS, Death, deaths

WRITING = ("create", "extend", "replace", "remove", "found")


def steps(found: list[Death]) -> Counter[str]:
    assert [death for death in found if death.fault] == []
    return Counter(death.command for death in found)


@pytest.mark.parametrize("others", [(), ("--bystander",)], ids=["alone", "beside-another-process"])
def test_h01_a_kill_between_statements_keeps_a_whole_state(tmp_path: Path, others: tuple[str, ...]) -> None:
    """The making of the file and of its schema included; afterwards the next holder proceeds."""
    counted = steps(deaths(tmp_path, "statement", *others))
    # opening the file, then BEGIN, the look, the count, the change, COMMIT
    assert set(counted) >= set(WRITING)
    assert min(counted[command] for command in WRITING) >= 4
    if not others:
        assert set(counted) == set(COMMANDS)
        assert counted["found"] >= 20


@pytest.mark.slow
def test_h01_a_kill_inside_a_statement_keeps_a_whole_state(tmp_path: Path) -> None:
    assert steps(deaths(tmp_path, "tick")).total() > 500


@pytest.mark.slow
@pytest.mark.parametrize("others", [(), ("--bystander",)], ids=["alone", "beside-another-process"])
@pytest.mark.parametrize("way", ["before call", "in call"])
def test_h01_a_kill_at_any_file_system_call_keeps_a_whole_state(
    tmp_path: Path, way: str, others: tuple[str, ...]
) -> None:
    """What a killed process can leave at all: a log cut in the middle of a page, a log half moved into the file."""
    found = deaths(tmp_path, way, *others, **preloaded("disk", tmp_path))
    assert set(steps(found)) >= set(WRITING)
    if not others:
        for command in WRITING:
            assert {death.after for death in found if death.command == command} >= {"old", "new"}


def test_a_store_without_transactions_is_found_out(tmp_path: Path) -> None:
    found = deaths(tmp_path, "statement", "--sabotage", "--command", "create", "--command", "found")
    assert {death.command for death in found if "between" in death.fault} == {"create", "found"}
