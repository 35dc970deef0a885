"""The pages that teach run as printed; the blocks of wrappers do so in the suites of their orchestrators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import PAGES, RUN, SHOWN, WRAPPERS, Block, blocks, program, run_python, run_shell, wrapper_of

FIRST = ("README.md", "core/README.md")
GUIDES = [
    *FIRST,
    "packages/gcs_emulator/README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "getting-started",
            "readers-and-writers",
            "semaphores",
            "elections",
            "dashboard",
            "metrics-and-traces",
            "reaper",
            "run",
            "command-line",
            "json",
            "stores/memory",
            "terraform",
            "testing",
        )
    ),
]
ELSEWHERE = [
    "docs/operating.md",  # in `test_operating`: another process must hold the lock meanwhile
    "docs/access.md",  # in `tests/access`, on real servers
    *(f"docs/{name}.md" for name in WRAPPERS),  # in an environment of the orchestrator
    *(f"packages/{folder}/README.md" for folder in WRAPPERS.values()),
]
REFERENCE = [
    # parts of programs, whose beginning is the reader's own
    *(f"docs/{name}.md" for name in ("api", "prefect-events", "simulation", "writing-a-store")),
    "examples/publishing/README.md",
]
"""All that shows commands or Python and is not run: a page that is new is run."""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    assert [block for block in blocks(page) if block.tag not in (*RUN, *SHOWN)] == []


def test_each_page_that_shows_a_program_is_run_or_a_reference() -> None:
    with_programs = {page for page in PAGES if any(block.tag in RUN for block in blocks(page))}
    assert with_programs == {*GUIDES, *ELSEWHERE, *REFERENCE}


@pytest.mark.parametrize("page", GUIDES)
def test_the_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    shown = [block for block in blocks(page) if block.tag in RUN and wrapper_of(block) is None]
    assert shown
    said = run_python([block for block in shown if block.tag == "python"], tmp_path)
    run_shell([block for block in shown if block.tag == "sh"], tmp_path)
    if page in FIRST:
        # what SQL and JSON take, and more than 32 bits
        assert re.search(r"^publish \d{11,}$", said, re.MULTILINE)


def test_a_failure_names_the_line_of_the_page(tmp_path: Path) -> None:
    shown = [Block(3, "python", "x = 1\n"), Block(9, "python", "x\ny\n")]
    assert program(shown).splitlines()[9] == "y"
    with pytest.raises(AssertionError, match="line 10"):
        run_python(shown, tmp_path)
    with pytest.raises(AssertionError, match="no such thing"):
        run_shell([Block(1, "sh", "echo no such thing; false\ntrue\n")], tmp_path)
