"""How the first minute that a wrapper's page shows is lived through, as printed.

The page's program waits for the page's shell command, and goes on when that ends. Must not know any orchestrator.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import lockstead
from tests.pages import of_a_person
from tests.servers.base import dies_with_us

DOCS: Final = Path(__file__).parents[1] / "docs"
LIMIT: Final = 400.0
"""Seconds for which anything is waited for: an orchestrator may make its database first."""

OURS: Final = "the lock is ours"
"""What the body of each page says."""

EXAMPLE_LINES_MAX: Final = 40
"""What is there to be copied is to be read at a glance."""

HOLDERS: Final = "purpose: run sleep"
"""What each page's program says of the holder that it waits for."""


def lived_through(page: str, folder: Path, programs: Path, environment: Mapping[str, str] | None = None) -> str:
    """Do what a page says, in a folder, with the commands of a folder of programs; give what its program said.

    environment: what keeps a test off the network and lets it be slow; nothing that the page needs in order to work.
    AssertionError if the program does not wait, does not run, fails, or leaves the lock held.
    """
    _, _, section = (DOCS / page).read_text("utf-8").partition("## The first minute\n")
    section = section.partition("\n## ")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    holds, runs = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (folder / "first.py").write_text(program)
    lock = lockstead.Lock(f"sqlite:///{folder}/locks.db#apt")
    env = of_a_person(folder, programs, environment)
    with started(holds, folder, "holds.log", env) as holder:
        until(lambda: lock.inspect() is not None, holder, folder / "holds.log")
        with started(runs, folder, "runs.log", env) as runner:
            log = folder / "runs.log"
            # it says whom it waits for, and why that one holds the lock
            until(lambda: HOLDERS in log.read_text(), runner, log)
            assert OURS not in log.read_text()
            os.killpg(holder.pid, signal.SIGTERM)
            assert holder.wait(LIMIT) != 0
            assert runner.wait(LIMIT) == 0, log.read_text()[-4000:]
    assert OURS in log.read_text().partition(HOLDERS)[2]
    assert lock.inspect() is None
    return log.read_text()


def copied(name: str, command: str, folder: Path, programs: Path, environment: Mapping[str, str] | None = None) -> None:
    """Copy an example into a folder where nothing else is, run it there, and look at what it has written."""
    folder.mkdir()
    text = (DOCS.parent / "examples" / name).read_text("utf-8")
    assert text.count("\n") <= EXAMPLE_LINES_MAX
    (folder / name).write_text(text)
    env = of_a_person(folder, programs, environment)
    with started(command, folder, "log", env) as process:
        assert process.wait(LIMIT) == 0, (folder / "log").read_text()[-4000:]
    with closing(sqlite3.connect(folder / "report.db")) as data:
        written = data.execute("SELECT token FROM report").fetchall()
        fence = data.execute("SELECT token FROM lockstead_fence WHERE fence = 'lock:report'").fetchall()
    assert len(written) == 1
    assert written == fence
    assert lockstead.Lock(f"sqlite:///{folder}/locks.db#report").inspect() is None


@contextmanager
def started(commands: str, folder: Path, log: str, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run them in a shell of a process group of its own, which does not outlive the block."""
    with (folder / log).open("wb") as said:
        process = subprocess.Popen(
            [*dies_with_us(), "bash", "-euc", commands],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LIMIT)


def until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a condition of a process that runs; AssertionError with the end of its log."""
    ends_at = time.monotonic() + LIMIT
    while not is_so():
        assert process.poll() is None, f"it ended\n{log.read_text()[-4000:]}"
        assert time.monotonic() < ends_at, f"not within {LIMIT:g} s\n{log.read_text()[-4000:]}"
        time.sleep(0.05)
