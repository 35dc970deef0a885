"""What of a page is run, and how: as printed, in an empty folder, with nothing of ours in the environment.

The Python of a page is one program, from its first block to its last: what a block uses was printed above it. So is the
shell of a page. Other blocks are shown only, and say so by their tag. Must not know any orchestrator.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

RUN: Final = ("python", "sh")
SHOWN: Final = ("console", "text", "mermaid", "yaml", "json", "sql", "toml", "redis")
"""Tags of what is looked at: a transcript or what is typed once, an output, a picture, a file of something else's."""

PLACES: Final = ("*.md", "docs/**/*.md", "core/*.md", "packages/*/*.md", "examples/**/*.md")
PAGES: Final = sorted(str(path.relative_to(ROOT)) for place in PLACES for path in ROOT.glob(place))

WRAPPERS: Final = {"airflow": "airflow_provider", "prefect": "prefect_block", "dagster": "dagster_resource"}
"""Orchestrator to the folder of its package."""

PROGRAM: Final = "the_page.py"
LIMIT: Final = 300.0
KEPT: Final = ("LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
"""What of this process's environment a page sees besides the commands that are installed."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: the number of its first line, its tag, and its text without indentation."""

    line: int
    tag: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, whose path is relative to the checkout. ValueError if one does not end."""
    found: list[Block] = []
    tag, begins, body = "", 0, list[str]()
    for number, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), 1):
        if not line.lstrip().startswith("```"):
            body.append(line)
        elif begins:
            found.append(Block(begins, tag, textwrap.dedent("\n".join(body)) + "\n"))
            begins = 0
        else:
            tag, begins, body = line.strip().removeprefix("```"), number + 1, []
    if begins:
        raise ValueError(f"{page}: the block at line {begins} has no end")
    return found


def wrapper_of(block: Block) -> str | None:
    """Return the orchestrator whose wrapper a block imports; None for none."""
    return next((name for name in WRAPPERS if f"from {name}_lockstead import" in block.text), None)


def run_wrapper(name: str, folder: Path, programs: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run what is printed of an orchestrator's wrapper: in its guide, in its package's README, and in the README."""
    for page in (f"docs/{name}.md", f"packages/{WRAPPERS[name]}/README.md", "README.md"):
        shown = [block for block in blocks(page) if block.tag == "python"]
        shown = [block for block in shown if page != "README.md" or wrapper_of(block) == name]
        assert shown, page
        run_python(shown, folder, programs, environment)


def program(shown: list[Block]) -> str:
    """Put blocks into one text, each at the line where it stands in its page, so that an error names that line."""
    lines: list[str] = []
    for block in shown:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.text.splitlines()
    return "\n".join(lines) + "\n"


def of_a_person(folder: Path, programs: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a person has: a folder of their own, the commands that they installed, and what is said besides."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    return {**kept, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", **(environment or {})}


def run_python(
    shown: list[Block], folder: Path, programs: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run Python blocks as one program by the `python` of a folder of programs; give what it said, or fail with it.

    It is imported, so what a block does only as the main program is left to whoever runs that. environment: what keeps
    a test off the network and lets it be slow; nothing that the page needs in order to work.
    """
    (folder / PROGRAM).write_text(program(shown), "utf-8")
    return _run(["python", "-c", f"import {PROGRAM.removesuffix('.py')}"], folder, programs, environment)


def run_shell(shown: list[Block], folder: Path, programs: Path | None = None) -> str:
    """Run shell blocks as one script that stops at the first failure; give what it said, or fail with it."""
    return _run(["bash", "-euo", "pipefail", "-c", program(shown)], folder, programs, None)


def _run(command: list[str], folder: Path, programs: Path | None, environment: Mapping[str, str] | None) -> str:
    env = of_a_person(folder, programs or Path(sys.executable).parent, environment)
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout
