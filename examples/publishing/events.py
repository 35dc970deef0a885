"""What a publisher says while it works, as values and as lines of JSON on a pipe."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class What(StrEnum):
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
    """Something a run did on one repository.

    phase: the one about to begin. number: the token for `holds`, the version for `published`. pruned: the versions
    removed. text: whom it waits for, as far as known, for `waiting`, which is said again when that changes; the process
    for `killed`, `paused` and `resumed`, which are done to a run. at: seconds on this machine's monotonic clock.
    """

    run: str
    repository: str
    what: What
    phase: str = ""
    number: int | None = None
    pruned: tuple[int, ...] = ()
    text: str = ""
    at: float = field(default_factory=time.monotonic)

    def to_line(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Read what `to_line` wrote; ValueError if it is anything else."""
        try:
            fields = json.loads(line)
            return cls(**{**fields, "what": What(fields["what"]), "pruned": tuple(fields["pruned"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not an event: {line[:200]!r}") from error
