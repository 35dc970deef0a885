"""What the demo of four asks of each who publishes. Must not know any of them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from examples.publishing.demo.accidents import Moment, Part
from examples.publishing.demo.acts import Finding
from examples.publishing.demo.orchestrated import Course, Play, paced
from examples.publishing.demo.theatre import Ledger, Theatre
from examples.publishing.events import What
from examples.publishing.runner import Job

LINGER = {Part.KILLED: 30.0, Part.PAUSED: 12.0}
"""Seconds that who is harmed lingers at that moment: time to be killed or paused there.

Who is paused lingers there again, where its orchestrator tries the section once more and does not tell it so.
"""

READY_WITHIN = 180.0
"""Seconds, for what does not come up at all, not for a busy machine."""

WAITING = "waiting for '"
"""How what a wrapper or `lockstead run` says begins, when somebody waits."""

HOLDER = re.compile(r"waiting(?: for|:) .*?'(?P<owner>[^':]+):")
"""For whom somebody waits, in the words of any of the wrappers and of `lockstead run`: its owner begins with a name."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What one of them is given: where to play, what to publish, and what becomes of it, when.

    home: a folder of its own. settings: what stands in the environment of all that it starts.
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
        """How slowly to go before which phase."""
        return paced(self.job, {} if self.moment is None else {self.moment.key: LINGER[self.part]})


class Party(Protocol):
    """One who publishes: an orchestrator with its one run, or a script."""

    @property
    def name(self) -> str:
        """Its name, and that of its run."""
        ...

    @property
    def python(self) -> Path:
        """The interpreter that its workers run in; LookupError, with one line, if it is not installed."""
        ...

    @property
    def title(self) -> str:
        """Its product and version, and where it can be looked at."""
        ...

    def starting(self) -> Generator[None, None, None]:
        """Bring it up; gives the word back wherever there is something to wait for. Every wait has a limit."""
        ...

    def stop(self) -> None:
        """End it and all that it started, wherever it is. Bounded; idempotent."""
        ...

    def begin(self) -> None:
        """Start its run."""
        ...

    def look(self) -> None:
        """Take what is new into the course."""
        ...

    def is_over(self) -> bool:
        """Return whether its run has ended, and whatever follows from that."""
        ...

    def kill(self, repository: str) -> str:
        """Kill the worker that is at work on a repository (SIGKILL); the process, in words."""
        ...

    def pause(self, repository: str) -> str:
        """Stop the process that is at work on a repository (SIGSTOP); the process, in words."""
        ...

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        ...

    def mend(self) -> str:
        """After a loss: have it run again, if it failed and does not do so by itself; what was done, or ""."""
        ...

    @property
    def awaited(self) -> str:
        """What it said, in its own words, when it waited for somebody else; "" if it did not."""
        ...

    def state(self) -> object:
        """Say where its run is."""
        ...

    def findings(self) -> list[Finding]:
        """Ask its orchestrator how it ended, and judge whether that is what its part asks for."""
        ...


P = TypeVar("P", bound=Play)


class Orchestrated(Generic[P]):
    """What parties with an orchestrator of their own have in common: their one run is one of its plays."""

    name: str
    _play: P
    """From the start on."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._paused: int | None = None

    @property
    def awaited(self) -> str:
        """What the run said when it waited."""
        return self._play.awaited.get(self.name, "")

    def begin(self) -> None:
        """Start the run."""
        self._play.start(self.name)

    def look(self) -> None:
        """Take what is new into the course."""
        self._play.look()

    def is_over(self) -> bool:
        """Return whether the run has ended, and whatever follows from that."""
        return self._play.are_over()

    def kill(self, repository: str) -> str:
        """Kill the worker that is at work on a repository."""
        return self._play.kill(self.name, repository)

    def resume(self) -> None:
        """Let the process that was stopped go on."""
        if self._paused is not None:
            os.kill(self._paused, signal.SIGCONT)

    def state(self) -> object:
        """Say where the run is."""
        return self._play.states()

    def _pause(self, pid: int, what: str) -> str:
        """Stop a process; say which."""
        self._paused = pid
        os.kill(pid, signal.SIGSTOP)
        return f"process {pid}, {what}"


def awaits(said: str) -> str:
    """Name for whom somebody waits, who says so; "" if it is said of nobody."""
    found = HOLDER.search(said)
    return "" if found is None else found["owner"]


def note_wait(awaited: dict[str, str], name: str, said: str) -> None:
    """Keep what a run says of its waiting: the first that names for whom."""
    if not awaits(awaited.get(name, "")):
        awaited[name] = said


def tokens(course: Course, name: str, repository: str) -> list[int | None]:
    """Return the tokens with which somebody held a lock, one after the other."""
    return [one.number for one in course.of(What.HOLDS, repository) if one.run == name]


def until(condition: Callable[[], object], otherwise: str, seconds: float) -> Iterator[None]:
    """Return the word until a condition holds; TimeoutError, saying otherwise, after so many seconds."""
    ends_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{otherwise} after {seconds:.0f} s")
        yield
