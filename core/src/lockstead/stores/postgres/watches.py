"""Changes of records, for all subscribers of a store: by notifications, and by looks where there can be none.

One thread and one connection of their own. While anybody subscribes to a key, that connection holds the shared advisory
lock of the key's bucket: so a statement that changes a record knows whether to notify. No lease depends on this
connection. Must not know what a record means.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, TypeAlias

from lockstead.errors import StoreError
from lockstead.stores.postgres.connection import Connection, run
from lockstead.stores.postgres.encoding import encoded, named
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.session import connect
from lockstead.stores.postgres.statements import EVERYBODY, Statements, bucket, lock_class
from lockstead.stores.postgres.url import Target
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions
from lockstead.values import Name

TRY_AGAIN: Final = 0.02
"""Seconds until the lock of a bucket is tried again that was not free."""

POLL_MIN: Final = 0.05
POLL_MAX: Final = 0.5
"""Seconds between two looks at the records where no notification will come."""

INSURANCE: Final = 5.0
"""Seconds between two looks where one will: a connection can be dead without a word."""

LINGERS: Final = 5.0
"""Seconds that the lock of a bucket is kept when nobody subscribes: most who stop waiting begin again at once."""

IDLES: Final = 30.0
"""Seconds without any subscription after which the connection is closed."""

ASKS_WITHIN: Final = 0.1
"""Seconds in which a process that was notified of a release asks for the lock; else another one is notified."""

ANSWERS_WITHIN: Final = 5.0
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 15.0
"""Seconds until the next try after the connection was lost or refused."""

Ask: TypeAlias = Callable[[bytes, tuple[str, ...], float], "list[Row]"]
"""Carries out a statement within a limit (seconds)."""

FORGETS_ABOVE: Final = 100
"""Records that are kept in mind beyond twice those that are subscribed to."""

_NEW: Final = ("not looked at yet",)
_FAILURES: Final = (StoreError, ValueError, IndexError, KeyError)
"""What comes of a server that is down, or whose rows are others than those that were asked for."""


class Listener:
    """The subscriptions of one process to one store, and the connection that listens for them.

    ask uses a connection of the store's own. Replaced in a forked child, where the thread is not.
    """

    def __init__(self, target: Target, statements: Statements, ask: Ask) -> None:
        self.subscriptions = Subscriptions[Name]()
        self._target = target
        self._statements = statements
        self._ask = ask
        self._lock = threading.Lock()
        # incarnation and revision of what was looked at, None for an absent record
        self._states: dict[Name, tuple[str | None, ...] | None] = {}
        self._fresh: set[Name] = set()
        self._wanted: dict[int, float] = {}
        self._held: frozenset[int] = frozenset()
        self._thread: threading.Thread | None = None
        self._wakes = -1
        self._is_open = True
        self._listens = target.listen != "no"
        self._me = ""
        self._told: dict[str, tuple[str, float]] = {}

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Return a subscription to a record, as `stores.port.SupportsWatch` wants it."""
        subscription, _ = self.subscriptions.add(name, on_change)
        with self._lock:
            self._fresh.add(name)
            if self._thread is not None:
                self._wake()
            elif self._is_open:
                self._start()
        return subscription

    def asks(self, key: str) -> None:
        """Note that this process asks for the lock: whatever comes of it, nobody else need be told in its place."""
        if self._told:
            self._told.pop(key, None)

    def _start(self) -> None:
        wake_reader, self._wakes = os.pipe()
        os.set_blocking(wake_reader, False)
        os.set_blocking(self._wakes, False)
        self._thread = threading.Thread(target=self._run, args=(wake_reader,), name="lockstead-listen", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there is no thread: subscribers poll
            self._thread = None
            os.close(wake_reader)
            os.close(self._wakes)

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wakes, b"w")

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self, wake_reader: int) -> None:
        pause = PAUSE_MIN
        try:
            while not self._may_end():
                began_at = time.monotonic()
                if self._listens:
                    with suppress(*_FAILURES):
                        self._listen(wake_reader)
                pause = PAUSE_MIN if time.monotonic() - began_at > PAUSE_MAX else min(PAUSE_MAX, pause * 2)
                self._poll(wake_reader, pause * random.uniform(0.5, 1.0))
        finally:
            os.close(wake_reader)

    def _may_end(self) -> bool:
        """Return whether nobody needs the thread; then it is forgotten: the next subscription starts another."""
        with self._lock:
            if self._is_open and self.subscriptions:
                return False
            self._thread = None
            os.close(self._wakes)
            return True

    def _poll(self, wake_reader: int, seconds: float) -> None:
        """Look at the records now and then: no notification comes."""
        ends_at, pause = time.monotonic() + seconds, POLL_MIN
        while self._is_open and self.subscriptions and time.monotonic() < ends_at:
            with suppress(*_FAILURES):
                self._look(self._ask, self.subscriptions.names(), self._take_fresh(is_notified=False))
            pause = min(POLL_MAX, pause * random.uniform(1.0, 2.0))
            if _is_woken(wake_reader, pause):
                pause = POLL_MIN

    def _listen(self, wake_reader: int) -> None:
        """Listen until nobody has subscribed for long. Raises StoreError when the connection is lost."""
        target = self._target
        way = _conninfo(target)
        connection = run(connect(Connection, way, target.url, ANSWERS_WITHIN, may_be_clear=target.may_be_clear))
        try:
            (row,) = connection.ask(b"SELECT pg_catalog.pg_backend_pid()", (), ANSWERS_WITHIN)
            self._me = str(row[0])
            if not connection.learn(row[0]) and target.listen == "auto":
                # a pooler stands between: what is listened for there may be told to somebody else
                self._listens = False
                return
            connection.ask(self._statements.listen, (), ANSWERS_WITHIN)
            with self._lock:
                self._fresh |= self.subscriptions.names()
            self._serve(connection, wake_reader)
        finally:
            self._held = frozenset()
            self._told.clear()
            connection.close()

    def _serve(self, connection: Connection, wake_reader: int) -> None:
        poll = select.poll()
        poll.register(connection.descriptor, select.POLLIN | select.POLLPRI)
        poll.register(wake_reader, select.POLLIN)
        looked_at = used_at = time.monotonic()
        while self._is_open:
            is_complete = self._take_locks(connection)
            # each change that is committed from here on is notified: the look closes the gap before
            fresh = self._take_fresh(is_notified=True)
            self._look(connection.ask, fresh, fresh)
            now = time.monotonic()
            if now - looked_at > INSURANCE:
                self._look(connection.ask, self.subscriptions.names())
                looked_at = now
            if self.subscriptions:
                used_at = now
            elif now - used_at > IDLES:
                return
            # what came with the answer to a statement is read already, and wakes no poll
            self._notify(connection)
            poll.poll(int(min(1.0 if is_complete else TRY_AGAIN, self._pass_on_late(connection)) * 1000) + 1)
            _is_woken(wake_reader, 0.0)
            self._notify(connection)

    def _take_fresh(self, *, is_notified: bool) -> set[Name]:
        """Return the records that were subscribed to and not looked at since; is_notified: only those notified of."""
        with self._lock:
            taken = {name for name in self._fresh if not is_notified or bucket(name.key) in self._held}
            self._fresh -= taken
            return taken

    def _look(self, ask: Ask, names: Collection[Name], fresh: Collection[Name] = ()) -> None:
        """Look at records, and notify of those that changed; also of fresh ones that are absent."""
        if not names:
            return
        order = list(names)
        asked = encoded([{"n": number, **named(name)} for number, name in enumerate(order)])
        found = {int(row[0] or 0): tuple(row[1:]) for row in ask(self._statements.states, (asked,), ANSWERS_WITHIN)}
        for number, name in enumerate(order):
            before, state = self._states.get(name, _NEW), found.get(number)
            self._states[name] = state
            if (state != before and before is not _NEW) or (state is None and (name in fresh or before is _NEW)):
                self.subscriptions.changed(name)
        if len(self._states) > 2 * len(self.subscriptions) + FORGETS_ABOVE:
            known = self.subscriptions.names()
            self._states = {name: state for name, state in self._states.items() if name in known}

    def _take_locks(self, connection: Connection) -> bool:
        """Hold the locks of the buckets that are waited for, and no other for long; False if one was not free."""
        now, lock = time.monotonic(), str(lock_class(self._target.schema))
        with self._lock:
            for name in self.subscriptions.names():
                self._wanted[bucket(name.key)] = now
            self._wanted = {number: at for number, at in self._wanted.items() if now - at < LINGERS}
            wanted = frozenset(self._wanted)
            dropped = self._held - wanted
            self._held -= dropped  # under the lock: a record that is subscribed to from here on is looked at first
        is_complete = True
        for number in wanted - self._held:
            # somebody may be changing a record of this bucket right now, and has looked whether anybody waits
            (row,) = connection.ask(
                b"SELECT pg_catalog.pg_try_advisory_lock_shared($1::int, $2::int)", (lock, str(number)), ANSWERS_WITHIN
            )
            if row[0] == "t":
                self._held |= {number}
            else:
                is_complete = False
        for number in dropped:
            connection.ask(
                b"SELECT pg_catalog.pg_advisory_unlock_shared($1::int, $2::int)", (lock, str(number)), ANSWERS_WITHIN
            )
        return is_complete

    def _notify(self, connection: Connection) -> None:
        """Call the subscribers of what was notified; where there are none any more, have another process notified."""
        while notified := connection.notifications():  # again: more may have come with an answer
            for said in notified:
                told, _, key = said.partition(" ")
                is_for_us = told.partition(",")[0] == self._me
                if (is_for_us or told == str(EVERYBODY)) and not self._called(key, told if is_for_us else None):
                    self._take_locks(connection)
                    self._pass_on(connection, key, told)

    def _called(self, key: str, told: str | None) -> bool:
        """Call the subscribers of a key. False if it is to be passed on: this process was notified and has none."""
        subscribed = self.subscriptions.names()
        names = [name for name in subscribed if name.key == key]
        with self._lock:
            if names and told is not None:
                self._told[key] = told, time.monotonic() + ASKS_WITHIN
            if not names and not any(bucket(other.key) == bucket(key) for other in subscribed):
                # the lock of the bucket lingers: this process must be passed over once, and not with every release
                self._wanted.pop(bucket(key), None)
        for name in names:
            self._states[name] = None  # as a rule it has gone: whatever is found there next is a change
            self.subscriptions.changed(name, is_free=told is not None)
        return bool(names) or told is None

    def _pass_on(self, connection: Connection, key: str, told: str) -> None:
        connection.ask(self._statements.pass_on, (key, str(bucket(key)), f"{{{told}}}"), ANSWERS_WITHIN)

    def _pass_on_late(self, connection: Connection) -> float:
        """Pass on what nobody here has made use of; give the seconds until there may be more to pass on."""
        now = time.monotonic()
        for key, (told, until) in list(self._told.items()):
            if until <= now and self._told.pop(key, None) is not None:
                self._pass_on(connection, key, told)
        return min((max(0.0, until - now) for _, until in list(self._told.values())), default=1.0)

    # --- life ----------------------------------------------------------------------------------------------------

    def forget(self) -> Listener:
        """Return a fresh one to a forked child, where the thread is not."""
        fresh = Listener(self._target, self._statements, self._ask)
        fresh._is_open = self._is_open
        return fresh

    def close(self) -> None:
        """End the thread and its connection; waits for it shortly."""
        with self._lock:
            self._is_open = False
            thread = self._thread
            if thread is not None:
                self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)


def _conninfo(target: Target) -> str:
    if not target.listen_to:
        return target.conninfo
    from psycopg.conninfo import make_conninfo

    return make_conninfo(target.conninfo, **dict(target.listen_to))


def _is_woken(wake_reader: int, seconds: float) -> bool:
    """Wait until this thread is woken; False if it was not within `seconds`."""
    poll = select.poll()
    poll.register(wake_reader, select.POLLIN)
    if not poll.poll(int(seconds * 1000)):
        return False
    with suppress(BlockingIOError):
        os.read(wake_reader, 4096)
    return True
