"""Where other locks on Redis hang on their own success: the request was applied, and its answer got lost (H3)."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstead
from tests.servers.redis import RedisServer

TTL = 60
PATIENCE = 1.5


class LosesAnAnswer:
    """A way to the server that passes one request on, and cuts the connection before its answer comes through."""

    def __init__(self, port: int) -> None:
        self.is_armed = True
        way = self

        class Passing(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    while asked := self.request.recv(65536):
                        server.sendall(asked)
                        answer = server.recv(65536)
                        if way.is_armed and is_grant(asked) and not answer.startswith(b"-"):
                            way.is_armed = False
                            return
                        self.request.sendall(answer)

        class Threads(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self.listening = Threads(("127.0.0.1", 0), Passing)
        self.port: int = self.listening.server_address[1]
        self.serving = threading.Thread(target=self.listening.serve_forever, args=(0.01,), daemon=True)
        self.serving.start()

    def close(self) -> None:
        self.listening.shutdown()
        self.listening.server_close()
        self.serving.join()


def is_grant(asked: bytes) -> bool:
    return any(word in asked for word in (b"$3\r\nSET\r\n", b"\r\nEVAL\r\n", b"\r\nEVALSHA\r\n"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def way(server: RedisServer) -> Iterator[LosesAnAnswer]:
    way = LosesAnAnswer(server.port)
    yield way
    way.close()


def by_redis_py(client: Any) -> bool:
    return bool(client.lock("apt", timeout=TTL).acquire(blocking_timeout=PATIENCE))


def by_python_redis_lock(client: Any) -> bool:
    redis_lock = pytest.importorskip("redis_lock")
    return bool(redis_lock.Lock(client, "apt", expire=TTL).acquire(timeout=PATIENCE))


def by_sherlock(client: Any) -> bool:
    sherlock = pytest.importorskip("sherlock")
    lock = sherlock.RedisLock("apt", client=client, expire=TTL, timeout=PATIENCE, retry_interval=0.05)
    try:
        return bool(lock.acquire())
    except sherlock.LockTimeoutException:
        return False


@pytest.mark.parametrize("peer", [by_redis_py, by_python_redis_lock, by_sherlock])
def test_h03_a_peer_whose_answer_got_lost_waits_for_itself(way: LosesAnAnswer, server: RedisServer, peer: Any) -> None:
    import redis

    # as its users have it: the library sends again what was not answered
    with redis.Redis(port=way.port) as client:
        assert peer(client) is False
    assert not way.is_armed
    with server.client() as direct:
        (key,) = direct.keys("*apt*")
        assert direct.pttl(key) > (TTL - 30) * 1000  # nobody has it, and nobody gets it until this is over


def test_h03_we_find_our_own_grant_and_have_it(way: LosesAnAnswer, server: RedisServer) -> None:
    with lockstead.connect(f"redis://127.0.0.1:{way.port}") as client:
        lease = client.lock("apt", ttl=TTL).acquire(timeout=30)
        assert not way.is_armed
        assert lease.is_held
        way.is_armed = True
        assert lease.release()  # whose answer gets lost as well (H5)
        assert not way.is_armed
        with client.lock("apt", ttl=TTL).acquire(timeout=0):
            pass
