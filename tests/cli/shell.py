"""The installed command `lockstead` as a child process, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lockstead
from tests.cli.conftest import PATIENCE, at_default
from tests.cli.valid import checked

PROGRAM = Path(sys.executable).parent / "lockstead"


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> Any:
        """What it printed as JSON: one value, on one line, and nothing else."""
        (one,) = self.lines
        return one

    @property
    def lines(self) -> list[Any]:
        """What it printed as JSON, one value on each line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """What it printed as JSON on standard error."""
        return json.loads(self.err)["error"]

    def fails(self, code: int, words: str) -> None:
        """Check that it failed with this code and one line on standard error."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        assert self.err.startswith("lockstead: ")
        assert words in self.err


class Shell:
    """Where commands are run. store is the URL of the store that they all use."""

    def __init__(self, where: Path, store: str) -> None:
        self.where = where
        self.store = store
        self.environment: dict[str, str] = {}
        self.notice = ""
        """What its commands say about the store itself, and no test but one is about."""
        self.started: list[subprocess.Popen[str]] = []

    def url(self, key: str = "apt") -> str:
        """Return the URL of a lock."""
        return f"{self.store}#{key}"

    def client(self) -> lockstead.Client:
        """Open the store from here."""
        return lockstead.connect(self.store)

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start a command."""
        process = subprocess.Popen(
            [str(PROGRAM), *words],
            cwd=self.where,
            env={**os.environ, "LOCKSTEAD_STORE": self.store, **self.environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=at_default,  # noqa: PLW1509 - it does nothing that a thread could be in the way of
        )
        self.started.append(process)
        return process

    def run(self, *words: str, given: str | None = None) -> Done:
        """Run a command to its end; given is its standard input."""
        process = self.start(*words, stdin=subprocess.DEVNULL if given is None else subprocess.PIPE)
        return self.ended(process, given)

    def ended(self, process: subprocess.Popen[str], given: str | None = None) -> Done:
        """Wait for the end of a command."""
        out, err = process.communicate(given, timeout=PATIENCE * 3)
        assert "Traceback" not in err or "--debug" in process.args, err
        assert isinstance(process.args, list)
        checked(process.args, process.returncode, out, err)
        return Done(process.returncode, out, err.replace(self.notice, "", 1) if self.notice else err)

    def hold(self, key: str = "apt", **settings: Any) -> str:
        """Hold a lock for half an hour without renewals, and return its ticket: quicker than a command."""
        with self.client() as client:
            lease = client.lock(key, **{"ttl": "30m", **settings}).acquire(60)
            lease.sequencer()
            return str(lease.detach())

    def acquire(self, *words: str, key: str = "apt") -> str:
        """Acquire a lock and give its ticket."""
        done = self.run("acquire", self.url(key), *words)
        assert done.code == 0, done
        assert done.out.count("\n") == 1
        return done.out.strip()

    def close(self) -> None:
        """Kill what is left."""
        for process in self.started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()
