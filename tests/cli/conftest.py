"""Runs of the real command, each in its own session; everything they leave behind is killed at the end.

Every process below a run has a tag in its environment: that is how a test finds what is alive.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from gcs_emulator import GcsServer

if TYPE_CHECKING:
    from tests.cli.shell import Shell

PATIENCE = 20.0


def until(condition: Callable[[], object], what: str = "it", seconds: float = PATIENCE) -> None:
    """Wait for a condition; fail if it does not come about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about within {seconds:g} s"
        time.sleep(0.01)


def _environment(pid: str) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def at_default() -> None:
    """In a child: undo what a test run in the background has inherited from its shell."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Run:
    """One `lockstead run`, under way."""

    def __init__(self, command: list[str], where: Path, environment: dict[str, str]) -> None:
        self.mark = uuid4().hex
        self.where = where
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "RUN_MARK": self.mark},
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=at_default,  # noqa: PLW1509 - it does nothing that a thread could be in the way of
        )

    @property
    def pid(self) -> int:
        """The process of `lockstead run` itself."""
        return self.process.pid

    def marked(self) -> dict[int, bytes]:
        """Return every living process of this run with its environment. A zombie has none."""
        found = {int(path.name): _environment(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
        return {pid: text for pid, text in found.items() if f"\0RUN_MARK={self.mark}\0".encode() in text}

    def section(self) -> list[int]:
        """Return the living processes of the section: those that were told the lock's key."""
        return [pid for pid, text in self.marked().items() if b"\0LOCKSTEAD_KEY=" in text]

    def watchdog(self) -> int:
        """Return the watchdog."""
        (pid,) = [pid for pid in self.marked() if "/supervise/watchdog.py" in Path(f"/proc/{pid}/cmdline").read_text()]
        return pid

    def ready(self, name: str = "ready") -> Path:
        """Wait until the command has made a file; give its path."""
        path = self.where / name
        until(lambda: path.exists() or self.process.poll() is not None, f"the file {name}")
        assert path.exists(), self.outcome()
        return path

    def send(self, number: int) -> None:
        """Signal `lockstead run` alone."""
        os.kill(self.pid, number)

    def outcome(self) -> tuple[int, str, str]:
        """Wait for the end; give exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert "Traceback" not in err, err
        return self.process.returncode, out, err

    def code(self) -> int:
        """Wait for the end; give the exit code."""
        return self.outcome()[0]

    def end(self) -> None:
        """Kill whatever is left."""
        while left := self.marked():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)
        self.process.communicate()


class Runs:
    """Starts runs in one directory. `url` names a lock in a file there, with a short life."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.url = f"sqlite:///{where}/locks.db?ttl=4&abort_margin=1.9#apt"
        self.environment: dict[str, str] = {}
        self.through: list[str] = []
        self.all: list[Run] = []

    def start(self, *arguments: str, url: str | None = None) -> Run:
        """Run with these arguments behind the URL."""
        command = [*self.through, sys.executable, "-m", "lockstead.cli.main", "run", url or self.url, *arguments]
        run = Run(command, self.where, self.environment)
        self.all.append(run)
        return run

    def script(self, text: str, *options: str, url: str | None = None) -> Run:
        """Run a Python script as the command."""
        path = self.where / f"{uuid4().hex}.py"
        path.write_text(textwrap.dedent(text))
        return self.start(*options, "--", sys.executable, "-S", str(path), url=url)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """A directory to run in."""
    started = Runs(tmp_path)
    try:
        yield started
    finally:
        for run in started.all:
            run.end()


PATIENT = "import time; open('ready', 'w').close(); time.sleep(1000)"
"""A command that waits to be ended."""

STUBBORN = """
    import os, signal, sys, time
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        pass                       # a child in the group
    elif os.fork() == 0:
        os.setsid()                # one that left the group
        if os.fork() == 0:
            os.setsid()
        else:
            os._exit(0)            # and one whose parent is dead
    else:
        while not all(os.path.exists(name) for name in ("child", "left")):
            time.sleep(0.01)
        open("ready", "w").close()
        time.sleep(1000)
    open("child" if os.getpgrp() == os.getpgid(os.getppid()) else "left", "w").close()
    time.sleep(1000)
"""
"""A command that no SIGTERM ends, with a child in its group and an orphan outside of it."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Shell]:
    """A shell whose locks are in a file."""
    from tests.cli.shell import Shell

    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/locks.db")
    yield shell
    shell.close()


@pytest.fixture
def bucket(tmp_path: Path, server: GcsServer) -> Iterator[Shell]:
    """A shell whose locks are in a bucket of `server`."""
    from tests.cli.shell import Shell

    shell = Shell(tmp_path, "gs://b/locks")
    shell.notice = f"lockstead: STORAGE_EMULATOR_HOST is set: these locks are at {server.url}, not in Cloud Storage\n"
    yield shell
    shell.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A storage server with a bucket `b`, which child processes find as well."""
    with GcsServer(buckets=["b", "my-bucket"]) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        monkeypatch.setenv("no_proxy", "*")
        yield running


@pytest.fixture(params=["files", "bucket"])
def shell(request: pytest.FixtureRequest) -> Shell:
    """A shell for each store in turn."""
    found: Shell = request.getfixturevalue(request.param)
    return found
