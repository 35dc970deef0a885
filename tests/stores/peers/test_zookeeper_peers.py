"""How other locks on ZooKeeper behave when their session is gone, and what a lease does.

The peers are in the bench requirements; their failures are shown to prove that these scenarios are real.
"""

from __future__ import annotations

import threading

import pytest
from kazoo.client import KazooClient

import lockstead
from tests.servers.zookeeper import ZookeeperServer
from tests.stores.zookeeper.server import LIMIT, opened, server, space, until
from tests.stores.zookeeper.test_store import expire

__all__ = ["server", "space"]


def end_session(client: KazooClient, server: ZookeeperServer) -> None:
    """End a session as its expiry does, and wait until its client has another."""
    session = client.client_id
    thief = KazooClient(hosts=server.address, client_id=session)
    thief.start(timeout=LIMIT)
    thief.stop()
    thief.close()
    until(lambda: client.client_id is not None and client.client_id[0] not in {None, session[0]} and client.connected)


def test_a_kazoo_lock_reports_acquired_though_another_has_it(server: ZookeeperServer) -> None:
    one, other = KazooClient(hosts=server.address), KazooClient(hosts=server.address)
    for client in (one, other):
        client.start(timeout=LIMIT)
    try:
        mine, theirs = one.Lock("/kazoo/apt"), other.Lock("/kazoo/apt")
        assert mine.acquire()
        end_session(one, server)
        assert theirs.acquire(timeout=LIMIT)
        assert [mine.is_acquired, theirs.is_acquired] == [True, True], "two hold one lock, and neither is told"
    finally:
        for client in (one, other):
            client.stop()
            client.close()


def test_a_lock_of_tooz_says_acquired_although_another_process_has_it(server: ZookeeperServer) -> None:
    coordination = pytest.importorskip("tooz.coordination")
    members = [coordination.get_coordinator(f"zookeeper://{server.address}", name) for name in (b"one", b"other")]
    for member in members:
        member.start(start_heart=True)
    try:
        mine, theirs = (member.get_lock(b"apt") for member in members)
        assert mine.acquire(blocking=False)
        end_session(members[0]._coord, server)
        assert theirs.acquire(blocking=20)
        assert [mine.acquired, theirs.acquired] == [True, True], "two hold one lock, and neither is told"
    finally:
        for member in members:
            member.stop()
            member._coord.close()


def test_a_lease_survives_a_lost_session_and_a_taken_one_is_lost(server: ZookeeperServer, space: str) -> None:
    store, other = opened(space), opened(space)
    with lockstead.Client(store) as client, lockstead.Client(other) as theirs:
        lease = client.lock("apt", ttl=10).acquire(timeout=30)
        told = threading.Event()
        lease.on_lost(told.set)
        expire(store, server)
        assert theirs.lock("apt", ttl=10).try_acquire() is None
        assert lease.is_held
        # the record decides, and not the session: the next renewal finds it gone
        theirs.lock("apt").break_lease(now=True, reason="as an expiry would")
        assert told.wait(LIMIT)
        assert not lease.is_held
