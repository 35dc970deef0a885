"""Events of a run, as values and as lines of JSON."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class EventKind(StrEnum):
    """What happened."""

    STAGING = "staging"
    WAITING = "waiting"
    HOLDS = "holds"
    PHASE = "phase"
    PUBLISHED = "published"
    REFUSED = "refused"
    FAILED = "failed"
    KILLED = "killed"
    PAUSED = "paused"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run on one repository.

    phase: the phase that begins. number: the token for `holds`, the version for `published`. pruned: the removed
    versions. text: for `waiting` the holder, if known (reported again when it changes); for `killed`, `paused` and
    `resumed`, which are done to a run, the process. at: seconds on this machine's monotonic clock.
    """

    run: str
    repository: str
    what: EventKind
    phase: str = ""
    number: int | None = None
    pruned: tuple[int, ...] = ()
    text: str = ""
    at: float = field(default_factory=time.monotonic)

    def to_line(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Parse the output of `to_line`; ValueError if it is anything else."""
        try:
            fields = json.loads(line)
            return cls(**{**fields, "what": EventKind(fields["what"]), "pruned": tuple(fields["pruned"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not an event: {line[:200]!r}") from error
