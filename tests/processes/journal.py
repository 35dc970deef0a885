"""What the processes of a kill run write down about themselves, and how a writer's death mid-line is read.

Every process of a run shares one boot clock, so their instants compare. Must not know what the lines prove.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lockstead.stores.bootclock import boot_now


@dataclass(frozen=True, slots=True)
class Event:
    """One line: at (seconds on the boot clock) is when, pid the process.

    what is one of: asks, refused, silent; holds (until: its deadline, word: the outcome of the previous lease),
    token, writes and wrote (value), lost (word: why), leaves (before the release), removed, left (without removing);
    killed; looks (from `at` to `until`, shown: holder and token by key); finally (the lock was acquired after all
    kills).
    """

    at: float
    pid: int
    what: str
    key: str = ""
    holder: str = ""
    token: int | None = None
    until: float = 0.0
    word: str = ""
    shown: dict[str, Any] | None = None
    value: int | None = None


def append(descriptor: int, said: object) -> None:
    """Write a line, in one piece and behind whatever a killed process left unfinished."""
    os.write(descriptor, b"\n" + json.dumps(said, separators=(",", ":")).encode())


def lines(path: Path) -> list[list[Any]]:
    """Return all whole lines of a file; one whose writer was killed in the middle of it was never written."""
    whole = []
    for line in path.read_bytes().splitlines():
        try:
            read = json.loads(line)
        except ValueError:
            continue
        # the rest of a line cut short may be JSON too: a number, but never a list
        if isinstance(read, list):
            whole.append(read)
    return whole


class Journal:
    """The one file that all processes of a run append to. Survives each of them; promises nothing over power loss."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(
        self,
        what: str,
        key: str = "",
        holder: str = "",
        *,
        at: float | None = None,
        pid: int | None = None,
        token: int | None = None,
        until: float = 0.0,
        word: str = "",
        shown: dict[str, Any] | None = None,
        value: int | None = None,
    ) -> None:
        """Append one event; now and by this process unless said otherwise."""
        instant = boot_now() if at is None else at
        who = os.getpid() if pid is None else pid
        append(self._descriptor, [instant, who, what, key, holder, token, until, word, shown, value])

    def events(self) -> list[Event]:
        """Return everything that was written, in order of writing."""
        return [Event(*line) for line in lines(self.path)]

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
