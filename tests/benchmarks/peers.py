"""The locks that are compared with ours, and the bare requests; each can acquire and release.

Each is used as its documentation shows. Nothing is imported before it is used, so that a missing peer does not
prevent the others.

As a program (`python -m tests.benchmarks.peers KIND WHERE`) it is a waiting process: for each line on its standard
input it acquires the lock, notes the instant, releases the lock and prints the instant.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import lockstead

Release = Callable[[], object]
Acquire = Callable[[], Release]
"""Acquires the lock, waiting for it, and returns a function that releases it."""

TTL: Final = 30
"""Seconds."""

LABELS: Final = {"team": "publishing", "run": "4711"}


def silent(_event: object) -> None:
    """Ignore all events: the lock is measured, not the log."""


@contextmanager
def ours(url: str) -> Iterator[Acquire]:
    """A lock of ours: with a token, labels, a record that others can read, and a keeper that renews it."""
    with lockstead.connect(url, listener=silent) as client:
        lock = client.lock("bench", ttl=TTL, purpose="benchmark", labels=LABELS)
        yield lambda: lock.acquire().release


@contextmanager
def our_semaphore(url: str) -> Iterator[Acquire]:
    """A semaphore of ours with one permit."""
    semaphore = lockstead.Semaphore(f"{url}#semaphore", permits=1, ttl=TTL)
    yield lambda: semaphore.acquire().release


@contextmanager
def file_lock(path: str) -> Iterator[Acquire]:
    """The file lock most in use."""
    import filelock

    lock = filelock.FileLock(path, thread_local=False)
    yield lambda: lock.acquire().lock.release


# --- Redis ----------------------------------------------------------------------------------------------------------


@contextmanager
def _redis(where: str) -> Iterator[Any]:
    import redis

    host, _, port = where.partition(":")
    with redis.Redis(host=host, port=int(port)) as client:
        yield client


@contextmanager
def redis_py(where: str) -> Iterator[Acquire]:
    """The lock that redis-py brings."""
    with _redis(where) as client:

        def acquire() -> Release:
            lock = client.lock("redis-py", timeout=TTL)
            lock.acquire()
            return lock.release

        yield acquire


@contextmanager
def python_redis_lock(where: str) -> Iterator[Acquire]:
    """python-redis-lock, whose waiters are woken; without the renewing thread that it starts for each hold if asked."""
    import redis_lock

    with _redis(where) as client:

        def acquire() -> Release:
            lock = redis_lock.Lock(client, "python-redis-lock", expire=TTL)
            lock.acquire()
            return lock.release

        yield acquire


@contextmanager
def sherlock(where: str) -> Iterator[Acquire]:
    """sherlock on Redis."""
    import sherlock as library

    with _redis(where) as client:

        def acquire() -> Release:
            lock = library.RedisLock("sherlock", client=client, expire=TTL)
            lock.acquire()
            return lock.release

        yield acquire


@contextmanager
def redis_floor(where: str) -> Iterator[Acquire]:
    """SET NX PX and DEL."""
    with _redis(where) as client:

        def acquire() -> Release:
            if not client.set("floor", "x", nx=True, px=TTL * 1000):
                raise RuntimeError("the floor's key is there")
            return lambda: client.delete("floor")

        yield acquire


@contextmanager
def pottery(where: str) -> Iterator[Acquire]:
    """pottery's Redlock."""
    import pottery as library

    with ExitStack() as stack:
        masters = {stack.enter_context(_redis(one)) for one in where.split(",")}

        def acquire() -> Release:
            lock = library.Redlock(key="pottery", masters=masters, auto_release_time=TTL)
            if not lock.acquire():
                raise RuntimeError("pottery did not get its lock")
            return lock.release

        yield acquire


@contextmanager
def redlock_floor(where: str) -> Iterator[Acquire]:
    """SET NX PX on each of the masters, one after the other, and DEL on each."""
    with ExitStack() as stack:
        masters = [stack.enter_context(redis_floor(one)) for one in where.split(",")]

        def acquire() -> Release:
            releases = [master() for master in masters]
            return lambda: [release() for release in releases]

        yield acquire


@contextmanager
def sorted_set(where: str) -> Iterator[Acquire]:
    """The semaphore of Redis' documentation and of Redis in Action: a sorted set of holders; it polls."""
    with _redis(where) as client:

        def acquire() -> Release:
            name = uuid.uuid4().hex
            while True:
                now = time.time()
                with client.pipeline() as pipe:
                    pipe.zremrangebyscore("semaphore", "-inf", now - TTL).zadd("semaphore", {name: now})
                    rank = pipe.zrank("semaphore", name).execute()[-1]
                if rank < 1:
                    return lambda: client.zrem("semaphore", name)
                client.zrem("semaphore", name)
                time.sleep(0.01)

        yield acquire


# --- etcd -----------------------------------------------------------------------------------------------------------


@contextmanager
def etcd_sdk(where: str) -> Iterator[Acquire]:
    """etcd-sdk-python, the fork of etcd3 that can still be imported; one lease for each hold."""
    import pyetcd

    host, _, port = where.partition(":")
    client = pyetcd.client(host=host, port=int(port))

    def acquire() -> Release:
        lock = client.lock("etcd-sdk", ttl=TTL)
        lock.acquire()
        return lock.release

    try:
        yield acquire
    finally:
        client.close()


@contextmanager
def etcd3gw(where: str) -> Iterator[Acquire]:
    """etcd3gw, by the JSON gateway; it does not wait, and leaves a lease for each hold."""
    import etcd3gw as library

    host, _, port = where.partition(":")
    client = library.client(host=host, port=int(port))

    def acquire() -> Release:
        lock = client.lock("etcd3gw", ttl=TTL)
        if not lock.acquire():
            raise RuntimeError("etcd3gw did not get its lock")
        return lock.release

    yield acquire


@contextmanager
def tooz(where: str) -> Iterator[Acquire]:
    """tooz on etcd's JSON gateway."""
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"etcd3+http://{where}?api_version=v3", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(b"tooz")

    def acquire() -> Release:
        lock.acquire()
        return lock.release

    try:
        yield acquire
    finally:
        coordinator.stop()


@contextmanager
def etcd_floor(where: str) -> Iterator[Acquire]:
    """One transaction that puts, under a lease that was there before, and one delete; by httpx's client."""
    import httpx

    client = httpx.Client(base_url=f"http://{where}")  # closed with the process
    key = base64.b64encode(b"floor").decode("ascii")
    lease = client.post("/v3/lease/grant", json={"TTL": 3600}).raise_for_status().json()["ID"]
    put = {
        "compare": [{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": 0}],
        "success": [{"request_put": {"key": key, "value": key, "lease": lease}}],
    }
    taken, given = json.dumps(put), json.dumps({"key": key})

    def acquire() -> Release:
        answer = client.post("/v3/kv/txn", content=taken).raise_for_status().json()
        if not answer.get("succeeded"):
            raise RuntimeError("the floor's key is there")
        return lambda: client.post("/v3/kv/deleterange", content=given).raise_for_status()

    yield acquire


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


@contextmanager
def advisory(where: str) -> Iterator[Acquire]:
    """pg_advisory_lock and pg_advisory_unlock by psycopg: a lock as long as its session."""
    import psycopg

    with psycopg.connect(where, autocommit=True) as connection:

        def acquire() -> Release:
            connection.execute("SELECT pg_advisory_lock(4711)")
            return lambda: connection.execute("SELECT pg_advisory_unlock(4711)")

        yield acquire


@contextmanager
def pals(where: str) -> Iterator[Acquire]:
    """pals, advisory locks by SQLAlchemy, here on psycopg 3."""
    import pals as library

    locker = library.Locker("bench", where.replace("postgresql://", "postgresql+psycopg://"))

    def acquire() -> Release:
        lock = locker.lock("pals")
        if not lock.acquire():
            raise RuntimeError("pals did not get its lock")
        return lock.release

    try:
        yield acquire
    finally:
        locker.engine.dispose()


# --- ZooKeeper ------------------------------------------------------------------------------------------------------


@contextmanager
def _kazoo(where: str) -> Iterator[Any]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=where)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def kazoo(where: str) -> Iterator[Acquire]:
    """The lock that kazoo brings."""
    with _kazoo(where) as client:

        def acquire() -> Release:
            lock = client.Lock("/kazoo/lock", "bench")
            lock.acquire()
            return lock.release

        yield acquire


@contextmanager
def kazoo_semaphore(where: str) -> Iterator[Acquire]:
    """The semaphore that kazoo brings."""
    with _kazoo(where) as client:

        def acquire() -> Release:
            semaphore = client.Semaphore("/kazoo/semaphore", "bench", max_leases=1)
            semaphore.acquire()
            return semaphore.release

        yield acquire


@contextmanager
def zookeeper_floor(where: str) -> Iterator[Acquire]:
    """One create and one delete of an ephemeral node."""
    with _kazoo(where) as client:
        client.ensure_path("/floor")
        number = itertools.count()

        def acquire() -> Release:
            path = client.create(f"/floor/{next(number)}", b"x", ephemeral=True)
            return lambda: client.delete(path)

        yield acquire


LOCKS: Final[dict[str, Callable[[str], AbstractContextManager[Acquire]]]] = {
    "lockstead": ours,
    "filelock": file_lock,
    "redis-py": redis_py,
    "python-redis-lock": python_redis_lock,
    "sherlock": sherlock,
    "SET and DEL": redis_floor,
    "pottery": pottery,
    "SET and DEL on each in turn": redlock_floor,
    "etcd-sdk-python": etcd_sdk,
    "etcd3gw": etcd3gw,
    "tooz": tooz,
    "one transaction and one delete": etcd_floor,
    "advisory lock": advisory,
    "pals": pals,
    "kazoo": kazoo,
    "lockstead.Semaphore": our_semaphore,
    "sorted set": sorted_set,
    "kazoo.Semaphore": kazoo_semaphore,
    "one create and one delete": zookeeper_floor,
}
"""Name to what opens it at a place: a URL of ours, a path, `host:port` (several with commas), or a database's URL."""


@contextmanager
def opened(kind: str, where: str) -> Iterator[Acquire]:
    """Open the lock of a kind. What a peer warns of is its own business."""
    with warnings.catch_warnings(), LOCKS[kind](where) as acquire:
        if kind != "lockstead":
            warnings.simplefilter("ignore")
        yield acquire


def wait_in_turn(kind: str, where: str) -> None:
    """Be a process that waits."""
    with opened(kind, where) as acquire:
        acquire()()  # so that it is connected
        print("ready", flush=True)
        for _line in sys.stdin:
            print("waiting", flush=True)
            release = acquire()
            granted_at = time.monotonic()
            release()
            print(granted_at, flush=True)


if __name__ == "__main__":
    wait_in_turn(*sys.argv[1:])
