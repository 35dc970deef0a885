"""The log of requests, in order of arrival.

A line is written after the request was read, so that a hanging request is counted. Its status is set before the
response is sent, so that a client that has the response finds the status in the log.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gcs_emulator.routes import kind_matches

LINES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request; status is None until the response, and stays None if there is none."""

    kind: str
    method: str
    path: str
    query: Mapping[str, str]
    bucket: str
    name: str
    at: float
    status: int | None = None


class RequestLog:
    """The requests of a server; safe to share between threads. Keeps the last 100,000."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._numbers = itertools.count()
        self._lines: dict[int, LoggedRequest] = {}

    def begin(self, line: LoggedRequest) -> int:
        """Add a line and return its number."""
        with self._changed:
            number = next(self._numbers)
            self._lines[number] = line
            if len(self._lines) > LINES_MAX:
                del self._lines[next(iter(self._lines))]
            self._changed.notify_all()
            return number

    def finish(self, number: int, status: int | None) -> None:
        """Set the status of the response."""
        with self._changed:
            if number in self._lines:
                self._lines[number] = replace(self._lines[number], status=status)
                self._changed.notify_all()

    def all(self) -> list[LoggedRequest]:
        """Return all lines, the oldest first."""
        with self._changed:
            return list(self._lines.values())

    def count(self, kind: str = "*", name: str = "*", status: int | None = None) -> int:
        """Return the number of requests that match a kind (`mutation`: all changes), an object name and a status."""
        return sum(
            kind_matches(kind, line.kind) and fnmatchcase(line.name, name) and status in {None, line.status}
            for line in self.all()
        )

    def counts(self) -> dict[str, int]:
        """Return the number of requests by kind."""
        counts: dict[str, int] = {}
        for line in self.all():
            counts[line.kind] = counts.get(line.kind, 0) + 1
        return counts

    def wait_for(self, count: int, kind: str = "*", name: str = "*", *, timeout: float = 10.0) -> bool:
        """Wait until `count` matching requests have arrived; return False after timeout seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count(kind, name) >= count, timeout)

    def clear(self) -> None:
        """Delete all lines."""
        with self._changed:
            self._lines.clear()

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(self.all())
