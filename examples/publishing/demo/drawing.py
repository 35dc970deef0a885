"""Says what a drawing of a demo shows: a lane for each run at each lock, who waited, who held, what befell whom.

Comes from the events alone. Knows nothing of orchestrators, nor of how it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from examples.publishing.events import Event, What


class Kind(StrEnum):
    """What a run did on a lock for a while."""

    WAITS = "waits"
    HOLDS = "holds the lock"
    STANDS_STILL = "holds, paused"
    IS_OVERTAKEN = "paused, its lease is over"
    IS_GONE = "killed, its lease lives on"


@dataclass(frozen=True, slots=True)
class Span:
    """A while, in seconds since the first event. token: of the lease, where one was held."""

    run: str
    repository: str
    kind: Kind
    begin: float
    end: float
    token: int | None = None

    @property
    def length(self) -> float:
        """How long it took, in seconds."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, in seconds since the first event."""

    run: str
    repository: str
    what: What
    at: float
    number: int | None = None


@dataclass(slots=True)
class Lane:
    """What is known of one run at one lock until now."""

    kind: Kind | None = None
    since: float = 0.0
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """All that is drawn. length is seconds."""

    length: float
    spans: Sequence[Span]
    marks: Sequence[Mark]

    @property
    def repositories(self) -> list[str]:
        """The locks, in the order of their first events."""
        return list(dict.fromkeys([one.repository for one in self.spans]))

    def runs(self, repository: str) -> list[str]:
        """The runs at a lock, in the order in which they came."""
        return list(dict.fromkeys(one.run for one in self.spans if one.repository == repository))


MARKED = {What.PUBLISHED, What.REFUSED, What.FAILED, What.KILLED, What.RESUMED}
"""What is a moment in a drawing; all else ends or begins a span."""

THEN = {
    What.WAITING: Kind.WAITS,
    What.HOLDS: Kind.HOLDS,
    What.PHASE: Kind.HOLDS,
    What.PAUSED: Kind.STANDS_STILL,
    What.RESUMED: Kind.HOLDS,
    What.KILLED: Kind.IS_GONE,
}
"""What a run does after an event; after any other it does nothing."""

LASTING = {What.WAITING, What.PHASE}
"""What may be said again while it lasts."""


@dataclass(slots=True)
class _Course:
    """The lanes while the events are gone through."""

    begin: float
    lanes: dict[tuple[str, str], Lane] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def close(self, run: str, repository: str, at: float, then: Kind | None) -> Lane:
        """End what a run does and begin something else."""
        lane = self.lanes.setdefault((run, repository), Lane())
        if lane.kind is not None and at > lane.since:
            token = None if lane.kind is Kind.WAITS else lane.token
            self.spans.append(Span(run, repository, lane.kind, lane.since - self.begin, at - self.begin, token))
        lane.kind, lane.since = then, at
        return lane


def drawing_of(events: Iterable[Event]) -> Drawing:
    """Say what there is to draw of a course; ValueError if nothing happened in it."""
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
    if event.what is What.PHASE and lane.token is None:
        return  # what is done before a lock is held
    if event.what is What.RESUMED and lane.kind is Kind.IS_OVERTAKEN:
        then = None
    if event.what in LASTING and lane.kind is then:
        return
    if event.what is What.HOLDS:
        _overtake(course, event)
    lane = course.close(event.run, event.repository, event.at, then)
    if event.what is What.HOLDS:
        lane.token = event.number
    elif then is None and event.what is not What.RESUMED:
        lane.token = None


def _overtake(course: _Course, event: Event) -> None:
    """Whoever was killed or stands still holds no longer: the lock is somebody else's."""
    for (run, repository), lane in list(course.lanes.items()):
        if repository != event.repository or run == event.run:
            continue
        if lane.kind is Kind.IS_GONE:
            course.close(run, repository, event.at, None).token = None
        elif lane.kind is Kind.STANDS_STILL:
            course.close(run, repository, event.at, Kind.IS_OVERTAKEN)
