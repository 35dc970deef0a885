"""The demo of four: three orchestrators and a script publish to one APT and one YUM repository, under the same locks.

One orchestrator's worker is killed in its section, another's is paused until its lease has expired. Independent of all
four: `party` has the interface of each, `faults` the faults. The oracle, the real clients and the orchestrators' own
records show what happened, not what publishers report of themselves.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from examples.publishing.demo.acts import Finding, judged, say, unharmed
from examples.publishing.demo.faults import Faults
from examples.publishing.demo.orchestrated import Course, apart, cleared, done_to, free
from examples.publishing.demo.party import Party, Scene, awaits
from examples.publishing.demo.theatre import Ledger, Reader, Theatre, attempted
from examples.publishing.events import Event, EventKind
from examples.publishing.runner import FORMATS
from tests.servers.marked import MARK, Watcher

PATIENCE = 420.0
"""Seconds until the run is stopped, in case something never happens; a busy machine needs less."""

LOOK_EVERY = 0.5
"""Seconds between two polls of all of them; each poll costs their servers something."""

OF_ALL = {"PYTHONPYCACHEPREFIX": ""}
"""Environment of all processes: an orchestrator's byte code is beside it, and must not be compiled again elsewhere."""

Maker: TypeAlias = Callable[[Scene], Party]


@dataclass(frozen=True, slots=True)
class Cast:
    """Who publishes, by name: the ones that may be killed or paused, and those that come later."""

    harmed: Mapping[str, Maker]
    later: Mapping[str, Maker]

    @property
    def names(self) -> list[str]:
        """Return all names."""
        return [*self.harmed, *self.later]


@contextmanager
def all_of_them(
    cast: Cast, faults: Faults, theatre: Theatre, ledger: Ledger, course: Course, home: Path
) -> Iterator[dict[str, Party]]:
    """Start all of them at once; at the end all are stopped, with everything that they started, in every case."""
    jobs = dict(zip(cast.names, theatre.jobs("", tuple(cast.names)), strict=True))
    attempted(ledger, tuple(jobs.values()))
    mark = uuid.uuid4().hex
    watcher = Watcher(mark)
    parties: dict[str, Party] = {}
    try:
        for name, make in {**cast.harmed, **cast.later}.items():
            (home / name).mkdir()
            part, moment = faults.part(name), faults.moment(name)
            scene = Scene(theatre, ledger, course, home / name, jobs[name], part, moment, {MARK: mark, **OF_ALL})
            parties[name] = make(scene)
        _bring_up(theatre, parties)
        yield parties
    finally:
        with _undisturbed():
            try:
                with ThreadPoolExecutor(len(parties) or 1) as pool:
                    for stopping in [pool.submit(party.stop) for party in parties.values()]:
                        stopping.result()
            finally:
                watcher.sweep()


def _bring_up(theatre: Theatre, parties: dict[str, Party]) -> None:
    """Start them concurrently, in this one thread, so that an interrupt finds no other thread at work."""
    began_at = time.monotonic()
    starting = {name: party.starting() for name, party in parties.items()}
    try:
        while starting:
            for name, steps in list(starting.items()):
                try:
                    next(steps)
                except StopIteration:
                    del starting[name]
                    theatre.board.note(f"{parties[name].title}: after {time.monotonic() - began_at:.0f} s")
            time.sleep(0.05)
    finally:
        for steps in starting.values():
            steps.close()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Run the clean-up to its end even if Ctrl-C is pressed again: each step of it has a limit."""
    before: dict[signal.Signals, signal.Handlers | int | Callable[[int, FrameType | None], object] | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class Lead:
    """Leads the run: starts, kills, pauses and resumes, and polls until all have ended.

    token: of the paused one; begun: the ones that were told to begin. heard: the number of events.
    """

    theatre: Theatre
    course: Course
    faults: Faults
    cast: Cast
    parties: dict[str, Party]
    begun: list[Party] = field(default_factory=list)
    heard: int = 0
    token: int = 0
    is_killed: bool = False
    is_paused: bool = False
    is_resumed: bool = False

    def play(self, patience: float) -> None:
        """Run it; TimeoutError after this many seconds."""
        self._begin(self.cast.harmed)
        ends_at = time.monotonic() + patience
        while True:
            # asked before polling, or the last lines would be missed
            are_over = all(party.is_over() for party in self.begun)
            for party in self.begun:
                party.look()
            for event in self.course.events[self.heard :]:
                self.heard += 1
                self._react(event)
            if self.is_resumed and (done := self.parties[self.faults.paused].mend()):
                self.theatre.board.note(done, "yellow")
                are_over = False
            if are_over and len(self.begun) == len(self.parties):
                return
            if are_over:
                # none was paused: the act fails, and ends
                self._begin(self.cast.later)
            if time.monotonic() > ends_at:
                states = {party.name: party.state() for party in self.begun if not party.is_over()}
                raise TimeoutError(f"not all have ended within {patience:.0f} s: {states}")
            time.sleep(LOOK_EVERY)

    def _begin(self, names: Iterable[str]) -> None:
        for name in names:
            if self.parties[name] not in self.begun:
                self.parties[name].begin()
                self.begun.append(self.parties[name])

    def _react(self, event: Event) -> None:
        faults = self.faults
        if not self.is_killed and event.run == faults.killed and faults.killed_at.is_reached(event):
            self.is_killed = True
            self._do(EventKind.KILLED, event, self.parties[event.run].kill(event.repository))
        elif not self.is_paused and event.run == faults.paused and faults.paused_at.is_reached(event):
            self.is_paused = True
            held = [
                one.number or 0 for one in self.course.of(EventKind.HOLDS, event.repository) if one.run == event.run
            ]
            self.token = max(held, default=0)
            self._do(EventKind.PAUSED, event, self.parties[event.run].pause(event.repository))
            # this one is sure to wait for the paused one, or for one that comes after it
            self._begin(self.cast.later)
        elif self.is_paused and not self.is_resumed and self._is_overtaken(event):
            self.is_resumed = True
            paused = Event(faults.paused, event.repository, EventKind.PAUSED)
            self.parties[faults.paused].resume()
            process = next(one.text for one in self.course.events if one.what is EventKind.PAUSED)
            self._do(EventKind.RESUMED, paused, process)

    def _is_overtaken(self, event: Event) -> bool:
        """Return whether another one holds the lock of the paused one, and the repository has seen its higher token."""
        at, held = self.faults.paused_at.repository, self.course.of(EventKind.HOLDS, self.faults.paused_at.repository)
        is_fenced = event.what is EventKind.PHASE and event.phase != "fence" and event.repository == at
        token = max((one.number or 0 for one in held if one.run == event.run), default=0)
        return is_fenced and event.run != self.faults.paused and token > self.token

    def _do(self, what: EventKind, event: Event, process: str) -> None:
        done_to(self.theatre, self.course, Event(event.run, event.repository, what, text=process))


def one_repository(
    cast: Cast, faults: Faults, theatre: Theatre, ledger: Ledger, course: Course, home: Path
) -> list[Finding]:
    """Start all, let them publish at once, harm two of them, and judge the result."""
    theatre.board.act("Before: three orchestrators, all of them on this machine")
    with all_of_them(cast, faults, theatre, ledger, course, home) as parties:
        theatre.board.act(f"Act 1: {', '.join(cast.names)} publish to one repository of each kind")
        theatre.board.note(f"the plan: {faults}")
        with Reader(theatre, ledger, pause=2.0) as reader:
            Lead(theatre, course, faults, cast, parties).play(PATIENCE + 100 * theatre.pace)
        findings = [
            *_killed(course, faults),
            *_paused(course, faults),
            *(_published(course, cast, kind) for kind in FORMATS),
            *(apart(course, kind, len(course.of(EventKind.HOLDS, kind))) for kind in FORMATS),
            _awaited(parties),
            *(finding for party in parties.values() for finding in party.findings()),
            free(theatre),
        ]
    for finding in findings:
        say(theatre, finding)
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


def _killed(course: Course, faults: Faults) -> list[Finding]:
    """Return whether one was killed with its version half written, which another one removed."""
    killed = [one for one in course.events if one.what is EventKind.KILLED]
    was_at_work = bool(killed) and not any(
        one.run == faults.killed and one.at < killed[0].at
        for one in course.of(EventKind.PUBLISHED, faults.killed_at.repository)
    )
    return [
        Finding(was_at_work, f"{faults.killed} was killed in mid-section, {faults.killed_at}"),
        cleared(course),
    ]


def _paused(course: Course, faults: Faults) -> list[Finding]:
    """Return whether one was paused, lost its lease to a higher token, was rejected, and published in the end."""
    name, at = faults.paused, faults.paused_at.repository
    instants = {
        what: one.at for what in (EventKind.PAUSED, EventKind.RESUMED) for one in course.of(what, at) if one.run == name
    }
    if len(instants) < 2:
        return [Finding(False, f"{name} was paused and resumed in mid-section: it was not")]
    paused_at, resumed_at = instants[EventKind.PAUSED], instants[EventKind.RESUMED]
    lost = max(one.number or 0 for one in course.of(EventKind.HOLDS, at) if one.run == name and one.at < paused_at)
    taken = [
        one for one in course.of(EventKind.HOLDS, at) if paused_at < one.at < resumed_at and (one.number or 0) > lost
    ]
    refused = [one for one in course.of(EventKind.REFUSED, at) if one.run == name and one.at > resumed_at]
    published = [one for one in course.of(EventKind.PUBLISHED, at) if one.run == name]
    is_after = bool(refused) and bool(published) and all(one.at > refused[0].at for one in published)
    by = ", ".join(f"{one.run} with token {one.number}" for one in taken) or "nobody"
    return [
        Finding(bool(taken), f"while {name} with token {lost} stood still, the lock of {at} was taken over by {by}"),
        Finding(bool(refused), f"{name} went on and was refused: {refused[0].text if refused else 'it was not'}"),
        Finding(is_after, f"{name} published to {at} in the end, and not before it was refused"),
    ]


def _published(course: Course, cast: Cast, kind: str) -> Finding:
    """Return whether all have published to a repository."""
    runs = {one.run for one in course.of(EventKind.PUBLISHED, kind)}
    return Finding(runs == set(cast.names), f"{kind}: published by {', '.join(sorted(runs)) or 'nobody'}")


def _awaited(parties: dict[str, Party]) -> Finding:
    """Return whether a waiter named the holder it waited for, in its orchestrator's own words."""
    said = {name: party.awaited for name, party in parties.items()}
    others = {name: words for name, words in said.items() if awaits(words) in set(parties) - {name}}
    text = "; ".join(f"{name}: {words}" for name, words in others.items())
    return Finding(bool(others), f"who waits says for whom, across orchestrators; {text or 'nobody did'}")
