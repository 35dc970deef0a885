"""How a waiter waits: he looks who is ahead, watches only that one, and looks again when it has gone.

The first in line watches the record. Who gives up wakes his successor alone, and nobody else. A watch is asked from the
revision that follows the look, so nothing is missed in between; when it breaks (a member died, the revision was
compacted), he looks again. Must not know what a lock is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from lockstead.stores.etcd import wire
from lockstead.stores.etcd.line import Line, Place, Sight
from lockstead.stores.etcd.steps import Steps, ask
from lockstead.stores.etcd.transport import Members
from lockstead.stores.etcd.watch import Broken, Watch
from lockstead.stores.etcd.wire import Json
from lockstead.values import Name

if TYPE_CHECKING:
    from typing import Any

LOOK_EVERY: Final = 0.05
"""Seconds after which a wait looks whether its caller wants to stop."""

LOOK_AGAIN: Final = 0.02
"""Seconds until a wait on an absent record ends, and after which a broken watch is begun anew."""

LIMIT: Final = 5.0
"""Seconds for one request of a waiter, at most."""

Over = Callable[[float], bool]


class Carries(Protocol):
    """Carries out a conversation within a limit (seconds)."""

    def __call__(self, steps: Steps[Any], limit: float) -> Any:
        """Return what it came to."""
        ...


class Waiting:
    """The waiters of one store. Each waits in the thread that called; a watch is kept between two calls of a place."""

    def __init__(self, line: Line, members: Members, carry: Carries, token: Callable[[], str | None]) -> None:
        self._line = line
        self._members = members
        self._carry = carry
        self._token = token
        self._is_open = True

    # --- looking only --------------------------------------------------------------------------------------------

    def wait(self, name: Name, seconds: float, is_over: Over) -> bool:
        """Block until the record changed (True), `seconds` passed, or the caller wants to stop (False)."""
        ends_at = time.monotonic() + seconds
        if is_over(0.0) or seconds <= 0:
            return False
        kv, revision = self._carry(_present(self._line, name), LIMIT)
        if not kv:
            return not is_over(min(seconds, LOOK_AGAIN))
        watch = self._watching(self._record(name), revision + 1, ends_at)
        if watch is None:
            return not is_over(min(seconds, LOOK_AGAIN))
        try:
            return bool(self._listen(watch, ends_at, is_over))
        except Broken:
            return True
        finally:
            watch.close()

    # --- queueing ------------------------------------------------------------------------------------------------

    def queue(self, name: Name, waiter_id: str, seconds: float, is_over: Over) -> bool:
        """Block until the waiter is first and the record is gone (True); False, early, if it has changed."""
        place = self._line.enter(name.key, waiter_id)
        try:
            return self._queued(name, place, time.monotonic() + seconds, is_over)
        finally:
            if place.has_left or not self._is_open:
                place.drop_watch()

    def _queued(self, name: Name, place: Place, ends_at: float, is_over: Over) -> bool:
        while not is_over(0.0) and self._is_open and not place.has_left:
            sight = self._sight(name, place, ends_at)
            if place.has_left or sight is None:
                return False
            if sight.ahead is None and sight.record is None:
                return True
            if time.monotonic() >= ends_at:
                return False
            told = self._await_turn(name, place, sight, ends_at, is_over)
            if told is not None:
                return told
        return False

    def _sight(self, name: Name, place: Place, ends_at: float) -> Sight | None:
        """Look at the queue, with a place in it; None if the waiter has left meanwhile."""
        limit = max(1.0, min(LIMIT, ends_at - time.monotonic()))
        while not place.has_left:
            self._carry(self._line.beat() if place.created else self._line.take(place), limit)
            if place.created is None:
                continue
            sight: Sight = self._carry(self._line.look(name, place), limit)
            if sight.is_in_queue:
                return sight
            place.created = None
        return None

    def _await_turn(self, name: Name, place: Place, sight: Sight, ends_at: float, is_over: Over) -> bool | None:
        """Watch who is ahead, or the record; None to look again."""
        span = self._record(name) if sight.ahead is None else (sight.ahead, None)
        watch = place.watch if isinstance(place.watch, Watch) and place.watch.span == span else None
        if watch is None:
            place.drop_watch()
            watch = place.watch = self._watching(span, sight.revision + 1, ends_at)
        if watch is None:
            return False if is_over(LOOK_AGAIN) else None
        try:
            events = self._listen(watch, ends_at, is_over, place)
        except Broken:
            place.drop_watch()
            return False if is_over(LOOK_AGAIN) else None
        if events and sight.ahead is not None:
            return None  # whoever was ahead may only have given up
        return bool(events) and all(event.get("type") == "DELETE" for event in events)

    def _listen(self, watch: Watch, ends_at: float, is_over: Over, place: Place | None = None) -> list[Json]:
        """Listen until something changed; nothing if the time is up or the caller wants to stop."""
        while self._is_open and not is_over(0.0) and not (place is not None and place.has_left):
            left = ends_at - time.monotonic()
            events = watch.changes(min(left, LOOK_EVERY)) if left > 0 else []
            if events or left <= 0:
                return events
        return []

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Give up a place in the queue; raises what a command raises."""
        place = self._line.find(name.key, waiter_id)
        self._carry(self._line.leave(name.key, waiter_id), limit)
        if place is not None:
            place.has_left = True

    def close(self) -> None:
        """Make everybody who waits come back."""
        self._is_open = False

    # --- watches -------------------------------------------------------------------------------------------------

    def _record(self, name: Name) -> tuple[str, str | None]:
        base = self._line.root.base(name) + ":"
        return base, wire.end_of(base)

    def _watching(self, span: tuple[str, str | None], revision: int, ends_at: float) -> Watch | None:
        """Begin a watch; None if no member gives one."""
        tls = self._members.tls() if self._members.settings.is_secure else None
        for number, _url in self._members.in_turn():
            limit = max(0.2, min(LIMIT, ends_at - time.monotonic()))
            watch = None
            try:
                watch = Watch(self._members.settings.endpoints[number], tls, self._token(), span, limit)
                watch.begin(revision, limit)
            except Broken:
                if watch is not None:
                    watch.close()
                continue
            return watch
        return None


def _present(line: Line, name: Name) -> Steps[tuple[bool, int]]:
    base = line.root.base(name) + ":"
    body = yield from ask(wire.range_of("Range", base, wire.end_of(base), keys_only=True))
    return bool(body.get("kvs")), int(body["header"]["revision"])
