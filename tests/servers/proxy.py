"""A TCP proxy between client and server that injects faults: it delays or drops data, and cuts connections.

Transparent until a fault is armed. A fault applies to a request that a predicate on its bytes recognises, a given
number of times on each port; from then on the connection has the fault, so that it does not matter how the rest of the
request is split, or what else is in flight on the same connection. Must not know any protocol.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

Sent = Callable[[bytes], bool]
"""Recognises a request by the bytes of one `recv`."""

CHUNK: Final = 1 << 16
PATIENCE: Final = 10.0
"""Maximum seconds to wait for the answer to a request whose client has gone, before its connection is closed."""


class Fault(Enum):
    """A fault of a recognised request, and of its connection from then on."""

    ANSWER_LOST = "the server does it; its answer is swallowed, and the connection stays open in silence"
    CUT_AFTER = "the server does it; its answer is swallowed, and the connection is cut in that moment"
    CUT_BEFORE = "the request never reaches the server; the connection ends in good order"
    RESET = "the request never reaches the server; the connection is reset"
    HALF_OPEN = "the request never reaches the server, and nobody says so: the connection stays open in silence"
    ANSWER_LATE = "the server does it; its answer is held back for a while"
    REQUEST_LATE = "the request reaches the server after a while, though its client may have gone"


def any_request(_sent: bytes) -> bool:
    """Recognise all data from a client."""
    return True


@dataclass(eq=False)
class Armed:
    """One armed fault. left: how many more requests on each port it applies to. hits: how many it was applied to.

    arrived: how many delayed requests were delivered. seconds: the delay.
    """

    fault: Fault
    sent: Sent
    left: dict[int, int]
    seconds: float
    hits: int = 0
    arrived: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def struck(self, port: int, sent: bytes) -> bool:
        """Return whether the fault applies to this request of a port, and count it."""
        with self.changed:
            if self.left[port] <= 0 or not self.sent(sent):
                return False
            self.left[port] -= 1
            self.hits += 1
            self.changed.notify_all()
            return True

    def delivered(self) -> None:
        """Note that a delayed request was sent to the server."""
        with self.changed:
            self.arrived += 1
            self.changed.notify_all()

    def wait(self, hits: int = 1, seconds: float = 60.0) -> None:
        """Wait until the fault was applied to that many requests."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.hits >= hits, seconds), f"no request met {self.fault.name}"

    def wait_arrived(self, arrived: int = 1, seconds: float = 60.0) -> None:
        """Wait until that many delayed requests were sent to the server."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.arrived >= arrived, seconds), "what was held back never arrived"

    def disarm(self) -> None:
        """Do not apply the fault to more requests; connections that have it keep it."""
        with self.changed:
            self.left = dict.fromkeys(self.left, 0)


@dataclass(eq=False)
class Count:
    """A count of recognised requests, with or without faults."""

    sent: Sent
    total: int = 0


class Proxy:
    """A proxy for one or several loopback ports; `ports` are its own, in the same order. `close` ends everything."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._lock = threading.Lock()
        self._armed: list[Armed] = []
        self._counts: list[Count] = []
        self._links: set[_Link] = set()
        self._is_silent = False
        self._is_closed = False
        self._doors = [_Door(self, port) for port in ports]

    @property
    def ports(self) -> list[int]:
        """Return the ports to which clients connect."""
        return [door.port for door in self._doors]

    @property
    def open_connections(self) -> int:
        """Return the number of open client connections."""
        with self._lock:
            return len(self._links)

    # --- faults --------------------------------------------------------------------------------------------------

    def arm(self, fault: Fault, sent: Sent = any_request, *, times: int = 1, seconds: float = 2.0) -> Armed:
        """Arm a fault for the next `times` requests on each port that `sent` recognises. seconds: the delay."""
        armed = Armed(fault, sent, {door.behind: times for door in self._doors}, seconds)
        with self._lock:
            self._armed.append(armed)
        return armed

    def count(self, sent: Sent = any_request) -> Count:
        """Count, from now on, the requests that `sent` recognises."""
        count = Count(sent)
        with self._lock:
            self._counts.append(count)
        return count

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Drop all data during the block, on new and existing connections, which stay open (half-open)."""
        self._is_silent = True
        try:
            yield
        finally:
            self._is_silent = False
            self.cut()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections during the block, after cutting the existing ones."""
        for door in self._doors:
            door.shut()
        self.cut()
        try:
            yield
        finally:
            for door in self._doors:
                door.open()

    def cut(self) -> None:
        """Cut all existing connections; new ones are accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def calm(self) -> None:
        """Disarm all faults; delayed data is still delivered when its time comes."""
        with self._lock:
            armed, self._armed, self._counts = self._armed, [], []
        for one in armed:
            one.disarm()

    def close(self) -> None:
        """Cut all connections, and accept no more. Idempotent."""
        self._is_closed = True
        for door in self._doors:
            door.shut()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- called by the connections -------------------------------------------------------------------------------

    def struck(self, port: int, sent: bytes) -> Armed | None:
        """Return the fault that applies to a request, or None."""
        with self._lock:
            for count in self._counts:
                count.total += count.sent(sent)
            armed = list(self._armed)
        return next((one for one in armed if one.struck(port, sent)), None)

    @property
    def swallows(self) -> bool:
        """Return whether all data is dropped at present."""
        return self._is_silent

    def begin(self, link: _Link) -> None:
        """Add an open connection."""
        with self._lock:
            self._links.add(link)

    def end(self, link: _Link) -> None:
        """Remove a closed connection."""
        with self._lock:
            self._links.discard(link)


class _Door:
    """One listening port and the port behind it."""

    def __init__(self, proxy: Proxy, behind: int) -> None:
        self.behind = behind
        self._proxy = proxy
        self.port = 0
        self.open()

    def open(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), name="proxy-door", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                _Link(self._proxy, self.behind, client).start()

    def shut(self) -> None:
        # a socket that is only closed continues to listen while a thread is in `accept`
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class _Link:
    """One client's connection and its connection to the server, with a thread for each direction."""

    def __init__(self, proxy: Proxy, port: int, client: socket.socket) -> None:
        self._proxy = proxy
        self._port = port
        self._client = client
        self._server: socket.socket | None = None
        self._befallen: Armed | None = None
        self._has_answered = threading.Event()

    def start(self) -> None:
        self._proxy.begin(self)
        threading.Thread(target=self._run, name="proxy-up", daemon=True).start()

    def _run(self) -> None:
        down: threading.Thread | None = None
        try:
            while self._proxy.swallows:
                if not self._client.recv(CHUNK):
                    return
            self._server = socket.create_connection(("127.0.0.1", self._port))
            for one in (self._client, self._server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            down = threading.Thread(target=self._down, args=(self._server,), name="proxy-down", daemon=True)
            down.start()
            self._up(self._server)
            down.join()
        except OSError:
            pass  # one side was cut, so the other is cut as well
        finally:
            self.cut()
            if down is not None:
                down.join()
            for one in (self._client, self._server):
                if one is not None:
                    one.close()
            self._proxy.end(self)

    # --- from the client to the server ---------------------------------------------------------------------------

    def _up(self, server: socket.socket) -> None:
        while sent := self._client.recv(CHUNK):
            if self._proxy.swallows:
                continue
            armed = None if self._befallen else self._proxy.struck(self._port, sent)
            if armed is None:
                server.sendall(sent)
                continue
            match armed.fault:
                case Fault.CUT_BEFORE:
                    return self.cut()
                case Fault.RESET:
                    # with a linger time of 0, close sends RST
                    self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self._client.close()
                    return self.cut()
                case Fault.HALF_OPEN:
                    while self._client.recv(CHUNK):
                        pass
                    return self.cut()
                case Fault.REQUEST_LATE:
                    self._deliver_late(server, sent, armed)
                case Fault.ANSWER_LOST | Fault.CUT_AFTER | Fault.ANSWER_LATE:
                    self._befallen = armed
                    server.sendall(sent)
        if self._befallen is not None:
            # a server may abort the request of a client that has disconnected
            self._has_answered.wait(PATIENCE)
        server.shutdown(socket.SHUT_WR)
        return None

    def _deliver_late(self, server: socket.socket, sent: bytes, armed: Armed) -> None:
        pieces, ends_at, has_gone = [sent], time.monotonic() + armed.seconds, False
        while (left := ends_at - time.monotonic()) > 0:
            if has_gone:
                time.sleep(left)
            elif select.select([self._client], [], [], left)[0]:
                piece = self._more()
                has_gone = not piece
                pieces.append(piece)
        self._has_answered.clear()
        server.sendall(b"".join(pieces))
        armed.delivered()
        if has_gone:
            self._has_answered.wait(PATIENCE)

    def _more(self) -> bytes:
        try:
            return self._client.recv(CHUNK)
        except OSError:
            return b""

    # --- from the server to the client ---------------------------------------------------------------------------

    def _down(self, server: socket.socket) -> None:
        try:
            while answer := server.recv(CHUNK):
                self._has_answered.set()
                if self._proxy.swallows:
                    continue
                befallen = self._befallen
                match befallen and befallen.fault:
                    case Fault.ANSWER_LOST:
                        continue
                    case Fault.CUT_AFTER:
                        self.cut()
                        return
                    case Fault.ANSWER_LATE if befallen is not None:
                        time.sleep(befallen.seconds)
                        self._befallen = None
                    case _:
                        pass
                with contextlib.suppress(OSError):
                    self._client.sendall(answer)
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_WR)
        except OSError:
            self.cut()

    def cut(self) -> None:
        """Cut both connections, and wake all threads that wait for an answer."""
        for one in (self._client, self._server):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._has_answered.set()
