"""Servers that never finish: one byte now and then, bytes without end, the announcement of a huge reply, or silence.

Whatever a server does, `acquire(timeout=t)` ends within t + 1 s with the store's one-line error, and reads a bounded
amount of memory. Each store meets such a server when it connects and when it waits for a reply.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

import pytest

import lockstead
from lockstead.errors import LocksteadError, StoreError

TIMEOUT: Final = 0.3
GRACE: Final = 1.0
"""Seconds that acquire may take beyond its time-out."""

TAKEN_MAX: Final = 64 << 20
"""Bytes that one connection takes of a flood at most: 32 MiB are read, and the system keeps some on either side."""

FOREVER: Final = 10.0
"""Seconds after which a stranger stops."""

Talk: TypeAlias = Callable[[socket.socket], None]


# --- what a good server does until it is asked something --------------------------------------------------------------


def unasked(connection: socket.socket) -> None:
    """Wait for a request."""
    connection.recv(65536)


def as_redis(connection: socket.socket) -> None:
    """Answer what the library and a store say in greeting, up to the first call of a script."""
    info = b"redis_version:7.0.0\r\nrun_id:%d\r\nuptime_in_seconds:9999" % connection.fileno()
    known = {b"ROLE": b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n", b"INFO": b"$%d\r\n%b\r\n" % (len(info), info)}
    with connection.makefile("rb") as said:
        while count := int(said.readline()[1:] or b"0"):
            words = [said.read(int(said.readline()[1:]) + 2)[:-2] for _ in range(count)]
            if words[0] == b"EVALSHA":
                return
            connection.sendall(known.get(words[0], b"+OK\r\n"))


def as_postgres(connection: socket.socket) -> None:
    """Let anybody in."""
    said = connection.recv(65536)
    while said[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):  # TLS and GSS are not spoken
        connection.sendall(b"N")
        said = connection.recv(65536)

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!i", len(body) + 4) + body

    told = {"server_version": "16.0", "server_encoding": "UTF8", "client_encoding": "UTF8"}
    statuses = b"".join(message(b"S", f"{name}\0{value}\0".encode()) for name, value in told.items())
    key = message(b"K", struct.pack("!ii", 7, 7))
    connection.sendall(message(b"R", struct.pack("!i", 0)) + statuses + key + message(b"Z", b"I"))
    connection.recv(65536)


def as_zookeeper(connection: socket.socket) -> None:
    """Open a session."""
    if connection.recv(65536).startswith(b"srvr"):
        return
    opened = struct.pack("!iiqi", 0, 10000, 1, 16) + b"p" * 16 + b"\0"
    connection.sendall(struct.pack("!i", len(opened)) + opened)
    connection.recv(65536)


def as_cassandra(connection: socket.socket) -> None:
    """Report what is supported, and be ready for statements."""
    for _ in range(2):
        said = connection.recv(65536)
        if said[4:5] == b"\x05":  # OPTIONS
            body = b"\0\2\0\x0bCQL_VERSION\0\1\0\x053.4.5\0\x0bCOMPRESSION\0\0"
            connection.sendall(b"\x84\0" + said[2:4] + b"\x06" + struct.pack("!i", len(body)) + body)
        else:
            connection.sendall(b"\x84\0" + said[2:4] + b"\x02\0\0\0\0")
    connection.recv(65536)


HTTP: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

STORES: Final = {
    "gs": "gs://bucket/locks",
    "redis": "redis://127.0.0.1:{port}/0",
    "redlock": "redlock://127.0.0.1:{port},localhost:{port},[::1]:{port}/0?restart_delay=0",
    "etcd": "etcd://127.0.0.1:{port}/locks",
    "postgresql": "postgresql://127.0.0.1:{port}/db",
    "zk": "zk://127.0.0.1:{port}/locks",
    "cassandra": "cassandra://127.0.0.1:{port}/locks",
}
GREETINGS: Final[dict[str, Talk]] = {
    "gs": unasked,
    "redis": as_redis,
    "redlock": as_redis,
    "etcd": unasked,
    "postgresql": as_postgres,
    "zk": as_zookeeper,
    "cassandra": as_cassandra,
}
GIANT: Final = {
    "gs": HTTP + b"Content-Length: 99999999999\r\n\r\n{",
    "redis": b"$99999999999\r\nx",
    "redlock": b"$99999999999\r\nx",
    "etcd": HTTP + b"Content-Length: 999999999\r\n\r\n{",
    "postgresql": b"D" + struct.pack("!i", 0x1FFFFFF0) + b"\0\1",
    "zk": struct.pack("!i", 0x7FFFFFF0) + b"x",
    "cassandra": b"\x84\0\0\0\x08" + struct.pack("!i", 0x0FFFFFF0) + b"x",
}
"""The beginning of an answer that is announced to be very long."""

SMALL: Final = {
    "gs": HTTP + b"Content-Length: 100000\r\n\r\n{",
    "redis": b"$100000\r\nx",
    "redlock": b"$100000\r\nx",
    "etcd": HTTP + b"Content-Length: 100000\r\n\r\n{",
    "postgresql": b"D" + struct.pack("!i", 100000) + b"\0\1",
    "zk": struct.pack("!i", 100000) + b"x",
    "cassandra": b"\x84\0\0\0\x08" + struct.pack("!i", 100000) + b"x",
}
"""The same of one that is credible."""

ENDLESS: Final = {
    "gs": HTTP + b"Transfer-Encoding: chunked\r\n\r\n",
    "etcd": HTTP + b"Transfer-Encoding: chunked\r\n\r\n",
}
"""Where an answer need not say how long it is."""

STREAM: Final = {"postgresql": b"H" + struct.pack("!ibh", 7, 0, 0)}
"""The beginning of a reply that libpq returns again each time the next one is requested."""

HEAD: Final = {"gs": b"X-A: b\r\n", "etcd": b"X-A: b\r\n"}
"""What a head may have any number of."""


NEST: Final = {"redis": b"*1\r\n", "redlock": b"*1\r\n"}
"""What an answer may hold another answer by."""


class Stalling:
    """A server that never finishes, in one of the ways of `WAYS`. taken: bytes, by connection."""

    def __init__(self, store: str, way: str, *, greets: bool) -> None:
        self._store, self._way, self._greets = store, way, greets
        self.taken: dict[socket.socket, int] = {}
        self._is_over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _address = self._listening.accept()
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(FOREVER)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            (GREETINGS[self._store] if self._greets else unasked)(connection)
            WAYS[self._way](self, connection)

    def send(self, connection: socket.socket, said: bytes) -> None:
        connection.sendall(said)
        self.taken[connection] = self.taken.get(connection, 0) + len(said)

    def _drips(self, connection: socket.socket, first: bytes, drop: bytes) -> None:
        self.send(connection, first)
        ends_at = time.monotonic() + FOREVER
        while not self._is_over.wait(0.05) and time.monotonic() < ends_at:
            self.send(connection, drop)

    def drips(self, connection: socket.socket) -> None:
        self._drips(connection, SMALL[self._store], b" ")

    def drips_a_head(self, connection: socket.socket) -> None:
        self._drips(connection, HTTP, HEAD[self._store])

    def floods(self, connection: socket.socket) -> None:
        self.send(connection, ENDLESS.get(self._store, GIANT[self._store]))
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n" if self._store in ENDLESS else b" " * 0x10000
        while not self._is_over.is_set():
            self.send(connection, chunk * 8)

    def floods_a_head(self, connection: socket.socket) -> None:
        self.send(connection, HTTP)
        while not self._is_over.is_set():
            self.send(connection, HEAD[self._store] * 8192)

    def nests(self, connection: socket.socket) -> None:
        while not self._is_over.is_set():
            self.send(connection, NEST[self._store] * 4096)

    def streams(self, connection: socket.socket) -> None:
        self.send(connection, STREAM[self._store])
        self._is_over.wait(FOREVER)

    def announces_a_giant(self, connection: socket.socket) -> None:
        self.send(connection, GIANT[self._store])
        self._is_over.wait(FOREVER)

    def says_nothing(self, _connection: socket.socket) -> None:
        self._is_over.wait(FOREVER)

    def closes(self, connection: socket.socket) -> None:
        self.send(connection, SMALL[self._store])

    def close(self) -> None:
        self._is_over.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(FOREVER)


WAYS: Final[dict[str, Callable[[Stalling, socket.socket], None]]] = {
    "sends a byte now and then": Stalling.drips,
    "sends its head line by line": Stalling.drips_a_head,
    "sends without end": Stalling.floods,
    "sends a head without end": Stalling.floods_a_head,
    "nests answers without end": Stalling.nests,
    "begins a stream": Stalling.streams,
    "announces a giant": Stalling.announces_a_giant,
    "says nothing": Stalling.says_nothing,
    "closes within its answer": Stalling.closes,
}
MEETINGS: Final = [
    pytest.param(store, way, greets, id=f"{store} {way}{', when asked' if greets else ''}")
    for store in STORES
    for way in WAYS
    for greets in (False, True)
    if (not greets or GREETINGS[store] is not unasked)
    and (store in HEAD or "head" not in way)
    and (store in NEST or "nests" not in way)
    and ((store in STREAM and greets) or "stream" not in way)
]


@pytest.fixture
def holding(store: str, way: str, greets: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalling]:
    server = Stalling(store, way, greets=greets)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.port}")
    yield server
    server.close()


def settings() -> dict[str, float]:
    return {"ttl": 60.0, "request_timeout": 0.2}


# kazoo leaves the socket of a handshake that failed to the collector of cycles
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("store", "way", "greets"), MEETINGS)
def test_h22_acquire_is_bounded_whatever_a_server_does(store: str, way: str, greets: bool, holding: Stalling) -> None:
    with lockstead.connect(STORES[store].format(port=holding.port)) as client:
        lock = client.lock("apt", **settings())  # type: ignore[arg-type]
        began_at = time.monotonic()
        with pytest.raises(LocksteadError) as raised:
            lock.acquire(timeout=TIMEOUT)
        took = time.monotonic() - began_at
    assert took < TIMEOUT + GRACE
    assert "\n" not in str(raised.value)
    assert not re.search("does not know|not as Redis does", str(raised.value))
    assert max(holding.taken.values(), default=0) < TAKEN_MAX


AWAITING: Final = [one for one in MEETINGS if one.values[0] in ("gs", "redis", "etcd", "postgresql")]


@pytest.mark.parametrize(("store", "way", "greets"), AWAITING)
def test_h22_an_awaiting_request_is_bounded_whatever_a_server_does(
    store: str, way: str, greets: bool, holding: Stalling
) -> None:
    for library in ("anyio", "httpcore", "redis.asyncio"):
        importlib.import_module(library)  # once for each process, and no time of a request

    async def asked() -> float:
        lock = lockstead.AsyncLock(f"{STORES[store].format(port=holding.port)}#apt", **settings())  # type: ignore[arg-type]
        began_at = time.monotonic()
        with pytest.raises(StoreError) as raised:
            await lock.try_acquire()
        assert "does not know" not in str(raised.value)
        return time.monotonic() - began_at

    assert asyncio.run(asked()) < settings()["request_timeout"] + GRACE
    assert max(holding.taken.values(), default=0) < TAKEN_MAX
