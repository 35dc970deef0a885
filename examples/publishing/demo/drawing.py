"""The content of the timeline of a demo: for each run at each lock, when it waited and held, and which fault it had.

Computed from the events alone. Independent of orchestrators, and of how it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from examples.publishing.events import Event, EventKind


class Kind(StrEnum):
    """What a run did at a lock for a while."""

    WAITS = "waits"
    HOLDS = "holds the lock"
    STANDS_STILL = "holds, paused"
    IS_OVERTAKEN = "paused, its lease is over"
    IS_GONE = "killed, its lease lives on"


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, in seconds since the first event. token: of the lease, if one was held."""

    run: str
    repository: str
    kind: Kind
    begin: float
    end: float
    token: int | None = None

    @property
    def length(self) -> float:
        """Return its length in seconds."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant, in seconds since the first event."""

    run: str
    repository: str
    what: EventKind
    at: float
    number: int | None = None


@dataclass(slots=True)
class Lane:
    """The state of one run at one lock."""

    kind: Kind | None = None
    since: float = 0.0
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """The whole timeline. length is in seconds."""

    length: float
    spans: Sequence[Span]
    marks: Sequence[Mark]

    @property
    def repositories(self) -> list[str]:
        """Return the locks, in the order of their first events."""
        return list(dict.fromkeys([one.repository for one in self.spans]))

    def runs(self, repository: str) -> list[str]:
        """Return the runs at a lock, in the order of their first events."""
        return list(dict.fromkeys(one.run for one in self.spans if one.repository == repository))


MARKED = {EventKind.PUBLISHED, EventKind.REFUSED, EventKind.FAILED, EventKind.KILLED, EventKind.RESUMED}
"""Events that are instants in a drawing; all others end or begin a span."""

THEN = {
    EventKind.WAITING: Kind.WAITS,
    EventKind.HOLDS: Kind.HOLDS,
    EventKind.PHASE: Kind.HOLDS,
    EventKind.PAUSED: Kind.STANDS_STILL,
    EventKind.RESUMED: Kind.HOLDS,
    EventKind.KILLED: Kind.IS_GONE,
}
"""What a run does after an event; after any other event it does nothing."""

LASTING = {EventKind.WAITING, EventKind.PHASE}
"""Events that may be repeated during a span."""


@dataclass(slots=True)
class _Course:
    """The lanes while the events are processed."""

    begin: float
    lanes: dict[tuple[str, str], Lane] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def close(self, run: str, repository: str, at: float, then: Kind | None) -> Lane:
        """End the current span of a run and begin another."""
        lane = self.lanes.setdefault((run, repository), Lane())
        if lane.kind is not None and at > lane.since:
            token = None if lane.kind is Kind.WAITS else lane.token
            self.spans.append(Span(run, repository, lane.kind, lane.since - self.begin, at - self.begin, token))
        lane.kind, lane.since = then, at
        return lane


def drawing_of(events: Iterable[Event]) -> Drawing:
    """Return the timeline of these events; ValueError if there are none."""
    ordered = sorted((one for one in events if one.repository), key=lambda one: one.at)
    if not ordered:
        raise ValueError("there is nothing to draw: no run said anything")
    course, marks = _Course(ordered[0].at), []
    for event in ordered:
        _take(course, event)
        if event.what in MARKED:
            at = event.at - course.begin
            marks.append(Mark(event.run, event.repository, event.what, at, event.number))
    last = ordered[-1].at
    for (run, repository), lane in course.lanes.items():
        if lane.kind is not None:
            course.close(run, repository, last, None)
    return Drawing(last - course.begin, sorted(course.spans, key=lambda one: one.begin), marks)


def _take(course: _Course, event: Event) -> None:
    lane = course.lanes.get((event.run, event.repository)) or Lane()
    then = THEN.get(event.what)
    if event.what is EventKind.PHASE and lane.token is None:
        return  # happens before a lock is held
    if event.what is EventKind.RESUMED and lane.kind is Kind.IS_OVERTAKEN:
        then = None
    if event.what in LASTING and lane.kind is then:
        return
    if event.what is EventKind.HOLDS:
        _overtake(course, event)
    lane = course.close(event.run, event.repository, event.at, then)
    if event.what is EventKind.HOLDS:
        lane.token = event.number
    elif then is None and event.what is not EventKind.RESUMED:
        lane.token = None


def _overtake(course: _Course, event: Event) -> None:
    """End the spans of killed and paused runs: another run holds the lock."""
    for (run, repository), lane in list(course.lanes.items()):
        if repository != event.repository or run == event.run:
            continue
        if lane.kind is Kind.IS_GONE:
            course.close(run, repository, event.at, None).token = None
        elif lane.kind is Kind.STANDS_STILL:
            course.close(run, repository, event.at, Kind.IS_OVERTAKEN)
