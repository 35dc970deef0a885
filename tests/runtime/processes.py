"""Other processes: a script that is talked to line by line, and the two stores that they can share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Self

PROLOGUE = """
import logging, os, sys, time
import lockstead
logging.getLogger("lockstead").addHandler(logging.NullHandler())
URL = os.environ["TEST_URL"]

def say(*words):
    # one write: a forked child speaks into the same pipe
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def hear():
    return sys.stdin.readline().strip()
"""


class Child:
    """A Python process that runs a script with `say` and `hear`; under is the command that starts it, if any."""

    def __init__(self, script: str, url: str, *, under: Sequence[str] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [*under, sys.executable, "-c", PROLOGUE + textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TEST_URL": url, **environment},
        )

    def hear(self) -> str:
        """Return the next line it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the child ended without a word: {self.process.stderr.read()}")
        return line.strip()

    def say(self, line: str) -> None:
        """Tell it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, seconds: float = 60) -> int:
        """Wait until it has ended, and give its code."""
        self.process.communicate(timeout=seconds)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.communicate()
