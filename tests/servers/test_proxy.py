"""Tests of the proxy, from both sides: it injects each fault, and does nothing unless a fault is armed."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.runtime.faulty import until
from tests.servers.proxy import Fault, Proxy

LONG = 20.0
"""Seconds until a wait fails: long enough for a slow machine."""


class Counting(socketserver.ThreadingTCPServer):
    """A server that answers each line `x` with `did x`, and records the lines."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.done: list[bytes] = []
        super().__init__(("127.0.0.1", 0), LocalQueue)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class LocalQueue(socketserver.StreamRequestHandler):
    server: Counting

    def handle(self) -> None:
        for line in self.rfile:
            self.server.done.append(line.strip())
            self.wfile.write(b"did " + line)


@pytest.fixture
def server() -> Iterator[Counting]:
    with Counting() as counting:
        yield counting
        counting.shutdown()


@pytest.fixture
def proxy(server: Counting) -> Iterator[Proxy]:
    with Proxy([server.server_address[1]]) as between:
        yield between


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def connected(seconds: float = LONG) -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", proxy.ports[0]), seconds))
        return opened[-1]

    yield connected
    for one in opened:
        one.close()


Connect = Callable[..., socket.socket]


def writes(sent: bytes) -> bool:
    return sent.startswith(b"write")


def ask(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line + b"\n")
    return client.recv(1000).strip()


def silent(client: socket.socket, seconds: float = 0.3) -> bool:
    client.settimeout(seconds)
    try:
        return client.recv(1000) == b"?"
    except TimeoutError:
        return True
    finally:
        client.settimeout(LONG)


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1000) == b""
    except ConnectionError:
        return True


def test_nothing_befalls_anybody_until_a_fault_is_armed(server: Counting, connect: Connect) -> None:
    clients = [connect() for _ in range(5)]
    for number in range(20):
        for client in clients:
            assert ask(client, b"write %d" % number) == b"did write %d" % number
    assert len(server.done) == 100


def test_what_is_large_comes_through_whole(server: Counting, connect: Connect) -> None:
    client, large = connect(), b"x" * 3_000_000
    sending = threading.Thread(target=client.sendall, args=(large + b"\n",))
    sending.start()
    got = b""
    while len(got) < len(large) + 5:
        got += client.recv(1 << 16)
    sending.join()
    assert got == b"did " + large + b"\n"


def test_a_lost_answer_was_applied_and_the_connection_is_silent(
    server: Counting, proxy: Proxy, connect: Connect
) -> None:
    armed = proxy.arm(Fault.ANSWER_LOST, writes)
    client = connect()
    assert ask(client, b"read") == b"did read"
    client.sendall(b"write 1\n")
    assert silent(client)
    assert server.done == [b"read", b"write 1"]
    assert armed.hits == 1
    assert ask(connect(), b"write 2") == b"did write 2"


def test_a_cut_after_lets_the_server_do_it(server: Counting, proxy: Proxy, connect: Connect) -> None:
    proxy.arm(Fault.CUT_AFTER, writes)
    client = connect()
    client.sendall(b"write 1\n")
    assert ended(client)
    assert server.done == [b"write 1"]


def test_a_request_cut_into_pieces_is_done_before_the_cut(server: Counting, proxy: Proxy, connect: Connect) -> None:
    proxy.arm(Fault.CUT_AFTER, writes)
    client = connect()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(b"write ")
    time.sleep(0.1)
    client.sendall(b"in pieces\n")
    assert ended(client)
    assert server.done == [b"write in pieces"]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.RESET])
def test_a_cut_before_lets_the_server_see_nothing(
    fault: Fault, server: Counting, proxy: Proxy, connect: Connect
) -> None:
    proxy.arm(fault, writes)
    client = connect()
    assert ask(client, b"read") == b"did read"
    client.sendall(b"write 1\n")
    if fault is Fault.RESET:
        with pytest.raises(ConnectionResetError):
            client.recv(1000)
    else:
        assert client.recv(1000) == b""
    assert ask(connect(), b"read") == b"did read"
    assert server.done == [b"read", b"read"]


def test_a_half_open_connection_takes_everything_and_says_nothing(
    server: Counting, proxy: Proxy, connect: Connect
) -> None:
    proxy.arm(Fault.HALF_OPEN, writes)
    client = connect()
    for line in (b"write 1\n", b"read\n", b"write 2\n"):
        client.sendall(line)
    assert silent(client)
    assert server.done == []


def test_a_late_answer_comes_and_the_next_ones_come_at_once(server: Counting, proxy: Proxy, connect: Connect) -> None:
    proxy.arm(Fault.ANSWER_LATE, writes, seconds=0.5)
    client, began = connect(), time.monotonic()
    assert ask(client, b"write 1") == b"did write 1"
    assert time.monotonic() - began >= 0.5
    began = time.monotonic()
    assert ask(client, b"write 2") == b"did write 2"
    assert time.monotonic() - began < LONG


@pytest.mark.parametrize("goes", [True, False], ids=["client gone", "client waits"])
def test_a_late_request_reaches_the_server_though_its_client_has_gone(
    goes: bool, server: Counting, proxy: Proxy, connect: Connect
) -> None:
    armed = proxy.arm(Fault.REQUEST_LATE, writes, seconds=0.5)
    client, began = connect(), time.monotonic()
    client.sendall(b"write late\n")
    armed.wait()
    if goes:
        client.close()
    assert ask(connect(), b"read") == b"did read"
    assert server.done == [b"read"]
    armed.wait_arrived()
    assert time.monotonic() - began >= 0.5
    until(lambda: server.done == [b"read", b"write late"])
    if not goes:
        assert client.recv(1000) == b"did write late\n"


def test_a_fault_befalls_so_many_requests_and_no_other(server: Counting, proxy: Proxy, connect: Connect) -> None:
    armed = proxy.arm(Fault.CUT_BEFORE, writes, times=2)
    counted = proxy.count(writes)
    for _ in range(2):
        client = connect()
        client.sendall(b"write\n")
        assert ended(client)
    armed.wait(2)
    assert ask(connect(), b"write") == b"did write"
    assert armed.hits == 2
    assert counted.total == 3


def test_what_is_disarmed_befalls_nobody(server: Counting, proxy: Proxy, connect: Connect) -> None:
    proxy.arm(Fault.CUT_BEFORE, writes, times=9)
    proxy.calm()
    assert ask(connect(), b"write") == b"did write"


def test_a_silent_network_drops_old_and_new_connections(server: Counting, proxy: Proxy, connect: Connect) -> None:
    old = connect()
    assert ask(old, b"read") == b"did read"
    with proxy.silent():
        new = connect()
        for client in (old, new):
            client.sendall(b"write\n")
            assert silent(client)
    assert ended(old)
    assert ended(new)
    assert server.done == [b"read"]
    assert ask(connect(), b"write") == b"did write"


def test_a_network_that_refuses_lets_nobody_in(server: Counting, proxy: Proxy, connect: Connect) -> None:
    old = connect()
    assert ask(old, b"read") == b"did read"
    with proxy.refusing():
        assert ended(old)
        with pytest.raises(ConnectionRefusedError):
            connect()
    assert ask(connect(), b"read") == b"did read"


def test_a_server_that_has_gone_is_a_connection_that_ends(proxy: Proxy, server: Counting, connect: Connect) -> None:
    server.shutdown()
    server.server_close()
    assert ended(connect())


def test_each_port_has_its_own_share_of_a_fault() -> None:
    with Counting() as one, Counting() as other, Proxy([one.server_address[1], other.server_address[1]]) as proxy:
        armed = proxy.arm(Fault.CUT_AFTER, writes)
        for port in proxy.ports:
            with socket.create_connection(("127.0.0.1", port), LONG) as client:
                client.sendall(b"write\n")
                assert ended(client)
        assert armed.hits == 2
        assert one.done == other.done == [b"write"]
        one.shutdown()
        other.shutdown()


def test_nothing_is_left_of_a_proxy_that_was_closed(server: Counting) -> None:
    before = threading.active_count()
    with Proxy([server.server_address[1]]) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.ports[0]), LONG)
        assert ask(client, b"read") == b"did read"
    assert ended(client)
    client.close()
    until(lambda: proxy.open_connections == 0)
    until(lambda: threading.active_count() <= before)
