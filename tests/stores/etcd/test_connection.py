"""How replies are read, blocking and awaiting: as h11 reads them, whatever their shape; no request is sent twice."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.etcd import aio_connection, connection
from lockstead.stores.etcd.aio_client import AsyncClient
from lockstead.stores.etcd.client import Client
from lockstead.stores.etcd.connection import Connection
from lockstead.stores.etcd.encoding import Request, Response
from lockstead.stores.etcd.http1 import body_span, head_of
from lockstead.stores.etcd.members import Members
from lockstead.stores.etcd.url import target_of
from tests.servers.base import free_port

LIMIT = 20.0
ASKED = Request("Txn", "/v3/kv/txn", b'{"compare":[]}')
STOP = b"stop"
USUAL = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"


class Scripted:
    """A server that does, step by step, what is written down: bytes answer a request, None closes the connection."""

    def __init__(self, steps: Sequence[bytes | None], piece: int) -> None:
        self._steps = list(steps)
        self._piece = piece
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[bytes] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            client, _ = self._listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                is_over = self._serve_one(client)

    def _serve_one(self, client: socket.socket) -> bool:
        """Serve one connection; True when all is over."""
        while request := _request(client):
            if request == STOP:
                return True
            self.asked.append(request)
            step = self._steps.pop(0)
            with suppress(OSError):  # who has read enough may be gone
                for begin in range(0, len(step or b""), self._piece):
                    client.sendall((step or b"")[begin : begin + self._piece])
            if step is None or (self._steps and self._steps[0] is None and self._steps.pop(0) is None):
                return False
        return False

    def close(self) -> None:
        host, _, port = self.address.partition(":")
        with socket.create_connection((host, int(port))) as last:
            last.sendall(STOP)
            self._thread.join()
        self._listener.close()


def _request(client: socket.socket) -> bytes:
    received = b""
    while not received.endswith((b"\r\n\r\n" + ASKED.content, STOP)):
        try:
            more = client.recv(65536)
        except ConnectionError:
            more = b""
        if not more:
            return b""
        received += more
    return received


class Caller:
    """A client of one server, blocking or awaiting."""

    def __init__(self, address: str, way: str) -> None:
        self.members = Members(target_of(f"etcd://{address}"), None, "etcd:")
        self.members.has_served = True  # no look whether the server speaks TLS
        self._runner = asyncio.Runner() if way == "awaiting" else None
        self._client = Client(self.members) if self._runner is None else AsyncClient(self.members)

    def ask(self, limit: float = LIMIT) -> tuple[int, bytes]:
        answer = self._client.exchange(Bounds(limit), ASKED)
        if not isinstance(answer, Response):
            assert self._runner is not None
            answer = self._runner.run(answer)
        return answer.status, answer.body

    def is_idle_usable(self) -> bool:
        """Return whether the one idle connection is open still."""
        ((idle, _since),) = self._client.pool._idle[self.members.in_turn()[0]]
        usable = idle.is_usable()
        if isinstance(usable, bool):
            return usable
        assert self._runner is not None
        return self._runner.run(usable)

    def close(self) -> None:
        closing = self._client.close() if isinstance(self._client, Client) else self._client.aclose()
        if self._runner is not None:
            assert closing is not None
            self._runner.run(closing)
            self._runner.close()


@contextmanager
def scripted(way: str, *answers: bytes | None, piece: int = 65536) -> Iterator[tuple[Scripted, Caller]]:
    server = Scripted(answers, piece)
    caller = Caller(server.address, way)
    try:
        yield server, caller
    finally:
        caller.close()
        server.close()


# --- the shapes of answers --------------------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"
GOOD = {
    "usual": (USUAL, 200),
    "lower case": (OK + b"content-length: 5\r\n\r\nhello", 200),
    "chunked": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200),
    "chunked, with a length": (
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        200,
    ),
    "a length that says itself twice": (OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 200),
    "a length without its blank": (OK + b"Content-Length:5\r\n\r\nhello", 200),
    "a folded header": (OK + b"X: a\r\n Content-Length: 4\r\nContent-Length: 5\r\n\r\nhello", 200),
    "a length in a value": (OK + b"X: content-length: 4\r\nContent-Length: 5\r\n\r\nhello", 200),
    "bare line ends": (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", 200),
    "something said before": (b"HTTP/1.1 100 Continue\r\n\r\n" + USUAL, 200),
    "an error": (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nhello", 503),
}
ENDING = {
    "close": OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
    "until the end": OK + b"Content-Type: text/plain\r\n\r\nhello",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
}
BAD = {
    "two lengths": OK + b"Content-Length: 5\r\nContent-Length: 4\r\n\r\nhello",
    "a signed length": OK + b"Content-Length: +5\r\n\r\nhello",
    "less than its length": OK + b"Content-Length: 6\r\n\r\nhello",
    "less than its chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello",
    "half a head": OK + b"Content-Length: 5",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
}
PIECES = [pytest.param(65536, id="whole"), pytest.param(1, id="byte by byte")]
both_ways = pytest.mark.parametrize("way", ["blocking", "awaiting"])


@both_ways
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("shape", GOOD)
def test_a_reply_of_any_shape_is_read_and_its_connection_is_reused(shape: str, piece: int, way: str) -> None:
    answer, status = GOOD[shape]
    with scripted(way, answer, answer, piece=piece) as (server, caller):
        assert [caller.ask() for _ in range(2)] == [(status, b"hello")] * 2
        assert server.connections == 1


@both_ways
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("shape", ENDING)
def test_after_a_reply_that_ends_its_connection_another_one_is_opened(shape: str, piece: int, way: str) -> None:
    # where the answer says so, it is not for the server to close first
    closes = [None] if shape == "until the end" else []
    with scripted(way, ENDING[shape], *closes, USUAL, piece=piece) as (server, caller):
        assert [caller.ask() for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == 2


@both_ways
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("shape", BAD)
def test_an_invalid_reply_is_unknown_and_closes_its_connection(shape: str, piece: int, way: str) -> None:
    with scripted(way, BAD[shape], None, USUAL, piece=piece) as (server, caller):
        with pytest.raises(OutcomeUnknown):
            caller.ask()
        assert caller.ask() == (200, b"hello")
        assert server.connections == 2


@both_ways
@pytest.mark.parametrize("shape", [*GOOD, *ENDING])
def test_what_is_cut_out_is_what_h11_reads(shape: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = GOOD[shape][0] if shape in GOOD else ENDING[shape]
    framed = body_span(answer)
    if framed is not None:
        assert answer[slice(*framed)] == b"hello"
        assert framed[1] == len(answer)
    for module in (connection, aio_connection):
        monkeypatch.setattr(module, "body_span", lambda _received: None)
    with scripted(way, answer, None) as (_server, caller):
        assert caller.ask() == (GOOD[shape][1] if shape in GOOD else 200, b"hello")


def test_the_usual_answer_does_not_need_h11() -> None:
    assert body_span(USUAL) == (len(USUAL) - 5, len(USUAL))


@both_ways
@pytest.mark.parametrize("shape", ["usual", "chunked"])
def test_what_follows_an_answer_unasked_is_not_taken_for_the_next_one(shape: str, way: str) -> None:
    with scripted(way, GOOD[shape][0] + USUAL.replace(b"hello", b"wrong"), USUAL) as (server, caller):
        assert [caller.ask() for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == 2


# --- sending ----------------------------------------------------------------------------------------------------------


def test_head_and_body_leave_in_one_write() -> None:
    # what is written at once is received at once
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(USUAL)
        head = head_of("host:2379", ASKED.path, "token", len(ASKED.content))
        assert Connection(ours).exchange(head, ASKED.content, Bounds(LIMIT)) == (200, b"hello")
        sent = theirs.recv(65536)
    assert sent.startswith(b"POST /v3/kv/txn HTTP/1.1\r\nHost: host:2379\r\n")
    assert b"\r\nAuthorization: token\r\n" in sent
    assert sent.endswith(b"\r\nContent-Length: 14\r\n\r\n" + ASKED.content)


@both_ways
def test_h25_a_request_whose_connection_ends_is_not_sent_again(way: str) -> None:
    with scripted(way, USUAL, None, USUAL) as (server, caller):
        caller.ask()
        while caller.is_idle_usable():
            time.sleep(0.01)
        # that it has ended is seen before anything is sent
        assert caller.ask() == (200, b"hello")
        assert len(server.asked) == 2
    with scripted(way, None, USUAL) as (server, caller):
        with pytest.raises(OutcomeUnknown, match="closed without a reply"):
            caller.ask()
        assert len(server.asked) == 1


def test_an_answer_that_trickles_in_takes_no_longer_than_the_limit() -> None:
    ours, theirs = socket.socketpair()
    has_ended = threading.Event()

    def trickle() -> None:
        for byte in USUAL[:-1] * 1000:
            if has_ended.wait(0.02):
                return
            theirs.send(bytes([byte]))

    thread = threading.Thread(target=trickle)
    with ours, theirs:
        thread.start()
        head = head_of("host:2379", ASKED.path, None, len(ASKED.content))
        connection = Connection(ours)
        with pytest.raises(TimeoutError):
            connection.exchange(head, ASKED.content, Bounds(0.3))
        has_ended.set()
        thread.join()
    assert not connection.is_good


@both_ways
def test_where_nobody_listens_nothing_was_sent(way: str) -> None:
    caller = Caller(f"127.0.0.1:{free_port()}", way)
    with pytest.raises(StoreUnavailable, match="ConnectionRefused"):
        caller.ask()
    caller.close()
