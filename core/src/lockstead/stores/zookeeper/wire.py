"""How one session with a ZooKeeper is opened, limited and given up, and how commands take turns on it.

kazoo never repeats a request here: nothing is asked by its `retry`. What it was given while it had no connection it
would send later, so nothing is given to it before it is connected. Must not know records.
"""

from __future__ import annotations

import atexit
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from lockstead.errors import StoreError, StoreUnavailable
from lockstead.stores.zookeeper.answers import outcomes
from lockstead.stores.zookeeper.client import log, made
from lockstead.stores.zookeeper.steps import Ask, Flow

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.url import Where

T = TypeVar("T")

DIAGNOSIS: Final = 0.2
"""Part of a request's limit that is kept for finding out why there is no connection, at most a second."""

SILENCE_MAX: Final = 1.0
"""Seconds without any answer to what was asked, after which a request that is out of time ends the connection. kazoo
would wait for most of a session; renewals have no time for that. The session goes on over the next connection."""

CLOSES_WITHIN: Final = 2.0
"""Seconds that closing waits for a server that does not answer."""


class Wire:
    """One session with a ZooKeeper, opened when first used, by as many threads as like. Its limit is the caller's."""

    def __init__(self, where: Where, make: Callable[[], Any] | None = None) -> None:
        self._where = where
        self._make = make
        self._lock = threading.Lock()
        self._client: Any = None
        self._live: Any = None
        self._is_closed = False
        self._inherited: list[Any] = []
        # when the first of the requests was sent of which none was answered yet
        self._asked_at: float | None = None
        # called in a thread of kazoo's: it must neither block nor raise
        self.on_connected: Callable[[], None] = _nothing

    # --- the session ---------------------------------------------------------------------------------------------

    def ready(self, limit: float) -> Any:
        """Return a client that is connected, within `limit` seconds; otherwise StoreUnavailable or StoreRefused."""
        client, live = self.started()
        if live.is_set():
            return client
        ends_at = time.monotonic() + limit
        live.wait(max(0.0, limit - min(1.0, limit * DIAGNOSIS)))
        if live.is_set():
            return client
        raise self._silence(client, ends_at)

    def started(self) -> tuple[Any, Any]:
        """Return a client, and the event that is set while it is connected. Makes no request, but may call `make`."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable(f"the store {self._where.url} is closed")
            if self._client is None:
                self._client = made(self._where) if self._make is None else self._make()
                self._client.add_listener(self._state_changed)
                self._live = self._client.start_async()
            return self._client, self._live

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.on_connected()

    def _silence(self, client: Any, ends_at: float) -> StoreError:
        """Say why there is no connection."""
        from lockstead.stores.zookeeper.probe import why_silent

        threads = getattr(client.handler, "threads", None)
        if client.client_state == KeeperState.AUTH_FAILED or (threads and not threads[-1].is_alive()):
            self._drop(client)
        return why_silent(self._where, max(0.1, ends_at - time.monotonic()))

    def _drop(self, client: Any) -> None:
        """Forget a client that will not connect again; the next request makes another."""
        with self._lock:
            if self._client is client:
                self._client = None
        _ended(client)

    # --- requests ------------------------------------------------------------------------------------------------

    def run(self, flow: Flow[T], limit: float) -> T:
        """Carry out one flow within `limit` seconds."""
        ends_at = time.monotonic() + limit
        client = self.ready(limit)
        try:
            ask = next(flow)
            while True:
                ask = flow.send(self.outcomes(client, self.send(client, ask, ends_at), ends_at, ask))
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            flow.close()

    def run_many(self, flows: Sequence[Flow[Any]], limit: float) -> list[Any]:
        """Carry out flows side by side: what they send next goes out together. Gives values and StoreErrors."""
        ends_at = time.monotonic() + limit
        try:
            client = self.ready(limit)
        except StoreError as error:
            return [error] * len(flows)
        done: list[Any] = [None] * len(flows)
        asking: dict[int, Ask] = {}
        for number, flow in enumerate(flows):
            asking[number] = next(flow)
        while asking:
            sent: dict[int, Sequence[Any] | StoreError] = {}
            synced: Sequence[Any] = ()
            for number, ask in asking.items():
                results = sent[number] = self._sent(client, ask, ends_at, synced)
                if ask.syncs and not isinstance(results, StoreError):
                    # for the reads behind it, too: a session is served in order, and never by a server that is behind
                    # what it was told, not even after another connection
                    synced = results[:1]
            asking, waiting = {}, asking
            for number, ask in waiting.items():
                results = sent[number]
                try:
                    if isinstance(results, StoreError):
                        raise results
                    asking[number] = flows[number].send(self.outcomes(client, results, ends_at, ask))
                except StopIteration as stop:
                    done[number] = stop.value
                except StoreError as error:
                    done[number] = error
        return done

    def _sent(self, client: Any, ask: Ask, ends_at: float, synced: Sequence[Any]) -> Sequence[Any] | StoreError:
        try:
            return self.send(client, ask, ends_at, synced)
        except StoreError as error:
            return error

    def send(self, client: Any, ask: Ask, ends_at: float, synced: Sequence[Any] = ()) -> Sequence[Any]:
        """Send what goes out at once; StoreUnavailable for what would not, or not in time.

        The requests of the same flow before it changed nothing, or only the nodes above the records. synced: a sync
        that went out just before. What came of the one that is needed stands before what came of the requests.
        """
        if time.monotonic() > ends_at:
            raise StoreUnavailable("ZooKeeper: the time for the request was over before it was sent")
        if not client.connected or client.client_state != KeeperState.CONNECTED:
            raise StoreUnavailable("ZooKeeper: the connection was lost before the request was sent")
        if not ask.syncs:
            return ask.send(client)
        return [*(synced or (client.sync_async(ask.syncs),)), *ask.send(client)]

    def outcomes(self, client: Any, results: Sequence[Any], ends_at: float, ask: Ask) -> list[Any]:
        """Wait for what comes of what was sent; raises StoreError."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        try:
            answers = outcomes(results, ends_at, writes=ask.writes)
        except StoreError as error:
            if isinstance(error.__cause__, KazooTimeoutError):
                self._end_silence(client)
            else:
                self._asked_at = None
            raise
        self._asked_at = None
        return answers[1:] if ask.syncs else answers

    def _end_silence(self, client: Any) -> None:
        """End a connection that has long said nothing: kazoo then opens another one at once."""
        asked_at = self._asked_at
        if asked_at is None or time.monotonic() - asked_at < SILENCE_MAX:
            return
        self._asked_at = None
        connection = client._connection._socket
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- life ----------------------------------------------------------------------------------------------------

    def forget(self) -> Wire:
        """Return a new wire for a forked child. The inherited one is kept, so that nothing of it is closed."""
        wire = Wire(self._where, self._make)
        wire._is_closed = self._is_closed
        wire._inherited = [*self._inherited, self._client]
        if self._client is not None:
            # kazoo would join, at the exit of the child, threads that the child does not have
            atexit.unregister(self._client.handler.stop)
        return wire

    def close(self) -> None:
        """End the session, and every place in a queue with it. Waits a moment for a server that does not answer."""
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None:
            ending = threading.Thread(target=_ended, args=(client,), name="lockstead-zookeeper-close", daemon=True)
            ending.start()
            ending.join(CLOSES_WITHIN)


def _nothing() -> None:
    pass


def _ended(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 - nobody is left who could do anything about it
        log.info("the session did not end in good order: %s", error)
