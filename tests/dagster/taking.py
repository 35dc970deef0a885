"""How a lease is taken away from a body that works, and what is seen then; in threads beside the run.

Every wait has a limit.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import lockstead
from lockstead import Lock
from tests.servers import base

LIMIT: Final = 150.0
"""Seconds for which anything is waited for."""

_NAPS: Final = itertools.count(1)


@dataclass
class Place:
    """A test's own store and folder; nap: the seconds for which its processes sleep, and nobody else's."""

    folder: Path
    url: str = field(init=False)
    nap: str = field(init=False)

    def __post_init__(self) -> None:
        """Say it to the bodies, by the environment."""
        self.url = f"sqlite:///{self.folder}/locks.db"
        self.nap = f"{600 + os.getpid()}.{next(_NAPS)}"

    @property
    def environment(self) -> dict[str, str]:
        """What the bodies read."""
        return {
            "LOCKSTEAD_TEST_STORE": self.url,
            "LOCKSTEAD_TEST_FOLDER": str(self.folder),
            "LOCKSTEAD_TEST_NAP": self.nap,
        }

    def lock(self, key: str = "k") -> Lock:
        """Return a lock of this store."""
        return lockstead.Lock(f"{self.url}#{key}", ttl="2s")

    def is_free(self, key: str = "k") -> bool:
        """Return whether nobody holds a lock, though the record of who lost it may stand still."""
        held = self.lock(key).inspect()
        return held is None or held.is_expired

    def count(self, name: str) -> int:
        """Tell how often the bodies came to a point."""
        path = self.folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def has(self, name: str) -> bool:
        """Return whether a body came to a point, and has said so whole: a file is there before its first line is."""
        return self.count(name) > 0

    def sleepers(self) -> list[int]:
        """Return the processes of this test that sleep still."""
        found = []
        for entry in os.scandir("/proc"):
            try:
                if entry.name.isdigit() and self.nap in (Path(entry.path) / "cmdline").read_text().split("\0"):
                    found.append(int(entry.name))
            except (OSError, UnicodeDecodeError):
                continue
        return found


def until(is_so: Callable[[], object], what: str, limit: float = LIMIT) -> None:
    """Wait until this is so."""
    base.until(is_so, limit, lambda: f"not within {limit:g} s: {what}", pause=0.01, pause_max=0.1)


class Beside:
    """Something that happens beside a run, in a thread; its failure is raised at the end of the block."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what = what
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._what()
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(2 * LIMIT)
        assert not self._thread.is_alive(), "what happens beside the run does not end"
        if self._failure is not None:
            raise self._failure


def taken_away(
    place: Place, *, now: bool = False, key: str = "k", started: int = 0, at: list[float] | None = None
) -> Callable[[], None]:
    """Take the lease of a body away once it is in it. now: at once; else its holder finds out at its next renewal.

    started: how many processes it must have started before. at: is given the time at which it was done.
    """

    def take() -> None:
        until(lambda: place.has("in"), "the body runs")
        until(lambda: len(place.sleepers()) >= started, "its processes run")
        assert place.lock(key).break_lease(reason="taken away by a test", now=now) is not None
        if at is not None:
            at.append(time.monotonic())

    return take


@contextmanager
def held_by_another(place: Place, key: str = "k") -> Iterator[None]:
    """Hold a lock from another thread: who asks in its own is told that it would wait for itself."""
    holds, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lockstead.Lock(f"{place.url}#{key}", owner="somebody/else").hold():
            holds.set()
            is_over.wait(LIMIT)

    with Beside(hold):
        assert holds.wait(LIMIT), "nobody holds the lock"
        try:
            yield
        finally:
            is_over.set()
