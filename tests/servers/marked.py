"""How the processes of an orchestrator are found and ended, all of them: by a mark in their environment.

Must not know any orchestrator. What it starts inherits the mark, also what leaves its process group and its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

MARK: Final = "LOCKSTEAD_TEST_MARK"
"""An environment variable that every process of one orchestrator inherits, orphans too; its value is that one's own."""

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
    """Kills every process of one orchestrator as soon as the process that started it is gone, and when told to."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WATCHER, f"{MARK}={mark}"], stdin=subprocess.PIPE, start_new_session=True
        )

    def sweep(self) -> None:
        """Kill them now, orphans and what tasks left behind included, and wait until it is done."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60.0)


def pids_of(mark: str) -> list[int]:
    """Return the living processes of one orchestrator: also those whose parents are gone."""
    return carriers(f"{MARK}={mark}")


def carriers(said: str) -> list[int]:
    """Return the living processes that were started with this in their environment, as `NAME=value`."""
    wanted, found = said.encode(), []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int:
    """Return the parent of a process; ProcessLookupError if it is gone."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    return int(said.rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pid: int) -> None:
    """End a process at once (SIGKILL)."""
    os.kill(pid, signal.SIGKILL)
