"""Where other locks on Redis hang on their own success: the request was applied, and its answer got lost (H3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstead
from tests.servers.proxy import Fault, Proxy
from tests.servers.redis import RedisServer, is_write

TTL = 60
PATIENCE = 1.5


def is_grant(sent: bytes) -> bool:
    return any(word in sent for word in (b"$3\r\nSET\r\n", b"\r\nEVALSHA\r\n"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def way(server: RedisServer) -> Iterator[Proxy]:
    way = Proxy([server.port])
    yield way
    way.close()


def by_redis_py(client: Any, key: str) -> bool:
    return bool(client.lock(key, timeout=TTL).acquire(blocking_timeout=PATIENCE))


def by_python_redis_lock(client: Any, key: str) -> bool:
    redis_lock = pytest.importorskip("redis_lock")
    return bool(redis_lock.Lock(client, key, expire=TTL).acquire(timeout=PATIENCE))


def by_sherlock(client: Any, key: str) -> bool:
    sherlock = pytest.importorskip("sherlock")
    lock = sherlock.RedisLock(key, client=client, expire=TTL, timeout=PATIENCE, retry_interval=0.05)
    try:
        return bool(lock.acquire())
    except sherlock.LockTimeoutException:
        return False


@pytest.mark.parametrize("peer", [by_redis_py, by_python_redis_lock, by_sherlock])
def test_h03_a_peer_whose_answer_got_lost_waits_for_itself(way: Proxy, server: RedisServer, peer: Any) -> None:
    import redis

    # as its users have it: the library sends again what was not answered
    with redis.Redis(port=way.ports[0]) as client:
        assert peer(client, "first") is True  # the server knows the scripts from here on
        armed = way.arm(Fault.CUT_AFTER, is_grant)
        assert peer(client, "apt") is False
    assert armed.hits == 1
    with server.client() as direct:
        (key,) = direct.keys("*apt*")
        assert direct.pttl(key) > (TTL - 30) * 1000  # nobody has it, and nobody gets it until this is over


def test_h03_h05_we_find_our_own_grant_and_have_it(way: Proxy) -> None:
    with lockstead.connect(f"redis://127.0.0.1:{way.ports[0]}") as client:
        client.lock("first", ttl=TTL).acquire().release()
        granting = way.arm(Fault.CUT_AFTER, is_write)
        lease = client.lock("apt", ttl=TTL).acquire(timeout=30)
        assert granting.hits == 1
        assert lease.is_held
        giving_back = way.arm(Fault.CUT_AFTER, is_write)
        assert lease.release()
        assert giving_back.hits == 1
        client.lock("apt", ttl=TTL).acquire(timeout=0).release()
