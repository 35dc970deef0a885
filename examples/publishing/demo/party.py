"""The interface of a publisher in the demo of four."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from examples.publishing.demo.acts import Finding
from examples.publishing.demo.faults import Moment, Part
from examples.publishing.demo.orchestrated import Course, Play, paced
from examples.publishing.demo.theatre import Ledger, Theatre
from examples.publishing.events import EventKind
from examples.publishing.runner import Job

LINGER = {Part.KILLED: 30.0, Part.PAUSED: 12.0}
"""Seconds that a harmed run pauses at that moment: time to kill or pause it there.

The paused one pauses there again if its orchestrator repeats the section without telling it.
"""

READY_WITHIN = 180.0
"""Seconds, for what does not come up at all, not for a busy machine."""

WAITING = "waiting for '"
"""The beginnings of what a wrapper or `lockstead run` prints when a run waits."""

HOLDER = re.compile(r"waiting(?: for|:) .*?'(?P<owner>[^':]+):")
"""The owner that a run waits for, in the words of any wrapper and of `lockstead run`."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a publisher gets: where to publish, what, and which fault happens to it.

    home: a folder of its own. settings: the environment of all processes that it starts.
    """

    theatre: Theatre
    ledger: Ledger
    course: Course
    home: Path
    job: Job
    part: Part
    moment: Moment | None
    settings: Mapping[str, str]

    @property
    def pace(self) -> dict[str, float]:
        """Return its pauses before some phases."""
        return paced(self.job, {} if self.moment is None else {self.moment.key: LINGER[self.part]})


class Party(Protocol):
    """A publisher: an orchestrator with its one run, or a script."""

    @property
    def name(self) -> str:
        """Return its name, which is also its run's."""
        ...

    @property
    def python(self) -> Path:
        """Return the interpreter of its workers; LookupError, with one line, if it is not installed."""
        ...

    @property
    def title(self) -> str:
        """Return its product, version and address."""
        ...

    def starting(self) -> Generator[None, None, None]:
        """Start it; yields wherever it waits. Every wait has a limit."""
        ...

    def stop(self) -> None:
        """Stop it and all that it started. Bounded; idempotent."""
        ...

    def begin(self) -> None:
        """Start its run."""
        ...

    def look(self) -> None:
        """Read what is new."""
        ...

    def is_over(self) -> bool:
        """Return whether its run has ended, and every run that follows it."""
        ...

    def kill(self, repository: str) -> str:
        """Kill the worker that works on a repository (SIGKILL); return a description of the process."""
        ...

    def pause(self, repository: str) -> str:
        """Stop the process that works on a repository (SIGSTOP); return a description of the process."""
        ...

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        ...

    def mend(self) -> str:
        """After a loss: run it again, unless it does so by itself; return what was done, or ""."""
        ...

    @property
    def awaited(self) -> str:
        """Return what it printed when it waited for a holder; "" if it did not wait."""
        ...

    def state(self) -> object:
        """Describe where its run is."""
        ...

    def findings(self) -> list[Finding]:
        """Read from its orchestrator how it ended, and judge whether that is correct."""
        ...


P = TypeVar("P", bound=Play)


class Orchestrated(Generic[P]):
    """The common part of publishers with an orchestrator of their own: their one run."""

    name: str
    _play: P
    """The state after the start."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._paused: int | None = None

    @property
    def awaited(self) -> str:
        """Return what the run printed when it waited."""
        return self._play.awaited.get(self.name, "")

    def begin(self) -> None:
        """Start the run."""
        self._play.start(self.name)

    def look(self) -> None:
        """Read what is new."""
        self._play.look()

    def is_over(self) -> bool:
        """Return whether the run has ended, and every run that follows it."""
        return self._play.are_over()

    def kill(self, repository: str) -> str:
        """Kill the worker that works on a repository."""
        return self._play.kill(self.name, repository)

    def resume(self) -> None:
        """Resume the stopped process."""
        if self._paused is not None:
            os.kill(self._paused, signal.SIGCONT)

    def state(self) -> object:
        """Describe where the run is."""
        return self._play.states()

    def _pause(self, pid: int, what: str) -> str:
        """Stop a process; return its description."""
        self._paused = pid
        os.kill(pid, signal.SIGSTOP)
        return f"process {pid}, {what}"


def awaits(said: str) -> str:
    """Return the owner that a waiter names; "" if it names none."""
    found = HOLDER.search(said)
    return "" if found is None else found["owner"]


def note_wait(awaited: dict[str, str], name: str, said: str) -> None:
    """Keep a run's first line about its wait that names the owner."""
    if not awaits(awaited.get(name, "")):
        awaited[name] = said


def tokens(course: Course, name: str, repository: str) -> list[int | None]:
    """Return the tokens with which a run held a lock, in order."""
    return [one.number for one in course.of(EventKind.HOLDS, repository) if one.run == name]


def until(condition: Callable[[], object], otherwise: str, seconds: float) -> Iterator[None]:
    """Yield until a condition holds; TimeoutError with `otherwise` after these seconds."""
    ends_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{otherwise} after {seconds:.0f} s")
        yield
