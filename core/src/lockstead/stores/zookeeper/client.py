"""Configuration of kazoo: it never repeats a request, delivers events at once, and waits cheaply.

Must not know requests.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from lockstead.stores.bounds import LISTING_MAX, AnswerTooLong, BoundedSocket, Bounds, in_tls
from lockstead.stores.zookeeper.acls import acl_of

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.url import Target

log = logging.getLogger("lockstead.zookeeper")

READ_AHEAD: Final = 4096
"""Bytes that are read at once, if they are there: more than an answer about one record has."""


class _InfoAndAbove(logging.Filter):
    """A log filter that drops kazoo's records of single requests, which may contain credentials."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


log.addFilter(_InfoAndAbove())


class _PacketSocket(BoundedSocket):
    """A connection from which kazoo reads the length of a packet, then the packet; both usually come together.

    So it reads ahead, which saves a read and two waits for each packet.
    """

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self._ahead = b""

    def pending(self) -> int:
        """Return the bytes that can be read at once. kazoo asks for it because of TLS, which reads ahead as well."""
        return len(self._ahead) or (self.raw.pending() if isinstance(self.raw, ssl.SSLSocket) else 0)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if size > LISTING_MAX:
            raise AnswerTooLong("the server announces a packet that is longer than any answer")
        came = self._ahead or super().recv(max(size, READ_AHEAD), flags)
        self._ahead = came[size:]
        return came[:size]


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's thread handler, with a list of its threads: if a connection's thread has ended, it will not reconnect."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. If one cannot be started, the others end: kazoo itself would leave them."""
        try:
            super().start()
        except BaseException:
            self._running = True  # or `stop` would do nothing
            self.stop()
            raise

    def spawn(self, func: Callable[..., object], *args: object, **kwargs: object) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name="lockstead-zookeeper", daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_tls: object) -> Any:
        """Connect. kazoo itself would leave the socket of a failed handshake open until it is garbage-collected."""
        bounds, tls = Bounds(timeout), self._target.tls_context() if self._target.tls else None
        plain = super().create_connection(address, timeout=timeout)
        return _PacketSocket(plain if tls is None else in_tls(plain, tls, hostname, bounds))

    def select(
        self, reads: Sequence[Any], writes: Sequence[Any], _errors: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait like `select.select`, for descriptors of any number, either to read or to write, as kazoo does.

        kazoo's own opens an epoll for each call.
        """
        poll, by_number = select.poll(), dict[int, Any]()
        for one in reads or writes:
            if reads and isinstance(one, _PacketSocket) and one.pending():
                return [one], [], []
            by_number[number := one.fileno()] = one
            poll.register(number, select.POLLIN if reads else select.POLLOUT)
        # rounded up: a wait of less than a millisecond would become 0
        found = poll.poll(None if timeout is None else math.ceil(max(0.0, timeout) * 1e3))
        ready = [by_number[number] for number, _ in found]
        return (ready, [], []) if reads else ([], ready, [])

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch callback directly: ours only put the event into a queue for another thread."""
        callback.func(*callback.args)


def new_client(target: Target) -> Any:
    """Return a client that is not started. It retries connecting, but no request."""
    has_user = bool(target.user or target.password)
    own = CREATOR_ALL_ACL if has_user else OPEN_ACL_UNSAFE
    return KazooClient(
        hosts=",".join(target.endpoints),
        timeout=target.session,
        handler=Handler(target),
        auth_data=[("digest", f"{target.user}:{target.password}")] if has_user else None,
        default_acl=acl_of(target.acl) if target.acl else own,
        # for connecting only: a request is never repeated
        connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
        command_retry={"max_tries": 1},
        logger=log,
    )
