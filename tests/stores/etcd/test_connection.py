"""How answers come in over sockets of our own: as h11 reads them, whatever their shape; none is asked twice."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from lockstead.stores.bounds import BoundedSocket, Bounds
from lockstead.stores.etcd import connection as etcd_connection
from lockstead.stores.etcd.connection import Connection, Sockets, Unanswered, Unsent
from lockstead.stores.etcd.encoding import Request
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


@contextmanager
def scripted(*answers: bytes | None, piece: int = 65536) -> Iterator[tuple[Scripted, Sockets]]:
    server, sockets = Scripted(answers, piece), Sockets(None)
    try:
        yield server, sockets
    finally:
        sockets.close()
        server.close()


def exchange(server: Scripted, sockets: Sockets, limit: float = LIMIT) -> tuple[int, bytes]:
    return sockets.exchange(server.address, ASKED, None, Bounds(limit))


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


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("shape", GOOD)
def test_an_answer_is_read_whatever_its_shape_and_the_connection_is_used_again(shape: str, piece: int) -> None:
    answer, status = GOOD[shape]
    with scripted(answer, answer, piece=piece) as (server, sockets):
        assert [exchange(server, sockets) for _ in range(2)] == [(status, b"hello")] * 2
        assert server.connections == 1


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("shape", ENDING)
def test_after_an_answer_that_ends_the_connection_the_next_request_takes_another(shape: str, piece: int) -> None:
    # where the answer says so, it is not for the server to close first
    closes = [None] if shape == "until the end" else []
    with scripted(ENDING[shape], *closes, USUAL, piece=piece) as (server, sockets):
        assert [exchange(server, sockets) for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == 2


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("shape", BAD)
def test_an_answer_that_is_none_is_no_answer_and_nothing_follows_it_on_that_connection(shape: str, piece: int) -> None:
    with scripted(BAD[shape], None, USUAL, piece=piece) as (server, sockets):
        with pytest.raises(Unanswered):
            exchange(server, sockets)
        assert exchange(server, sockets) == (200, b"hello")
        assert server.connections == 2


@pytest.mark.parametrize("shape", [*GOOD, *ENDING])
def test_what_is_cut_out_is_what_h11_reads(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = GOOD[shape][0] if shape in GOOD else ENDING[shape]
    framed = etcd_connection.length_of(answer)
    if framed is not None:
        assert answer[slice(*framed)] == b"hello"
        assert framed[1] == len(answer)
    monkeypatch.setattr(etcd_connection, "length_of", lambda _received: None)
    with scripted(answer, None) as (server, sockets):
        assert exchange(server, sockets) == (GOOD[shape][1] if shape in GOOD else 200, b"hello")


def test_the_usual_answer_does_not_need_h11() -> None:
    assert etcd_connection.length_of(USUAL) == (len(USUAL) - 5, len(USUAL))


@pytest.mark.parametrize("shape", ["usual", "chunked"])
def test_what_follows_an_answer_unasked_is_not_taken_for_the_next_one(shape: str) -> None:
    with scripted(GOOD[shape][0] + USUAL.replace(b"hello", b"wrong"), USUAL) as (server, sockets):
        assert [exchange(server, sockets) for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == 2


# --- sending ----------------------------------------------------------------------------------------------------------


def test_head_and_body_leave_in_one_write() -> None:
    # what is written at once is received at once
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(USUAL)
        head = etcd_connection.head_of("host:2379", ASKED.path, "token", len(ASKED.content))
        assert Connection(BoundedSocket(ours)).exchanged(head, ASKED.content, Bounds(LIMIT)) == (200, b"hello")
        sent = theirs.recv(65536)
    assert sent.startswith(b"POST /v3/kv/txn HTTP/1.1\r\nHost: host:2379\r\n")
    assert b"\r\nAuthorization: token\r\n" in sent
    assert sent.endswith(b"\r\nContent-Length: 14\r\n\r\n" + ASKED.content)


def test_h25_a_request_whose_connection_ends_is_not_sent_again() -> None:
    with scripted(USUAL, None, USUAL) as (server, sockets):
        exchange(server, sockets)
        (idle,) = sockets._idle[server.address]
        while not idle.is_stale():
            time.sleep(0.01)
        # that it has ended is seen before anything is sent
        assert exchange(server, sockets) == (200, b"hello")
        assert len(server.asked) == 2
    with scripted(None, USUAL) as (server, sockets):
        with pytest.raises(Unanswered, match="closed without an answer"):
            exchange(server, sockets)
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
        head = etcd_connection.head_of("host:2379", ASKED.path, None, len(ASKED.content))
        connection = Connection(BoundedSocket(ours))
        with pytest.raises(TimeoutError):
            connection.exchanged(head, ASKED.content, Bounds(0.3))
        has_ended.set()
        thread.join()
    assert connection.is_over


def test_where_nobody_listens_nothing_was_sent() -> None:
    with pytest.raises(Unsent, match="ConnectionRefused"):
        Sockets(None).exchange(f"127.0.0.1:{free_port()}", ASKED, None, Bounds(LIMIT))


def test_what_is_closed_keeps_no_connection() -> None:
    with scripted(USUAL, USUAL) as (server, sockets):
        exchange(server, sockets)
        sockets.close()
        exchange(server, sockets)  # somebody who was about to ask
        assert server.connections == 2
        assert not any(sockets._idle.values())
