"""What the demos on real orchestrators share: their home, the course of the two runs, and its judgement.

Independent of the orchestrator and of the tests.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import lockstead
from examples.publishing.demo.acts import Finding
from examples.publishing.demo.environments import ROOT
from examples.publishing.demo.theatre import Ledger, Theatre
from examples.publishing.events import Event, EventKind
from examples.publishing.pipeline import PHASES
from examples.publishing.runner import FORMATS, Job

DOOMED = "tools"
"""The run that is killed in its section; it begins, and the others follow as soon as it holds a lock."""


@dataclass(slots=True)
class Course:
    """What was seen of the runs, and done to them, in this order."""

    events: list[Event] = field(default_factory=list)

    @property
    def killed(self) -> Event | None:
        """Return the event that the first one was killed; None if it was not."""
        return next((one for one in self.events if one.what is EventKind.KILLED), None)

    def add(self, event: Event) -> list[Event]:
        """Add an event; return it, and the new waits for a holder."""
        place = (event.run, event.repository)
        if event.what is EventKind.WAITING:
            if self._has_last(place, {EventKind.HOLDS, EventKind.PHASE, EventKind.PAUSED}):
                return []
            event = replace(event, text=event.text or self.holder(event.repository))
            if (last := self._last(*place)) and (last.what, last.text) == (event.what, event.text):
                return []
        elif event.what is EventKind.REFUSED and self._has_last(place, {EventKind.REFUSED}):
            return []  # another report of the same loss
        elif (last := self._last(*place)) and last.what is EventKind.WAITING and last.at > event.at:
            # a wait may be reported late: it begins no later than it ends
            self.events[self.events.index(last)] = replace(last, at=event.at)
        added = [event]
        if event.what is EventKind.HOLDS:
            others = {
                one.run: None for one in self.events if one.repository == event.repository and one.run != event.run
            }
            waiting = [run for run in others if self._has_last((run, event.repository), {EventKind.WAITING})]
            added += [Event(run, event.repository, EventKind.WAITING, text=event.run, at=event.at) for run in waiting]
        self.events += added
        return added

    def holder(self, repository: str) -> str:
        """Return the last run that acquired a lock and was not seen to end; "" if there is none."""
        held = self.of(EventKind.HOLDS, repository)
        # a killed or paused run is the holder until its lease has expired and another one acquires the lock
        at_work = {EventKind.HOLDS, EventKind.PHASE, EventKind.KILLED, EventKind.PAUSED}
        return held[-1].run if held and self._has_last((held[-1].run, repository), at_work) else ""

    def of(self, what: EventKind, repository: str) -> list[Event]:
        """Return the events of a kind on one repository, in order."""
        found = [one for one in self.events if (one.what, one.repository) == (what, repository)]
        return sorted(found, key=lambda one: one.at)

    def is_writing(self, run: str) -> bool:
        """Return whether a run has a version half written, on the repository where it pauses."""
        return any((one.run, one.repository, one.phase) == (run, "apt", "metadata") for one in self.events)

    def _last(self, run: str, repository: str) -> Event | None:
        found = (one for one in reversed(self.events) if (one.run, one.repository) == (run, repository))
        return next(found, None)

    def _has_last(self, place: tuple[str, str], whats: Container[EventKind]) -> bool:
        last = self._last(*place)
        return last is not None and last.what in whats


class Play(Protocol):
    """Some runs in one orchestrator, as the demo sees them. awaited: the owner that each one waited for."""

    @property
    def awaited(self) -> Mapping[str, str]:
        """Return what each waiting run reported about it, in the words of its orchestrator."""
        ...

    def start(self, name: str) -> None:
        """Start a run."""
        ...

    def are_over(self) -> bool:
        """Return whether all started runs have ended, and those that follow them."""
        ...

    def look(self) -> None:
        """Read what is new."""
        ...

    def kill(self, name: str, repository: str) -> str:
        """Kill (SIGKILL) the worker of a run that works on a repository; return a description of the process."""
        ...

    def states(self) -> object:
        """Describe where the runs are, for the message of a timeout."""
        ...


def play(where: Play, theatre: Theatre, course: Course, names: Sequence[str], patience: float) -> None:
    """Start the runs, all but the first as soon as the first holds a lock, and poll until all have ended.

    The first is killed when its version is half written and another one waits. patience is in seconds; TimeoutError
    after it.
    """
    where.start(DOOMED)
    others = [name for name in names if name != DOOMED]
    ends_at = time.monotonic() + patience
    while True:
        # Asked before polling, or the last lines would be missed.
        are_over = not others and where.are_over()
        where.look()
        if are_over:
            return
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the runs did not end within {patience:.0f} s: {where.states()}")
        if course.of(EventKind.HOLDS, "apt"):
            while others:
                where.start(others.pop())
        if course.killed is None and where.awaited and course.is_writing(DOOMED):
            at = time.monotonic()
            done_to(theatre, course, Event(DOOMED, "apt", EventKind.KILLED, text=where.kill(DOOMED, "apt"), at=at))
        time.sleep(0.2)


SIGNALS = {EventKind.KILLED: "SIGKILL", EventKind.PAUSED: "SIGSTOP", EventKind.RESUMED: "SIGCONT"}


def done_to(theatre: Theatre, course: Course, event: Event) -> None:
    """Add what was done to a run to the course and the display; the event's text describes the process."""
    theatre.board.note(f"{event.what}: {SIGNALS[event.what]} to {event.text}", "yellow")
    for one in course.add(event):
        theatre.board.event(one)


def enter(theatre: Theatre, ledger: Ledger, course: Course, job: Job, event: Event) -> None:
    """Add what a run did to the course, the ledger and the display."""
    for one in course.add(event):
        theatre.note_event(ledger, job, one)


@contextmanager
def a_home(theatre: Theatre, name: str, findings: Sequence[Finding]) -> Iterator[Path]:
    """Return a folder below build/ that is removed after the block.

    It stays, for its logs, if the block fails or has a bad finding.
    """
    home = ROOT / "build" / name / uuid.uuid4().hex[:8]
    home.mkdir(parents=True)
    is_wanted = False
    try:
        yield home
        is_wanted = not all(finding.is_good for finding in findings)
    except Exception:
        is_wanted = True
        raise
    finally:
        if is_wanted:
            theatre.board.note(f"its logs are in {home}", "yellow")
        else:
            shutil.rmtree(home, ignore_errors=True)


def repositories(theatre: Theatre) -> str:
    """Return the URL of the demo's repositories."""
    return f"gs://{theatre.place.bucket}/{theatre.place.prefix}".rstrip("/")


def settings(theatre: Theatre, tmp: Path) -> dict[str, str]:
    """Return the environment of the pipeline's processes; what those leave behind is in tmp."""
    tmp.mkdir()
    return {
        "TMPDIR": str(tmp),
        "PUBLISHING_REPO": repositories(theatre),
        "PUBLISHING_LOCKS": theatre.lock_url,
        "PUBLISHING_SECRET_KEY": theatre.secret_key,
        "PUBLISHING_TTL": f"{theatre.ttl:g}",
    }


def paced(job: Job, lingering: Mapping[str, float]) -> dict[str, float]:
    """Return the pace of a run: its job's, with pauses of these seconds before some phases (`yum/commit`)."""
    pace = {f"{kind}/{phase}": job.pace.every for kind in FORMATS for phase in PHASES} if job.pace.every else {}
    return pace | {key: seconds + job.pace.every for key, seconds in lingering.items()}


def doomed(name: str, linger: float) -> dict[str, float]:
    """Return where a run pauses: the first one, with a version half written."""
    return {"apt/metadata": linger} if name == DOOMED else {}


def cleared(course: Course, by: str | None = None) -> Finding:
    """Return whether a run, or this run, removed what the killed one left."""
    killed = course.killed
    published = course.of(EventKind.PUBLISHED, killed.repository) if killed else []
    are_pruned = any(one.pruned for one in published if by in (None, one.run))
    return Finding(are_pruned, "the half version that the killed one left was cleared away")


def apart(course: Course, kind: str, holders: int) -> Finding:
    """Return whether the runs held the lock one after the other, this often, with a higher token each time.

    A killed run ended by that, and a paused one by losing its lease. Only the last holder published.
    """
    held = course.of(EventKind.HOLDS, kind)
    ended = [one for one in course.events if _ends(one, kind)]
    are_apart = all(
        (one.number or 0) < (other.number or 0)
        and any(end.run == one.run and one.at <= end.at <= other.at for end in ended)
        for one, other in pairwise(held)
    )
    are_last = all(
        [one.run for one in held if one.at <= published.at][-1:] == [published.run]
        for published in course.of(EventKind.PUBLISHED, kind)
    )
    order = ", then ".join(f"{one.run} with token {one.number}" for one in held)
    return Finding(are_apart and are_last and len(held) == holders, f"{kind}: one after the other: {order}")


def _ends(event: Event, kind: str) -> bool:
    """Return whether a run cannot be at work on a repository after an event."""
    # one process may work on both
    return event.what is EventKind.KILLED or (
        event.repository == kind and event.what in {EventKind.PUBLISHED, EventKind.PAUSED}
    )


def free(theatre: Theatre) -> Finding:
    """Return whether both locks are free."""
    held = [kind for kind in FORMATS if lockstead.Lock(f"{theatre.lock_url}#{kind}").inspect() is not None]
    return Finding(not held, "both locks are free" if not held else f"still locked: {', '.join(held)}")


def listed(states: Mapping[str, object]) -> str:
    """Describe the states of runs."""
    return ", ".join(f"{name} {state}" for name, state in states.items())
