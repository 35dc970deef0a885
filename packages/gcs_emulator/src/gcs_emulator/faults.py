"""Injected faults: what fails, when, and for which requests.

This module does not change requests itself. A fault matches by the kind of operation and the object's name, skips the
first `skip` matches, strikes `times` times, and is then spent. If several faults match, the first that strikes handles
the request; later ones do not count it. Waiting is implemented here too, because waiting requests must be reachable for
the test that releases them and for the server when it stops.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from gcs_emulator.clock import http_date
from gcs_emulator.routes import kind_matches


class Action(StrEnum):
    """The effect of a fault on a request; `commit` means that the change is applied to the store."""

    FAIL = "fail"
    """Respond with `status`, without commit."""
    FAIL_AFTER_COMMIT = "fail_after_commit"
    """Commit, then respond with `status`."""
    LOSE_REQUEST = "lose_request"
    """Close the connection without commit and without a response."""
    LOSE_ANSWER = "lose_answer"
    """Commit, then close the connection without a response."""
    STALL = "stall"
    """Wait, then commit and respond, even if the client has closed the connection."""
    STALL_ANSWER = "stall_answer"
    """Commit at once, wait, then respond."""
    HANG = "hang"
    """Wait, then close the connection without commit and without a response."""
    REPEAT = "repeat"
    """Commit and respond, wait, then commit the same request again (a duplicated message)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    kind is a pattern for the kinds of `Route` (`mutation` means all that change an object, a comma means "or"), name a
    pattern for object names. times None means without limit. seconds is how long waiting actions wait; None: until
    released, or until the server stops.
    """

    action: Action
    kind: str = "*"
    name: str = "*"
    skip: int = 0
    times: int | None = 1
    status: int = 503
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.skip < 0 or (self.times is not None and self.times < 1):
            raise ValueError("skip must not be negative, and times at least 1")
        if not 400 <= self.status <= 599:
            raise ValueError(f"status must be an error's, not {self.status}")
        if self.seconds is not None and self.seconds < 0:
            raise ValueError("seconds must not be negative")


class Injected:
    """An injected fault: how often it struck, how many requests wait in it, and the methods to release them."""

    def __init__(self, number: int, fault: Fault, changed: threading.Condition, is_closed: Callable[[], bool]) -> None:
        self.number = number
        self.fault = fault
        self._changed = changed
        self._is_closed = is_closed
        self._seen = 0
        self._hits = 0
        self._waiting = 0
        self._repetitions = 0
        self._is_released = False
        self._is_removed = False

    @property
    def hits(self) -> int:
        """The number of requests it struck so far."""
        return self._hits

    @property
    def waiting(self) -> int:
        """The number of requests that wait in it now."""
        return self._waiting

    def release(self) -> None:
        """Let waiting requests continue, and later ones continue without waiting."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()

    def remove(self) -> None:
        """Disable the fault; waiting requests are dropped without commit and without a response."""
        with self._changed:
            self._is_removed = True
            self._changed.notify_all()

    def wait_for_hit(self, hits: int = 1, timeout: float = 10.0) -> bool:
        """Wait until it has struck `hits` times; return False after timeout seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._hits >= hits, timeout)

    def hold(self) -> bool:
        """Wait according to the fault; return True to continue, False to drop the request."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(self._is_over, self.fault.seconds)
            finally:
                self._waiting -= 1
            return not (self._is_closed() or self._is_removed)

    def _is_over(self) -> bool:
        return self._is_released or self._is_removed or self._is_closed()

    def note_repetition(self) -> None:
        """Count a request that was committed again."""
        with self._changed:
            self._repetitions += 1
            self._changed.notify_all()

    def wait_for_repetition(self, repetitions: int = 1, timeout: float = 10.0) -> bool:
        """Wait until this many requests were committed again; return False after timeout seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._repetitions >= repetitions, timeout)

    def strikes(self, kind: str, name: str) -> bool:
        """Count a request and return whether the fault strikes it. The caller holds the lock of all faults."""
        fault = self.fault
        if self._is_removed or not kind_matches(fault.kind, kind) or not fnmatchcase(name, fault.name):
            return False
        if fault.times is not None and self._hits >= fault.times:
            return False
        self._seen += 1
        if self._seen <= fault.skip:
            return False
        self._hits += 1
        self._changed.notify_all()
        return True


class Faults:
    """All faults of a server, and its permanent settings.

    latency: seconds added to every request. date_offset: seconds added only to `Date`. clock_resolution: step of `Date`
    in seconds. hides_date: responses have no `Date`. mutation_gap: minimum seconds between two changes of one object.
    denied: permissions that no caller has (`storage.objects.delete`).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._injected: list[Injected] = []
        self._is_closed = False
        self.latency = 0.0
        self.date_offset = 0.0
        self.clock_resolution = 1.0
        self.hides_date = False
        self.mutation_gap = 0.0
        self.denied: frozenset[str] = frozenset()

    @property
    def one_mutation_per_second(self) -> bool:
        """Whether an object accepts only one change per second; a second one gets 429."""
        return self.mutation_gap > 0

    @one_mutation_per_second.setter
    def one_mutation_per_second(self, is_wanted: bool) -> None:
        self.mutation_gap = 1.0 if is_wanted else 0.0

    def inject(
        self,
        action: Action | str,
        *,
        kind: str = "*",
        name: str = "*",
        skip: int = 0,
        times: int | None = 1,
        status: int = 503,
        seconds: float | None = None,
    ) -> Injected:
        """Add a fault after the existing ones; raises ValueError for invalid arguments."""
        fault = Fault(Action(action), kind, name, skip, times, status, seconds)
        with self._changed:
            injected = Injected(next(self._numbers), fault, self._changed, lambda: self._is_closed)
            self._injected.append(injected)
            return injected

    def inject_first(self, action: Action | str) -> Injected:
        """Add a fault before all others; it strikes every request until it is discarded."""
        injected = self.inject(action, times=None)
        with self._changed:
            self._injected.remove(injected)
            self._injected.insert(0, injected)
            return injected

    def discard(self, injected: Injected) -> None:
        """Remove a fault and forget it."""
        with self._changed:
            if injected in self._injected:
                self._injected.remove(injected)
        injected.remove()

    def active(self) -> list[Injected]:
        """Return the faults that were injected and not cleared, including spent ones."""
        with self._changed:
            return list(self._injected)

    def clear(self) -> None:
        """Remove all faults, drop the requests that wait in them, and reset the settings."""
        with self._changed:
            injected, self._injected = self._injected, []
        for one in injected:
            one.remove()
        self.latency = self.date_offset = self.mutation_gap = 0.0
        self.clock_resolution, self.hides_date, self.denied = 1.0, False, frozenset()

    def pick(self, kind: str, name: str) -> Injected | None:
        """Return the fault that strikes this request, if any."""
        if not self._injected:
            return None
        with self._changed:
            return next((one for one in self._injected if one.strikes(kind, name)), None)

    def delay(self) -> bool:
        """Wait for the latency; return False if the server stopped meanwhile."""
        if self.latency <= 0:
            return True
        with self._changed:
            return not self._changed.wait_for(lambda: self._is_closed, self.latency)

    def date(self, now: float) -> str | None:
        """Return the `Date` header for the server's time `now`; None if it is hidden."""
        if self.hides_date:
            return None
        step = self.clock_resolution if self.clock_resolution > 0 else 1.0
        return http_date((now + self.date_offset) // step * step)

    def open(self) -> None:
        """Let requests wait again, after the server has started."""
        with self._changed:
            self._is_closed = False

    def close(self) -> None:
        """Drop waiting requests, now and in future, because the server stops."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
