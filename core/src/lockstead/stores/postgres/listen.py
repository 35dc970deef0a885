"""How who waits for a record learns of its change: by a notification, and by looking where there can be none.

One thread and one connection of their own for all waiters of a store. While somebody waits for a key, that connection
holds the shared advisory lock of the key's bucket: so who changes a record knows whether to notify. No lease depends on
this connection; without it a wait only takes longer. Must not know records.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from lockstead.errors import StoreError
from lockstead.stores.postgres.statements import EVERYBODY, Statements, bucket, lock_class
from lockstead.stores.postgres.url import Target
from lockstead.stores.postgres.wire import Link, Row, connect

LOOK_EVERY: Final = 0.05
"""Seconds after which a wait looks whether its caller wants to stop."""

TRY_AGAIN: Final = 0.02
"""Seconds until the lock of a bucket is tried again that was not free."""

GONE: Final = 0.002
"""Seconds of a wait on an absent record: it went between the caller's read and the wait: it is asked for next."""

POLL_MIN: Final = 0.05
POLL_MAX: Final = 0.5
"""Seconds between two looks at a record where no notification will come."""

INSURANCE: Final = 5.0
"""Seconds between two looks where one will: a connection can be dead without a word."""

LINGERS: Final = 5.0
"""Seconds that the lock of a bucket is kept when nobody waits: most who stop waiting begin again at once."""

IDLES: Final = 30.0
"""Seconds without any waiter after which the connection is closed."""

ASKS_WITHIN: Final = 0.1
"""Seconds in which who was told of a release asks for the lock; who only looks, or gave up just then, does not."""

ANSWERS_WITHIN: Final = 5.0
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 15.0
"""Seconds until the next try after the connection was lost or refused."""


class Listener:
    """The waiters of one process on one store, and the connection that listens for them."""

    def __init__(self, target: Target, statements: Statements) -> None:
        self._target = target
        self._statements = statements
        self._lock = threading.Lock()
        self._bells: dict[str, list[threading.Event]] = {}
        self._wanted: dict[int, float] = {}
        self._held: frozenset[int] = frozenset()
        self._thread: threading.Thread | None = None
        self._wakes = -1
        self._is_open = target.listen != "no"
        self._is_pooled = False
        self._connections = 0
        self._me = ""
        self._told: dict[str, tuple[str, float]] = {}

    @contextmanager
    def watching(self, key: str) -> Iterator[threading.Event]:
        """Have a bell rung when a record of the key changes, for as long as `hears` says so."""
        bell = threading.Event()
        with self._lock:
            self._bells.setdefault(key, []).append(bell)
            self._want(bucket(key))
        try:
            yield bell
        finally:
            with self._lock:
                bells = self._bells[key]
                bells.remove(bell)
                if not bells:
                    del self._bells[key]

    def ear(self, key: str) -> int:
        """Return whether every change that is committed from now on rings: 0 if not, else by which connection."""
        return self._connections if bucket(key) in self._held else 0

    def asks(self, key: str) -> None:
        """Note that this process asks for the lock: whatever comes of it, nobody else need be told in its place."""
        if self._told:
            self._told.pop(key, None)

    def _want(self, number: int) -> None:
        self._wanted[number] = time.monotonic()
        if not self._is_open or self._is_pooled:
            return
        if self._thread is None:
            ear, self._wakes = os.pipe()
            os.set_blocking(ear, False)
            os.set_blocking(self._wakes, False)
            self._thread = threading.Thread(target=self._run, args=(ear,), name="lockstead-listen", daemon=True)
            self._thread.start()
        elif number not in self._held:
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wakes, b"w")

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self, ear: int) -> None:
        pause = PAUSE_MIN
        try:
            while not self._may_end():
                began_at = time.monotonic()
                with suppress(StoreError):
                    self._listen(ear)
                self._held = frozenset()
                pause = PAUSE_MIN if time.monotonic() - began_at > PAUSE_MAX else min(PAUSE_MAX, pause * 2)
                if self._is_open and not self._is_pooled and self._bells:
                    _heard(ear, pause * random.uniform(0.5, 1.0))
        finally:
            os.close(ear)

    def _may_end(self) -> bool:
        """Return whether nobody needs the thread; then it is forgotten, so that the next waiter starts another."""
        with self._lock:
            if self._is_open and not self._is_pooled and self._bells:
                return False
            self._thread = None
            os.close(self._wakes)
            return True

    def _listen(self, ear: int) -> None:
        """Listen until nobody has waited for long. Raises StoreError when the connection is lost."""
        target = self._target
        link = connect(_conninfo(target), target.url, ANSWERS_WITHIN, may_be_clear=target.may_be_clear)
        try:
            (row,) = link.ask(b"SELECT pg_catalog.pg_backend_pid()", (), ANSWERS_WITHIN)
            self._me = str(row[0])
            if not link.learn(row[0]) and target.listen == "auto":
                # a pooler stands between: what is listened for there may be told to somebody else
                self._is_pooled = True
                return
            link.ask(self._statements.listen, (), ANSWERS_WITHIN)
            self._connections += 1
            self._serve(link, ear)
        finally:
            self._held = frozenset()
            self._told.clear()
            link.close()

    def _serve(self, link: Link, ear: int) -> None:
        poll = select.poll()
        poll.register(link.descriptor, select.POLLIN | select.POLLPRI)
        poll.register(ear, select.POLLIN)
        asked_at = used_at = time.monotonic()
        while self._is_open:
            is_complete = self._take_locks(link)
            now = time.monotonic()
            if self._bells:
                used_at = now
            elif now - used_at > IDLES:
                return
            if now - asked_at > INSURANCE:
                link.ask(b"SELECT 1", (), ANSWERS_WITHIN)
                asked_at = now
            # what came with the answer to a statement is read already, and wakes no poll
            self._ring(link)
            poll.poll(int(min(1.0 if is_complete else TRY_AGAIN, self._pass_on_late(link)) * 1000) + 1)
            _heard(ear, 0.0)
            self._ring(link)

    def _take_locks(self, link: Link) -> bool:
        """Hold the locks of the buckets that are waited for, and no other for long; False if one was not free."""
        now, lock = time.monotonic(), str(lock_class(self._target.schema))
        with self._lock:
            for key in self._bells:
                self._wanted[bucket(key)] = now
            self._wanted = {number: at for number, at in self._wanted.items() if now - at < LINGERS}
            wanted = frozenset(self._wanted)
            dropped = self._held - wanted
            self._held -= dropped  # under the lock: who begins to wait from here on knows that nobody hears for it
        is_complete = True
        for number in wanted - self._held:
            # somebody may be changing a record of this bucket right now, and has looked whether anybody waits
            (row,) = link.ask(
                b"SELECT pg_catalog.pg_try_advisory_lock_shared($1::int, $2::int)", (lock, str(number)), ANSWERS_WITHIN
            )
            if row[0] == "t":
                self._held |= {number}
            else:
                is_complete = False
        for number in dropped:
            link.ask(
                b"SELECT pg_catalog.pg_advisory_unlock_shared($1::int, $2::int)", (lock, str(number)), ANSWERS_WITHIN
            )
        return is_complete

    def _ring(self, link: Link) -> None:
        """Wake who waits for what was notified to us; where nobody does any more, have somebody else told."""
        while notified := link.notifications():  # again: more may have come with an answer
            for said in notified:
                told, _, key = said.partition(" ")
                is_for_us = told.partition(",")[0] == self._me
                if (is_for_us or told == str(EVERYBODY)) and not self._rung(key, told if is_for_us else None):
                    self._take_locks(link)
                    self._pass_on(link, key, told)

    def _rung(self, key: str, told: str | None) -> bool:
        """Wake who waits for a key here. False if it is to be passed on: we were told (told), and nobody waits."""
        with self._lock:
            bells = self._bells.get(key, ())
            for bell in bells:
                bell.set()
            if bells and told is not None:
                self._told[key] = told, time.monotonic() + ASKS_WITHIN
            if not bells and not any(bucket(other) == bucket(key) for other in self._bells):
                # who got the lock lingers: it must be passed over once, and not with every release
                self._wanted.pop(bucket(key), None)
            return bool(bells) or told is None

    def _pass_on(self, link: Link, key: str, told: str) -> None:
        link.ask(self._statements.pass_on, (key, str(bucket(key)), f"{{{told}}}"), ANSWERS_WITHIN)

    def _pass_on_late(self, link: Link) -> float:
        """Pass on what nobody here has made use of; give the seconds until there may be more to pass on."""
        now = time.monotonic()
        for key, (told, until) in list(self._told.items()):
            if until <= now and self._told.pop(key, None) is not None:
                self._pass_on(link, key, told)
        return min((max(0.0, until - now) for _, until in list(self._told.values())), default=1.0)

    # --- life ----------------------------------------------------------------------------------------------------

    def forget(self) -> Listener:
        """Return a fresh one to a forked child, where the thread is not."""
        fresh = Listener(self._target, self._statements)
        fresh._is_open = self._is_open
        return fresh

    def close(self) -> None:
        """End the thread and its connection; waits for it shortly."""
        with self._lock:
            self._is_open = False
            thread = self._thread
            if thread is not None:
                self._wake()
        if thread is not None:
            thread.join(2.0)


def until_changed(
    listener: Listener, key: str, look: Callable[[], Row | None], seconds: float, is_over: Callable[[float], bool]
) -> bool:
    """Wait as `stores.port.SupportsWatch` says. look gives the state of the record, None where there is none."""
    ends_at = time.monotonic() + seconds
    try:
        with listener.watching(key) as bell:
            ear = listener.ear(key)
            first = look()
            if first is None and seconds > GONE:
                return not is_over(GONE)
            looked_at, pause = time.monotonic(), POLL_MIN
            while not is_over(0.0):
                now = time.monotonic()
                if now >= ends_at:
                    return False
                if bell.wait(min(ends_at - now, LOOK_EVERY)):
                    return True
                # the first look with a new ear closes the gap before it
                before, ear = ear, listener.ear(key)
                if ear != before or time.monotonic() - looked_at >= (INSURANCE if ear else pause):
                    looked_at, pause = time.monotonic(), min(POLL_MAX, pause * random.uniform(1.0, 2.0))
                    if look() != first:
                        return True
            return False
    except StoreError:
        is_over(max(0.0, ends_at - time.monotonic()))
        return False


def _conninfo(target: Target) -> str:
    if not target.listen_to:
        return target.conninfo
    from psycopg.conninfo import make_conninfo

    return make_conninfo(target.conninfo, **dict(target.listen_to))


def _heard(ear: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(ear, select.POLLIN)
    if poll.poll(int(seconds * 1000)):
        with suppress(BlockingIOError):
            os.read(ear, 4096)
