"""The connection to ZooKeeper: opens, limits and ends one session, and carries out scripts on it.

kazoo never repeats a request here, because none is sent by its `retry`. kazoo would keep a request and send it later if
it is not connected, so it gets no request before it is connected. Must not know records.
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
from lockstead.script import Script, drive
from lockstead.stores.subscriptions import join, started
from lockstead.stores.zookeeper.answers import outcomes
from lockstead.stores.zookeeper.client import log, new_client
from lockstead.stores.zookeeper.requests import Answers, Request

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.url import Target

T = TypeVar("T")

DIAGNOSIS: Final = 0.2
"""Fraction of a request's limit, at most a second, that is reserved for diagnosing why there is no connection."""

SILENCE_MAX: Final = 1.0
"""Seconds without any reply, after which a request that times out closes the connection. kazoo would wait for most of
the session timeout, too long for renewals. The session continues over the next connection."""

CLOSES_WITHIN: Final = 2.0
"""Seconds that closing waits for a server that does not reply."""


class Connection:
    """One session with ZooKeeper, opened on first use; safe to share between threads. Callers set the limits."""

    def __init__(self, target: Target, make: Callable[[], Any] | None = None) -> None:
        self._target = target
        self._make = make
        self._lock = threading.Lock()
        self._client: Any = None
        self._live: Any = None
        self._is_closed = False
        self._inherited: list[Any] = []
        # when the first request was sent of those since the last reply
        self._waits_since: float | None = None
        # called in a thread of kazoo; must neither block nor raise
        self.on_connected: Callable[[], None] = _nothing

    # --- the session ---------------------------------------------------------------------------------------------

    def ready(self, limit: float) -> Any:
        """Return a connected client within `limit` seconds, or raise StoreUnavailable or StoreRefused."""
        client = self._client
        if client is not None and client.client_state == KeeperState.CONNECTED:
            return client
        client, live = self.started()
        ends_at = time.monotonic() + limit
        live.wait(max(0.0, limit - min(1.0, limit * DIAGNOSIS)))
        if live.is_set():
            return client
        raise self._diagnosis(client, ends_at)

    def started(self) -> tuple[Any, Any]:
        """Return a client, and the event that is set while it is connected. Sends no request, but may call `make`."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable(f"the store {self._target.url} is closed")
            if self._client is None:
                client = new_client(self._target) if self._make is None else self._make()
                try:
                    client.add_listener(self._state_changed)
                    self._live = client.start_async()
                    self._client = client
                except RuntimeError as error:
                    _ended(client)  # at once: the thread that talks to the server is started last
                    raise StoreUnavailable(f"ZooKeeper: no thread can be started for a session: {error}") from error
                except BaseException:  # a signal handler may raise anywhere; a client half started never connects
                    self._client = None
                    _end_aside(client)
                    raise
            return self._client, self._live

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.on_connected()

    def _diagnosis(self, client: Any, ends_at: float) -> StoreError:
        """Return the error that says why there is no connection."""
        from lockstead.stores.zookeeper.probe import diagnose

        threads = getattr(client.handler, "threads", None)
        if client.client_state == KeeperState.AUTH_FAILED or (threads and not threads[-1].is_alive()):
            self._drop(client)
        return diagnose(self._target, max(0.1, ends_at - time.monotonic()))

    def _drop(self, client: Any) -> None:
        """Forget a client that will not connect again; the next request creates another."""
        with self._lock:
            if self._client is client:
                self._client = None
        _ended(client)

    # --- requests ------------------------------------------------------------------------------------------------

    def run(self, script: Script[Request, Answers, T], limit: float) -> T:
        """Carry out one script within `limit` seconds."""
        ends_at = time.monotonic() + limit
        client = self.ready(limit)
        return drive(script, lambda one: self.outcomes(client, self.send(client, one, ends_at), ends_at, one))

    def run_many(self, scripts: Sequence[Script[Request, Answers, Any]], limit: float) -> list[Any]:
        """Carry out scripts concurrently: the next requests of all are sent together. Return values and StoreErrors."""
        ends_at = time.monotonic() + limit
        try:
            client = self.ready(limit)
        except StoreError as error:
            return [error] * len(scripts)
        done: list[Any] = [None] * len(scripts)
        pending = {number: next(script) for number, script in enumerate(scripts)}
        while pending:
            sent: dict[int, tuple[Request, Sequence[Any]]] = {}
            synced: Sequence[Any] = ()
            for number, request in pending.items():
                try:
                    sent[number] = request, self.send(client, request, ends_at, synced)
                except StoreError as error:
                    done[number] = error
                else:
                    # one sync serves later reads too: a session is served in order, and never by a server that is
                    # behind what the session has seen, not even after a reconnection
                    synced = sent[number][1][:1] if request.syncs else synced
            pending = {}
            for number, (request, results) in sent.items():
                try:
                    pending[number] = scripts[number].send(self.outcomes(client, results, ends_at, request))
                except StopIteration as stop:
                    done[number] = stop.value
                except StoreError as error:
                    done[number] = error
        for script in scripts:
            script.close()
        return done

    def send(self, client: Any, request: Request, ends_at: float, synced: Sequence[Any] = ()) -> Sequence[Any]:
        """Send a request if it can be sent at once and in time; raise StoreUnavailable otherwise.

        Earlier requests of the same script changed nothing, or only the parents of records. synced: the result of a
        sync that was sent just before. The result of a sync comes before those of the requests.
        """
        if time.monotonic() > ends_at:
            raise StoreUnavailable("ZooKeeper: the time limit ended before the request was sent")
        if client.client_state != KeeperState.CONNECTED:
            raise StoreUnavailable("ZooKeeper: the connection was lost before the request was sent")
        if not request.syncs:
            return request.send(client)
        return [*(synced or (client.sync_async(request.syncs),)), *request.send(client)]

    def outcomes(self, client: Any, results: Sequence[Any], ends_at: float, request: Request) -> list[Any]:
        """Wait for the outcomes of a request; raises StoreError."""
        if self._waits_since is None:
            self._waits_since = time.monotonic()
        try:
            answers = outcomes(results, ends_at, writes=request.writes)
        except StoreError as error:
            if isinstance(error.__cause__, KazooTimeoutError):
                self._end_silence(client)
            else:
                self._waits_since = None
            raise
        self._waits_since = None
        return answers[1:] if request.syncs else answers

    def _end_silence(self, client: Any) -> None:
        """Close a connection that has been silent for SILENCE_MAX; kazoo then opens another one at once."""
        waits_since = self._waits_since
        if waits_since is None or time.monotonic() - waits_since < SILENCE_MAX:
            return
        self._waits_since = None
        connection = client._connection._socket
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- life ----------------------------------------------------------------------------------------------------

    def forget(self) -> Connection:
        """Return a new connection for a forked child; the inherited client stays referenced, so it is not closed."""
        connection = Connection(self._target, self._make)
        connection._is_closed = self._is_closed
        connection._inherited = [*self._inherited, self._client]
        if self._client is not None:
            # at the child's exit, kazoo would join threads that do not exist in the child
            atexit.unregister(self._client.handler.stop)
        return connection

    def close(self) -> None:
        """End the session, and with it its queue entries. Waits at most CLOSES_WITHIN for the server."""
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None:
            join(_end_aside(client), CLOSES_WITHIN)


def _nothing() -> None:
    pass


def _end_aside(client: Any) -> threading.Thread:
    """End a client in a thread, which is returned. Without a thread, its session lasts as long as the process."""
    ending = threading.Thread(target=_ended, args=(client,), name="lockstead-zookeeper-close", daemon=True)
    started(ending)
    return ending


def _ended(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 - there is no caller that could handle it
        log.info("the session did not end in good order: %s", error)
