"""Finding and killing all processes of an orchestrator, by a mark in their environment.

Must not know any orchestrator. Its descendants inherit the mark, even those that leave its process group and parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

MARK: Final = "LOCKSTEAD_TEST_MARK"
"""An environment variable that every process of one orchestrator inherits, including orphans; its value is unique."""

WATCHER: Final = """
import os, signal, sys
mark = sys.argv[1].encode()
sys.stdin.read()  # ends when who started us ends, however it ends
for _round in range(20):
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with open(f"/proc/{entry.name}/environ", "rb") as said:
                    if mark in said.read().split(b"\\0"):
                        os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass
"""


class Watcher:
    """A process that kills every process of one orchestrator when the process that started it ends, or on `sweep`."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WATCHER, f"{MARK}={mark}"], stdin=subprocess.PIPE, start_new_session=True
        )

    def sweep(self) -> None:
        """Kill them now, including orphans and processes that tasks left behind, and wait until that is done."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60.0)


def pids_of(mark: str) -> list[int]:
    """Return the ids of the living processes of one orchestrator, including orphans."""
    return carriers(f"{MARK}={mark}")


def carriers(said: str) -> list[int]:
    """Return the ids of the living processes that were started with `NAME=value` in their environment."""
    wanted, found = said.encode(), []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int:
    """Return the process id of a process's parent; ProcessLookupError if the process is gone."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    return int(said.rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pid: int) -> None:
    """Kill a process (SIGKILL)."""
    os.kill(pid, signal.SIGKILL)
