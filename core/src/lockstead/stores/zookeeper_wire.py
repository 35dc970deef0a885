"""Decides how one connection to a ZooKeeper is opened, limited and given up, and what its errors mean.

kazoo never repeats a request here: nothing is asked by its `retry`. What it was given while it had no connection it
would send later, so nothing is given to it before it is connected; what was given to it is of unknown outcome until
an answer says otherwise. Must not know records.
"""

from __future__ import annotations

import atexit
import logging
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from lockstead.stores.zookeeper_url import Where

T = TypeVar("T")

TOLD: Final = (kz.NoNodeError, kz.NodeExistsError, kz.BadVersionError, kz.NotEmptyError)
"""Errors that are answers: what was asked for was judged, and nothing was changed."""

DIAGNOSIS: Final = 0.2
"""Part of a request's limit that is kept for finding out why there is no connection, at most a second."""

SILENCE_MAX: Final = 1.0
"""Seconds without any answer to what was asked, after which a request that is out of time ends the connection. kazoo
would wait for most of a session; renewals have no time for that. The session goes on over the next connection."""

CLOSES_WITHIN: Final = 2.0
"""Seconds that closing waits for a server that does not answer."""

log = logging.getLogger("lockstead.zookeeper")


@dataclass(frozen=True, slots=True)
class Ask:
    """Requests that go out together, once the driver has seen that they go out at once, and whether any writes."""

    send: Callable[[Any], Sequence[Any]]
    writes: bool = False


Flow: TypeAlias = Generator[Ask, list[Any], T]
"""One command: yields what to send and is sent what came of each request: a value, or one of the errors TOLD."""


class _Discreet(logging.Filter):
    """Keeps out what kazoo logs of single requests: credentials stand in them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


log.addFilter(_Discreet())


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, kept in sight: a connection whose thread has ended will never come back."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def spawn(self, func: Callable[..., object], *args: object, **kwargs: object) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name="lockstead-zookeeper", daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        """Call at once what watches: it only rings bells, and another thread's turn would come before it."""
        callback.func(*callback.args)


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

    # --- the session ---------------------------------------------------------------------------------------------

    def ready(self, limit: float) -> Any:
        """Give a client that is connected, within `limit` seconds; otherwise StoreUnavailable or StoreRefused."""
        client, live = self._started()
        if live.is_set():
            return client
        ends_at = time.monotonic() + limit
        live.wait(max(0.0, limit - min(1.0, limit * DIAGNOSIS)))
        if live.is_set():
            return client
        raise self._silence(client, ends_at)

    def _started(self) -> tuple[Any, Any]:
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable(f"the store {self._where.url} is closed")
            if self._client is None:
                self._client = self._new()
                self._live = self._client.start_async()
            return self._client, self._live

    def _new(self) -> Any:
        if self._make is not None:
            return self._make()
        where = self._where
        has_user = bool(where.user or where.password)
        return KazooClient(
            hosts=",".join(where.hosts),
            timeout=where.session,
            handler=_Handler(),
            auth_data=[("digest", f"{where.user}:{where.password}")] if has_user else None,
            default_acl=CREATOR_ALL_ACL if has_user else OPEN_ACL_UNSAFE,
            # of the connection alone; a request is never asked again
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            command_retry={"max_tries": 1},
            logger=log,
            use_ssl=where.tls,
            ca=where.ca or None,
            certfile=where.cert or None,
            keyfile=where.key or None,
            check_hostname=where.tls,
        )

    def _silence(self, client: Any, ends_at: float) -> StoreError:
        """Say why there is no connection."""
        from lockstead.stores.zookeeper_probe import why_silent

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
                ask = flow.send(self._outcomes(client, self.send(client, ask, ends_at), ends_at, ask))
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
            sent = {number: self._sent(client, ask, ends_at) for number, ask in asking.items()}
            asking, waiting = {}, asking
            for number, ask in waiting.items():
                results = sent[number]
                try:
                    if isinstance(results, StoreError):
                        raise results
                    asking[number] = flows[number].send(self._outcomes(client, results, ends_at, ask))
                except StopIteration as stop:
                    done[number] = stop.value
                except StoreError as error:
                    done[number] = error
        return done

    def _sent(self, client: Any, ask: Ask, ends_at: float) -> Sequence[Any] | StoreError:
        try:
            return self.send(client, ask, ends_at)
        except StoreError as error:
            return error

    def send(self, client: Any, ask: Ask, ends_at: float) -> Sequence[Any]:
        """Send what goes out at once; StoreUnavailable for what would not, or not in time.

        The requests of the same flow before it changed nothing, or only the nodes above the records.
        """
        if time.monotonic() > ends_at:
            raise StoreUnavailable("ZooKeeper: the time for the request was over before it was sent")
        if not client.connected or client.client_state != KeeperState.CONNECTED:
            raise StoreUnavailable("ZooKeeper: the connection was lost before the request was sent")
        return ask.send(client)

    def _outcomes(self, client: Any, results: Sequence[Any], ends_at: float, ask: Ask) -> list[Any]:
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
        return answers

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
        """Give a new wire for a forked child. The inherited one is kept, so that nothing of it is closed."""
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


def _ended(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 - nobody is left who could do anything about it
        log.info("the session did not end in good order: %s", error)


def outcomes(results: Sequence[Any], ends_at: float, *, writes: bool) -> list[Any]:
    """Wait for what comes of requests that were sent; raises StoreError for the first that has no clear answer."""
    return [outcome(result, ends_at, writes=writes) for result in results]


def outcome(result: Any, ends_at: float, *, writes: bool) -> Any:
    """Wait for what comes of one request: its value, or an error that is an answer."""
    try:
        return result.get(timeout=max(0.0, ends_at - time.monotonic()))
    except TOLD as error:
        return error
    except KazooTimeoutError as error:
        raise doubt("no answer came within the limit", writes=writes) from error
    except Exception as error:
        raise failure(error, writes=writes) from error


def make(path: str) -> Flow[None]:
    """Make a node that records or queues stand under, and those above it that are missing.

    From below: who may write below a path may well have no right to write above it.
    """
    made = (yield Ask(lambda client: (client.create_async(path, b""),), writes=True))[0]
    parent = path.rpartition("/")[0]
    if isinstance(made, kz.NoNodeError) and parent:
        yield from make(parent)
        yield from make(path)


def refused_at(results: Sequence[Any]) -> tuple[int, Exception] | None:
    """Give which operation of a multi was refused, and how; None if all were carried out. Raises StoreError."""
    for index, result in enumerate(results):
        if isinstance(result, kz.RolledBackError):
            continue
        if isinstance(result, TOLD):
            return index, result
        if isinstance(result, Exception):
            raise failure(result, writes=True) from result
    return None


def doubt(what: str, *, writes: bool) -> StoreError:
    """Give the error of a request without an answer: only what writes may have changed something."""
    return OutcomeUnknown(f"ZooKeeper: {what}") if writes else StoreUnavailable(f"ZooKeeper: {what}")


def failure(error: Exception, *, writes: bool) -> StoreError:
    """Translate an error of kazoo."""
    if isinstance(error, kz.NoAuthError):
        return StoreRefused(
            "ZooKeeper allows no access: the ACL of the nodes names another user, or the password is wrong; give "
            "user:password@ in the URL, or ZOOKEEPER_USER and ZOOKEEPER_PASSWORD"
        )
    if isinstance(error, kz.AuthFailedError):
        return StoreRefused("ZooKeeper does not accept the user or the password")
    if isinstance(error, kz.InvalidACLError):
        return StoreRefused("ZooKeeper knows no user for the ACL of new nodes: is digest authentication switched off?")
    if isinstance(error, kz.UnimplementedError):
        return StoreRefused("this ZooKeeper cannot write several nodes in one step: version 3.4 or later is needed")
    if isinstance(error, kz.NotReadOnlyCallError):
        return StoreUnavailable("this ZooKeeper server is read-only, because it sees no majority of its ensemble")
    if isinstance(error, kz.ConnectionLoss | kz.ConnectionClosedError | kz.ConnectionDropped):
        return doubt("the connection was lost before the answer", writes=writes)
    if isinstance(error, kz.SessionExpiredError):
        return doubt("the session expired before the answer", writes=writes)
    return doubt(f"{type(error).__name__}: {error}", writes=writes)
