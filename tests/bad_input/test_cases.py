"""Each piece of bad input has its error class and one line that says what to do, in both colours and in the shell."""

from __future__ import annotations

import asyncio
import re
import traceback
from pathlib import Path

import pytest

import lockstead
from lockstead.cli.main import call
from tests.bad_input.cases import CASES, SETTINGS, Case
from tests.bad_input.lines import AIRFLOW, SAID, SECRET, pattern
from tests.bad_input.world import World

SHELL = [case for case in CASES if case.code is not None and case not in SETTINGS]


def told(case: Case, error: BaseException, url: str) -> str:
    """Return the message, once everything that holds for each of them was looked at."""
    line = str(error)
    assert type(error) is case.kind, repr(error)
    assert pattern(case.says).fullmatch(line), f"{line!r} is not {case.says!r}"
    assert "\n" not in line
    assert SECRET not in "".join(traceback.format_exception(error, limit=0)).replace(f"{SECRET}.json", "")
    return line


def blocking(url: str) -> None:
    lockstead.Lock(url).try_acquire()


def awaiting(url: str) -> None:
    async def use() -> None:
        await lockstead.AsyncLock(url).try_acquire()

    asyncio.run(use())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_h22_h24_bad_input_has_its_class_and_message(case: Case, world: World) -> None:
    url = case.url(world)
    before = world.kept()
    lines = []
    for ask in (blocking, awaiting):
        with pytest.raises(Exception) as raised:
            ask(url)
        lines.append(told(case, raised.value, url))
    # only the reason that the network gives has other words where it is awaited
    assert lines[0] == lines[1] or case.kind is lockstead.StoreUnavailable
    assert world.kept() == before


def said_in_one_line(case: Case, code: int, out: str, err: str) -> None:
    assert (code, out) == (case.code, ""), err
    assert err.startswith("lockstead: "), err
    assert err.count("\n") == 1
    assert pattern(case.says).fullmatch(err.removeprefix("lockstead: ").rstrip("\n")), err
    assert "Traceback" not in err
    assert SECRET not in err


@pytest.mark.parametrize("case", SETTINGS, ids=lambda case: case.name)
def test_the_shell_says_of_a_setting_what_is_wrong_with_it(
    case: Case, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this very process: it ends before a signal or a watchdog is touched."""
    url = case.url(world)
    before = world.kept()
    code = call(["run", url, "--", "echo", "ran"])
    said = capsys.readouterr()
    said_in_one_line(case, code, said.out, said.err)
    assert world.kept() == before


@pytest.mark.parametrize("case", SHELL, ids=lambda case: case.name)
def test_h22_h24_the_shell_says_it_in_one_line_and_runs_nothing(case: Case, world: World) -> None:
    url = case.url(world)
    before = world.kept()
    said_in_one_line(case, *world.run(url))
    assert world.kept() == before


ROW = re.compile(r"^\| `(?P<says>[^`]+)` \|", re.MULTILINE)

ELSEWHERE = re.compile(r"^## (?:Prefect|Dagster)\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""Sections whose lines are compared with the sources of their packages: tests/surface/test_store_pages.py."""


def test_every_line_in_the_docs_is_one_that_is_said() -> None:
    text = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    documented = ROW.findall(ELSEWHERE.sub("", text))
    assert len(documented) == len(set(documented))
    assert len(documented) > 15
    assert set(documented) <= {case.says for case in CASES} | SAID | AIRFLOW
