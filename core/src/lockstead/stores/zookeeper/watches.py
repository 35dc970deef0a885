"""Watches of one store: observers read nodes, and read them again when one has changed.

One thread sends the requests of all observers and handles the replies; no request is sent in a subscriber's thread.
kazoo's threads only put events and replies into its inbox. A ZooKeeper watch reports one change and does not outlive
the connection, so the observer then reads again. Must not know what a node means.
"""

from __future__ import annotations

import heapq
import math
import queue
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

from kazoo.protocol.states import EventType

from lockstead.script import Script
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions, join, started
from lockstead.stores.zookeeper.client import log
from lockstead.stores.zookeeper.connection import Connection
from lockstead.stores.zookeeper.encoding import Tree
from lockstead.stores.zookeeper.requests import Answers, Request
from lockstead.values import Name

IN_FLIGHT_MAX: Final = 64
"""Maximum observers that read at once: renewals on the same session must not wait behind thousands of reads."""

PAUSE_MIN: Final = 0.1
PAUSE_MAX: Final = 15.0
"""Seconds until an observer whose look failed looks again, unless the connection is restored earlier."""

STARTS_AGAIN: Final = 1.0
"""Seconds until the next attempt to create a client after a failure."""

CLOSES_WITHIN: Final = 2.0
"""Seconds that closing waits for the thread, which may be in the user's function that creates a client."""

NEW: Final = -1
"""The state of a record that was not read yet."""


Look: TypeAlias = Script[Request, Answers, float | None]
"""A script that reads nodes. Returns the seconds until the next look; None: only when the watched node changes."""


class Observer(ABC):
    """A reader of nodes that watches one of them. Its attributes are used only by the thread of `Watches`."""

    def __init__(self) -> None:
        self.path = ""
        self.pause = 0.0
        self.looks_at = math.inf
        self.looks_again = False

    @abstractmethod
    def look(self) -> Look:
        """Return the script of a new look."""

    @abstractmethod
    def changed(self, is_gone: bool) -> float | None:
        """Handle a possible change of the watched node; is_gone: it was deleted. Return the same as a look."""


class Watches:
    """The observers and the thread of one store. The thread starts on first use. Replaced in a forked child."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_open = True
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._put = self._inbox.put
        connection.on_connected = partial(self._put, self._reconnected)
        # the following attributes are used only by the thread
        self._client: Any = None
        self._at: dict[str, set[Observer]] = {}
        self._ready: dict[Observer, None] = {}
        self._scripts: dict[Observer, Look] = {}
        self._later: list[tuple[float, int, Observer]] = []
        self._numbers = count()

    def look(self, observer: Observer) -> None:
        """Schedule a look of an observer as soon as possible. Does not block; may be called from any thread."""
        self._put(partial(self._begin, observer))
        with self._lock:
            # a thread without ident was never started, because its caller was interrupted
            if self._is_open and (self._thread is None or self._thread.ident is None):
                self._thread = threading.Thread(target=self._run, name="lockstead-zookeeper-watch", daemon=True)
                started(self._thread)

    def watched(self, verb: str, path: str, observer: Observer) -> Request:
        """Return a request that reads a node by "get" or "exists" and makes the observer watch it."""

        def send(client: Any) -> tuple[Any]:
            self._unwatch(observer)
            observer.path = path
            self._at.setdefault(path, set()).add(observer)
            return (getattr(client, f"{verb}_async")(path, watch=_Watch(self, path)),)

        return Request(send)

    def close(self) -> None:
        """Stop the thread."""
        with self._lock:
            self._is_open = False
            thread = self._thread
        self._put(lambda: None)
        join(thread, CLOSES_WITHIN)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._thread is not threading.current_thread():
            return
        while self._is_open:
            try:
                self._work()
                job = self._inbox.get(timeout=self._seconds())
            except queue.Empty:
                continue
            try:
                job()
            except Exception as error:  # noqa: BLE001 - the other subscribers must still be called
                log.warning("a change could not be notified: %s", type(error).__name__)

    def _seconds(self) -> float | None:
        """Return the seconds until there is something to do; None if only the inbox can bring work."""
        seconds = self._later[0][0] - time.monotonic() if self._later else math.inf
        if self._ready:
            seconds = min(seconds, STARTS_AGAIN)
        return None if seconds == math.inf else max(0.0, seconds)

    def _work(self) -> None:
        """Start the looks that are due, if there is a connection."""
        while self._later and self._later[0][0] <= time.monotonic():
            looks_at, _, observer = heapq.heappop(self._later)
            if looks_at == observer.looks_at:
                self._begin(observer)
        if self._ready and self._is_connected():
            while self._ready and len(self._scripts) < IN_FLIGHT_MAX:
                observer = next(iter(self._ready))
                del self._ready[observer]
                script = self._scripts[observer] = observer.look()
                self._step(observer, script, partial(next, script))

    def _is_connected(self) -> bool:
        try:
            client, live = self._connection.started()
        except Exception:  # noqa: BLE001 - the store was closed, or no client can be created: subscribers poll
            return False
        if client is not self._client:
            # replies and events of the previous client may never arrive
            self._client = client
            for script in self._scripts.values():
                script.close()
            for observers in [*self._at.values(), [*self._scripts]]:
                self._ready.update(dict.fromkeys(observers))
            self._scripts.clear()
        return bool(live.is_set())

    def _reconnected(self) -> None:
        """After a reconnection, let observers whose look failed look again at once."""
        self._is_connected()
        later, self._later = self._later, []
        for looks_at, _, observer in later:
            if looks_at == observer.looks_at:
                self._begin(observer)

    # --- observers -----------------------------------------------------------------------------------------------

    def _begin(self, observer: Observer) -> None:
        observer.looks_at = math.inf
        if observer in self._scripts:
            observer.looks_again = True
        else:
            self._ready[observer] = None

    def _step(self, observer: Observer, script: Look, move: Callable[[], Request]) -> None:
        """Send the next request of an observer."""
        try:
            results: Sequence[Any] = ()
            while not results:
                request = move()
                results = self._connection.send(self._client, request, math.inf)
                move = partial(script.send, [])
        except StopIteration as stop:
            observer.pause = 0.0
            self._ended(observer, 0.0 if observer.looks_again else stop.value)
        except Exception as error:  # noqa: BLE001 - after any error subscribers poll, and the look is retried
            log.debug("an observer could not look: %s", type(error).__name__)
            observer.pause = min(PAUSE_MAX, max(PAUSE_MIN, observer.pause * 2))
            self._ended(observer, observer.pause * random.uniform(0.5, 1.0))
        else:
            # replies of a session come in order, so the last one completes the request
            answered = partial(self._answered, observer, script, request, results)
            results[-1].rawlink(lambda _result: self._put(answered))

    def _answered(self, observer: Observer, script: Look, request: Request, results: Sequence[Any]) -> None:
        if self._scripts.get(observer) is script:
            outcomes = partial(self._connection.outcomes, self._client, results, time.monotonic(), request)
            self._step(observer, script, lambda: script.send(outcomes()))

    def _ended(self, observer: Observer, seconds: float | None) -> None:
        del self._scripts[observer]
        observer.looks_again = False
        self._look_in(observer, seconds)

    def _look_in(self, observer: Observer, seconds: float | None) -> None:
        if seconds is None:
            return
        if not seconds:
            self._begin(observer)
            return
        observer.looks_at = time.monotonic() + seconds
        heapq.heappush(self._later, (observer.looks_at, next(self._numbers), observer))

    def _unwatch(self, observer: Observer) -> None:
        observers = self._at.get(observer.path)
        if observers is not None:
            observers.discard(observer)
            if not observers:
                del self._at[observer.path]

    def _changed(self, path: str, is_gone: bool) -> None:
        for observer in self._at.pop(path, ()):
            observer.path = ""
            self._look_in(observer, observer.changed(is_gone))


@dataclass(frozen=True)
class _Watch:
    """The callback of kazoo for a change of a node or a lost connection. Equal callbacks are registered only once."""

    watches: Watches
    path: str

    def __call__(self, event: Any) -> None:
        self.watches._put(partial(self.watches._changed, self.path, event.type == EventType.DELETED))


class Records:
    """The subscriptions to the records of one store."""

    def __init__(self, tree: Tree, watches: Watches) -> None:
        self.subscriptions: Subscriptions[Name] = Subscriptions()
        self.tree = tree
        self.watches = watches
        self._lock = threading.Lock()
        self._records: dict[Name, _Record] = {}

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Return a subscription to a record, as specified by `stores.port.SupportsWatch`."""
        name = name.topic
        subscription, is_first = self.subscriptions.add(name, on_change)
        with self._lock:
            record = self._records.get(name)
            if record is None:
                record = self._records[name] = _Record(self, name)
                is_first = True
            if is_first:
                record.state = NEW
        if is_first:
            self.watches.look(record)
        elif record.state is None:
            on_change(False)  # its absence is known already, so the thread does not notify it again
        return subscription

    def is_wanted(self, name: Name) -> bool:
        """Return whether a record has subscriptions; if not, forget it."""
        with self._lock:
            if name in self.subscriptions:
                return True
            self._records.pop(name, None)
            return False


class _Record(Observer):
    """A record with subscriptions. state: the id of the transaction that wrote it last; None if it is absent.

    Or the slots of a key, whose subscribers are called after each look, since any of them may have changed: None then.
    """

    def __init__(self, records: Records, name: Name) -> None:
        super().__init__()
        self._records = records
        self._name = name
        self.state: int | None = NEW

    def look(self) -> Look:
        records = self._records
        if not records.is_wanted(self._name):
            return None
        stat = (yield records.watches.watched("exists", records.tree.record(self._name), self))[0]
        is_slot = self._name.is_slot
        before, self.state = self.state, None if stat is None or is_slot else stat.mzxid
        # set the state first: a concurrent new subscriber is then called here or by `subscribe`
        if is_slot or (before != self.state and (before != NEW or stat is None)):
            records.subscriptions.changed(self._name)
        return None

    def changed(self, is_gone: bool) -> float | None:
        if is_gone:
            self.state = None
            self._records.subscriptions.changed(self._name)
        return 0.0 if self._records.is_wanted(self._name) else None
