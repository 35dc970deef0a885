"""Many watches on few connections: nothing is missed, and a broken watch is reported, whatever a server answers."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator

import pytest

from lockstead.stores.etcd import watches as etcd_watches
from lockstead.stores.etcd.members import Members
from lockstead.stores.etcd.url import target_of
from lockstead.stores.etcd.watches import LINE_BYTES_MAX, STREAMS_MAX, Watch, Watches
from tests.servers.etcd import EtcdPlace, ask
from tests.servers.proxy import Proxy
from tests.stores.etcd.test_queue import until

LIMIT = 20.0


def put(etcd: EtcdPlace, key: str) -> int:
    """Write a key; give the store's revision."""
    answer = ask(etcd.server.port, "kv/put", {"key": b64encode(key.encode()).decode(), "value": ""})
    return int(answer["header"]["revision"])


def revision(etcd: EtcdPlace) -> int:
    return int(ask(etcd.server.port, "kv/range", {"key": "YQ=="})["header"]["revision"])


def run(port: int, body: Callable[[Watches], Awaitable[None]]) -> None:
    """Run something with watches at a port."""

    async def ran() -> None:
        watches = Watches(Members(target_of(f"etcd://127.0.0.1:{port}/x"), None, "etcd:"))
        async with asyncio.timeout(8 * LIMIT):
            await body(watches)

    asyncio.run(ran())


async def noticed(watch: Watch, waker: asyncio.Event) -> None:
    while not (watch.has_changed or watch.is_broken):
        await waker.wait()
        waker.clear()


def test_a_watch_from_a_compacted_revision_says_that_it_is_broken(etcd: EtcdPlace, space: str) -> None:
    first = put(etcd, f"{space}/a")
    put(etcd, f"{space}/a")
    ask(etcd.server.port, "kv/compaction", {"revision": str(put(etcd, f"{space}/a")), "physical": True})

    async def body(watches: Watches) -> None:
        waker, other_waker = asyncio.Event(), asyncio.Event()
        watch = watches.add((f"{space}/a", None), first, waker)
        other = watches.add((f"{space}/b", None), revision(etcd) + 1, other_waker)
        await noticed(watch, waker)
        assert watch.is_broken
        await asyncio.to_thread(put, etcd, f"{space}/b")
        await noticed(other, other_waker)
        assert other.has_changed, "it ended with another one on the same stream"
        assert not other.is_broken

    run(etcd.server.port, body)


def test_what_changed_between_the_look_and_the_watch_is_not_missed(etcd: EtcdPlace, space: str) -> None:
    looked_at = put(etcd, f"{space}/a")
    last = put(etcd, f"{space}/a")

    async def body(watches: Watches) -> None:
        for _ in range(20):  # with the beginning of the watch, or after it
            waker = asyncio.Event()
            watch = watches.add((f"{space}/a", None), looked_at + 1, waker)
            await noticed(watch, waker)
            assert (watch.is_broken, watch.state, watch.revision) == (False, str(last), last + 1)
            watches.remove(watch)

    run(etcd.server.port, body)


def test_many_watches_share_few_connections_and_miss_nothing(
    etcd: EtcdPlace, space: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watches, "GATHERS", 0.0)
    monkeypatch.setattr(etcd_watches, "BEGINS_WITHIN", 3 * LIMIT)
    monkeypatch.setattr(etcd_watches, "YOUNG", 0.05)  # so that old streams stay, until there are too many
    count = 4 * STREAMS_MAX

    async def body(watches: Watches) -> None:
        waker, begun, most = asyncio.Event(), list[Watch](), 0
        for number in range(count):
            begun.append(watches.add((f"{space}/{number}", None), revision(etcd) + 1, waker))
            # one that was begun lately, perhaps while its stream is taken over
            await asyncio.to_thread(put, etcd, f"{space}/{number // 2}")
            most = max(most, proxy.open_connections)
        for number in range(count):
            await asyncio.to_thread(put, etcd, f"{space}/{number}")
        while not all(watch.has_changed for watch in begun):
            await waker.wait()
            waker.clear()
        assert not any(watch.is_broken for watch in begun)
        assert 1 < most <= STREAMS_MAX + 2
        for watch in begun:
            watches.remove(watch)
        await asyncio.to_thread(until, lambda: not proxy.open_connections, "a connection stays")

    run(proxy.ports[0], body)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


ANSWERS = {
    "nothing": [b""],
    "no HTTP": [b"\x15\x03\x01\x00\x02\x02\x46"],
    "refused": [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"],
    "ended": [HEAD + b"0\r\n\r\n"],
    "an error": [HEAD + chunk(b'{"error":{"message":"no"}}\n')],
    "no object": [HEAD + chunk(b"[]\n")],
    "no JSON": [HEAD + chunk(b"{\n")],
    "deep": [HEAD + chunk(b"[" * 60000 + b"\n")],
    "a watch too many": [HEAD + chunk(b'{"result":{"created":true,"header":{"revision":"1"}}}\n' * 2)],
    "an event without a key": [
        HEAD
        + chunk(b'{"result":{"created":true,"header":{"revision":"1"}}}\n')
        + chunk(b'{"result":{"events":[{"type":"PUT"}],"header":{"revision":"2"}}}\n')
    ],
    "a line without an end": itertools.repeat(chunk(b"x" * 65536)),
    "a head without an end": itertools.repeat(b"x" * 65536),
    "silence": None,
}


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield door


@pytest.mark.parametrize("what", ANSWERS)
def test_h24_an_invalid_watch_reply_ends_the_watch_soon(
    what: str, door: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watches, "BEGINS_WITHIN", 0.5 if what == "silence" else LIMIT)
    sent = 0

    def serve() -> None:
        nonlocal sent
        connection, _ = door.accept()
        with connection:
            connection.recv(65536)
            answer = ANSWERS[what]
            if answer is None:
                connection.recv(1)
                return
            if what == "a line without an end":
                connection.sendall(HEAD)
            try:
                for piece in answer:
                    connection.sendall(piece)
                    sent += len(piece)
            except OSError:
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    async def body(watches: Watches) -> None:
        waker = asyncio.Event()
        watch = watches.add(("a", None), 1, waker)
        await noticed(watch, waker)
        assert watch.is_broken

    run(door.getsockname()[1], body)
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert sent < LINE_BYTES_MAX + (8 << 20), "more than the system's buffers was read"
