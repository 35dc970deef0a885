"""A counter protected by a lock: read, computed, and written back with the holder's token.

It is the resource's side of fencing, in a file. Each write is a line of the counter's history, so that a lost
increment shows forever as a value that was written twice.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstead.fencing import FenceGuard
from lockstead.values import Sequencer
from tests.processes.journal import append, lines

Write = tuple[int, int | None]
"""A token, and the value written under it (None: only presented)."""


class Counter:
    """A counter in a file. Nothing but the lock keeps two processes from reading the same value."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = FenceGuard(self)

    def advance(self, sequencer: Sequencer) -> Sequencer:
        """Remember a token; the fence store of the guard, which is asked with the file locked."""
        return Sequencer(sequencer.key, max([sequencer.token, *(seen for seen, _value in self.history())]))

    def read(self, sequencer: Sequencer) -> int:
        """Present the token, then give the value. LeaseLost if a later holder was here."""
        with self._locked() as descriptor:
            self._guard.admit(sequencer)
            append(descriptor, [sequencer.token, None])
        return max([0, *(value for _token, value in self.history() if value is not None)])

    def write(self, sequencer: Sequencer, value: int) -> None:
        """Set the value. LeaseLost if a later holder was here."""
        with self._locked() as descriptor:
            self._guard.admit(sequencer)
            append(descriptor, [sequencer.token, value])

    def history(self) -> list[Write]:
        """Return everything that was presented and written, in order."""
        return [(int(token), value) for token, value in lines(self.path)] if self.path.exists() else []

    @contextmanager
    def _locked(self) -> Iterator[int]:
        # the file's own lock makes judging and writing one step, as a database would; it dies with its process
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)
