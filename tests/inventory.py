"""The inventory of stores for tests: one entry each. Tests that run on every store use it and the registry.

A registered store that is missing here fails `tests/surface/test_inventory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lockstead.stores.url import OURS


@dataclass(frozen=True)
class Known:
    """One store.

    url: the store's URL without key, with `{who}` before its host and `{port}` after it, if it has them. tls: the
    suffix of the URL for encryption, or the whole URL if that has another scheme. page: its page in docs/stores. extra:
    the core's extra; module: what is imported when a lock is acquired.
    place: its server as `module:maker`, see `tests.servers.places`. marker: the pytest marker, if its tests have their
    own make target. tells_unclean: whether it can report how the previous lease ended.
    """

    page: str
    url: str
    tls: str = "?tls=true"
    extra: str = ""
    module: str = ""
    place: str = ""
    marker: str = ""
    tells_unclean: bool = True

    @property
    def takes_user(self) -> bool:
        """Return whether its URL may have a user."""
        return "{who}" in self.url

    @property
    def secure(self) -> str:
        """Return its URL with encryption."""
        return self.url + self.tls if self.tls.startswith("?") else self.tls


THREE: Final = "redlock://{who}127.0.0.1:{port},localhost:{port},[::1]:{port}/0"

STORES: Final = {
    "cassandra": Known(
        page="cassandra",
        url="cassandra://{who}127.0.0.1:{port}/locks",
        extra="cassandra",
        module="cassandra",
        place="tests.servers.cassandra.place:CassandraPlace",
        marker="cassandra",
    ),
    "etcd": Known(
        page="etcd",
        url="etcd://{who}127.0.0.1:{port}/locks",
        extra="etcd",
        module="h11",
        place="tests.servers.etcd:EtcdPlace",
        tells_unclean=False,
    ),
    "gs": Known(page="gcs", url="gs://bucket/locks", extra="gcs", module="httpcore"),
    "memory": Known(page="memory", url="memory:"),
    "postgresql": Known(
        page="postgresql",
        url="postgresql://{who}127.0.0.1:{port}/db",
        tls="?sslmode=require",
        extra="postgres",
        module="psycopg",
        place="tests.servers.postgres:PostgresPlace",
    ),
    "redis": Known(
        page="redis",
        url="redis://{who}127.0.0.1:{port}/0",
        tls="rediss://{who}127.0.0.1:{port}/0",
        extra="redis",
        module="redis",
        place="tests.servers.redis:RedisPlace",
    ),
    "redlock": Known(
        page="redlock",
        url=THREE,
        extra="redis",
        module="redis",
        place="tests.servers.redlock:RedlockPlace",
        tells_unclean=False,
    ),
    "sqlite": Known(page="sqlite", url="sqlite:////nowhere/locks.db"),
    "zk": Known(
        page="zookeeper",
        url="zk://{who}127.0.0.1:{port}/locks",
        extra="zookeeper",
        module="kazoo",
        place="tests.servers.zookeeper:ZookeeperPlace",
    ),
}
"""Scheme to store; a store with several schemes is here under one of them."""

SERVED: Final = {scheme: known for scheme, known in STORES.items() if known.place}
"""The stores with a server that the tests start."""


def folder(scheme: str) -> str:
    """Return the package of a scheme's store."""
    return OURS[scheme].partition(":")[0].rpartition(".")[0]


def known(scheme: str) -> Known:
    """Return the store of a scheme, which may be any of the store's schemes."""
    return next(one for other, one in STORES.items() if folder(other) == folder(scheme))
