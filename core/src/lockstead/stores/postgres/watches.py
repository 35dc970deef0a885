"""Change notifications for all subscribers of a store: by NOTIFY, or by polling if there can be none.

One thread with its own connection. While there are subscriptions to a key, that connection holds the shared advisory
lock of the key's bucket, so a statement that changes a record knows whether to notify. No lease depends on this
connection. Must not know what a record means.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from typing import Final, TypeAlias

from lockstead.errors import StoreError
from lockstead.stores.postgres.connection import Connection, run
from lockstead.stores.postgres.encoding import encoded, named
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.session import connect
from lockstead.stores.postgres.statements import EVERYBODY, Statements, bucket, lock_class, topic
from lockstead.stores.postgres.url import Target
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions, join, started
from lockstead.values import Name

RETRY_AFTER: Final = 0.02
"""Seconds until a bucket's lock that was not free is tried again."""

POLL_MIN: Final = 0.05
POLL_MAX: Final = 0.5
"""Seconds between two polls of the records if there are no notifications."""

INSURANCE: Final = 5.0
"""Seconds between two polls if there are: a dead connection may look alive."""

LINGERS: Final = 5.0
"""Seconds that a bucket's lock is kept without subscriptions: most callers that stop waiting soon wait again."""

IDLES: Final = 30.0
"""Seconds without any subscription after which the connection is closed."""

ACQUIRES_WITHIN: Final = 0.1
"""Seconds in which a process that was notified of a release must try to acquire; else another one is notified."""

ANSWERS_WITHIN: Final = 5.0
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 15.0
"""Seconds until the next attempt after the connection was lost or refused."""

Ask: TypeAlias = Callable[[bytes, tuple[str, ...], float], "list[Row]"]
"""Returns the rows of a statement, within a limit (seconds)."""

FORGETS_ABOVE: Final = 100
"""Number of remembered records beyond twice the number of those with subscriptions."""

_NEW: Final = frozenset([("not looked at yet",)])
_FAILURES: Final = (StoreError, ValueError, IndexError, KeyError)
"""Errors of a server that is down, or whose rows do not have the expected columns."""


class Listener:
    """The subscriptions of one process to one store, and the connection that listens for them.

    ask uses a connection of the store's pool. Replaced in a forked child, where the thread does not exist.
    """

    def __init__(self, target: Target, statements: Statements, ask: Ask) -> None:
        self.subscriptions = Subscriptions[Name]()
        self._target = target
        self._statements = statements
        self._ask = ask
        self._lock = threading.Lock()
        # part, incarnation and revision of the records of each topic when last seen; None if there was none
        self._states: dict[Name, Set[tuple[str | None, ...]] | None] = {}
        self._fresh: set[Name] = set()
        self._wanted: dict[int, float] = {}
        self._held: frozenset[int] = frozenset()
        self._thread: threading.Thread | None = None
        self._wakes = -1
        self._is_open = True
        self._listens = target.listen != "no"
        self._me = ""
        # by topic: the receivers so far of a notification that was not used yet, and until when it may be
        self._unused: dict[str, tuple[str, float]] = {}

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Return a subscription to a record, as specified by `stores.port.SupportsWatch`."""
        subscription, _ = self.subscriptions.add(name.topic, on_change)
        with self._lock:
            self._fresh.add(name.topic)
            if self._thread is not None:
                self._wake()
            elif self._is_open:
                self._start()
        return subscription

    def note_acquire(self, about: str) -> None:
        """Note that this process tries to acquire a lock: then no other process needs to be notified in its place."""
        if self._unused:
            self._unused.pop(about, None)

    def _start(self) -> None:
        wake_reader, self._wakes = os.pipe()
        os.set_blocking(wake_reader, False)
        os.set_blocking(self._wakes, False)
        thread = threading.Thread(target=self._run, args=(wake_reader,), name="lockstead-listen", daemon=True)
        self._thread = thread
        if not started(thread):
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
        """Return whether the thread is no longer needed; then the next subscription starts another one."""
        with self._lock:
            if self._is_open and self.subscriptions:
                return False
            self._thread = None
            os.close(self._wakes)
            return True

    def _poll(self, wake_reader: int, seconds: float) -> None:
        """Poll the records for some seconds."""
        ends_at, pause = time.monotonic() + seconds, POLL_MIN
        while self._is_open and self.subscriptions and time.monotonic() < ends_at:
            with suppress(*_FAILURES):
                self._look(self._ask, self.subscriptions.names(), self._take_fresh(is_notified=False))
            pause = min(POLL_MAX, pause * random.uniform(1.0, 2.0))
            if _is_woken(wake_reader, pause):
                pause = POLL_MIN

    def _listen(self, wake_reader: int) -> None:
        """Listen until there have been no subscriptions for long. Raises StoreError if the connection is lost."""
        target = self._target
        way = _conninfo(target)
        connection = run(connect(Connection, way, target.url, ANSWERS_WITHIN, may_be_clear=target.may_be_clear))
        try:
            (row,) = connection.ask(b"SELECT pg_catalog.pg_backend_pid()", (), ANSWERS_WITHIN)
            self._me = str(row[0])
            if not connection.learn(row[0]) and target.listen == "auto":
                # a pooler may deliver the notifications to another client
                self._listens = False
                return
            connection.ask(self._statements.listen, (), ANSWERS_WITHIN)
            with self._lock:
                self._fresh |= self.subscriptions.names()
            self._serve(connection, wake_reader)
        finally:
            self._held = frozenset()
            self._unused.clear()
            connection.close()

    def _serve(self, connection: Connection, wake_reader: int) -> None:
        poll = select.poll()
        poll.register(connection.descriptor, select.POLLIN | select.POLLPRI)
        poll.register(wake_reader, select.POLLIN)
        looked_at = used_at = time.monotonic()
        while self._is_open:
            is_complete = self._take_locks(connection)
            # each change committed from here on is notified; this poll finds earlier ones
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
            # notifications read together with a reply do not wake the poll
            self._notify(connection)
            poll.poll(int(min(1.0 if is_complete else RETRY_AFTER, self._pass_on_late(connection)) * 1000) + 1)
            _is_woken(wake_reader, 0.0)
            self._notify(connection)

    def _take_fresh(self, *, is_notified: bool) -> set[Name]:
        """Return newly subscribed records that were not polled yet; is_notified: only those with notifications."""
        with self._lock:
            taken = {name for name in self._fresh if not is_notified or bucket(topic(name)) in self._held}
            self._fresh -= taken
            return taken

    def _look(self, ask: Ask, names: Collection[Name], fresh: Collection[Name] = ()) -> None:
        """Poll records and call the subscribers of those that changed, and of fresh ones that are absent."""
        if not names:
            return
        order = list(names)
        asked = encoded([{"n": number, **named(name)} for number, name in enumerate(order)])
        found: dict[int, set[tuple[str | None, ...]]] = {}
        for row in ask(self._statements.states, (asked,), ANSWERS_WITHIN):
            found.setdefault(int(row[0] or 0), set()).add(tuple(row[1:]))
        for number, name in enumerate(order):
            before, state = self._states.get(name, _NEW), found.get(number)
            self._states[name] = state
            # a change may have been missed before the first look: of slots, any
            is_missed = (name in fresh or before is _NEW) and (state is None or name.is_slot)
            if is_missed or (state != before and before is not _NEW):
                self.subscriptions.changed(name)
        if len(self._states) > 2 * len(self.subscriptions) + FORGETS_ABOVE:
            known = self.subscriptions.names()
            self._states = {name: state for name, state in self._states.items() if name in known}

    def _take_locks(self, connection: Connection) -> bool:
        """Hold the locks of the buckets with subscriptions, others not for long; return False if one was not free."""
        now, lock = time.monotonic(), str(lock_class(self._target.schema))
        with self._lock:
            for name in self.subscriptions.names():
                self._wanted[bucket(topic(name))] = now
            self._wanted = {number: at for number, at in self._wanted.items() if now - at < LINGERS}
            wanted = frozenset(self._wanted)
            dropped = self._held - wanted
            self._held -= dropped  # under the lock: a record subscribed to from here on is polled first
        is_complete = True
        for number in wanted - self._held:
            # a concurrent change of a record of this bucket may already have checked for waiters
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
        """Call the subscribers of what was notified; if there are none any more, pass the notification on."""
        while notified := connection.notifications():  # again: more may have arrived with a reply
            for payload in notified:
                receivers, _, about = payload.partition(" ")
                is_for_us = receivers.partition(",")[0] == self._me
                if (is_for_us or receivers == str(EVERYBODY)) and not self._called(
                    about, receivers if is_for_us else None
                ):
                    self._take_locks(connection)
                    self._pass_on(connection, about, receivers)

    def _called(self, about: str, receivers: str | None) -> bool:
        """Call the subscribers of a topic; return False if this process was notified and has none."""
        subscribed = self.subscriptions.names()
        names = [name for name in subscribed if topic(name) == about]
        with self._lock:
            if names and receivers is not None:
                self._unused[about] = receivers, time.monotonic() + ACQUIRES_WITHIN
            if not names and not any(bucket(topic(other)) == bucket(about) for other in subscribed):
                # the bucket's lock lingers: this process must be passed over once, not at every release
                self._wanted.pop(bucket(about), None)
        for name in names:
            self._states[name] = None  # usually it is gone: whatever is found next is a change
            self.subscriptions.changed(name, is_free=receivers is not None and not name.is_slot)
        return bool(names) or receivers is None

    def _pass_on(self, connection: Connection, about: str, receivers: str) -> None:
        connection.ask(self._statements.pass_on, (about, str(bucket(about)), f"{{{receivers}}}"), ANSWERS_WITHIN)

    def _pass_on_late(self, connection: Connection) -> float:
        """Pass on notifications that were not used here; return the seconds until there may be more."""
        now = time.monotonic()
        for about, (receivers, until) in list(self._unused.items()):
            if until <= now and self._unused.pop(about, None) is not None:
                self._pass_on(connection, about, receivers)
        return min((max(0.0, until - now) for _, until in list(self._unused.values())), default=1.0)

    def close(self) -> None:
        """End the thread and its connection; wait for it briefly."""
        with self._lock:
            self._is_open = False
            thread = self._thread
            if thread is not None:
                self._wake()
        join(thread, 2.0)


def _conninfo(target: Target) -> str:
    if not target.listen_to:
        return target.conninfo
    from psycopg.conninfo import make_conninfo

    return make_conninfo(target.conninfo, **dict(target.listen_to))


def _is_woken(wake_reader: int, seconds: float) -> bool:
    """Wait until this thread is woken; return False if it was not within `seconds`."""
    poll = select.poll()
    poll.register(wake_reader, select.POLLIN)
    if not poll.poll(int(seconds * 1000)):
        return False
    with suppress(BlockingIOError):
        os.read(wake_reader, 4096)
    return True
