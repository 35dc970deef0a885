"""The stores as the tests know them: one entry each. Tests that run on every store find it here, and in the registry.

A store that is registered and missing here fails `tests/surface/test_inventory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lockstead.stores.url import OURS


@dataclass(frozen=True)
class Known:
    """One store.

    url: of a store without key, with `{who}` before its host and `{port}` behind it where it has them. tls: what is
    put behind it to encrypt, or the whole URL if that has another scheme. page: its page in docs/stores. extra: of the
    core, with the module that is imported when a lock is acquired, and the distribution that brings it. place: its
    server as `module:maker`, see `tests.servers.places`. marker: of pytest, where its tests have a target of their own.
    tells_unclean: whether it can tell how the holder before ended.
    """

    page: str
    url: str
    tls: str = "?tls=true"
    extra: str = ""
    module: str = ""
    package: str = ""
    place: str = ""
    marker: str = ""
    tells_unclean: bool = True

    @property
    def takes_user(self) -> bool:
        """Whether its URL may name a user."""
        return "{who}" in self.url

    @property
    def secure(self) -> str:
        """Its URL with encryption."""
        return self.url + self.tls if self.tls.startswith("?") else self.tls


THREE: Final = "redlock://{who}127.0.0.1:{port},localhost:{port},[::1]:{port}/0"

STORES: Final = {
    "cassandra": Known(
        page="cassandra",
        url="cassandra://{who}127.0.0.1:{port}/locks",
        extra="cassandra",
        module="cassandra",
        package="cassandra-driver",
        place="tests.servers.cassandra.place:CassandraPlace",
        marker="cassandra",
    ),
    "etcd": Known(
        page="etcd",
        url="etcd://{who}127.0.0.1:{port}/locks",
        extra="etcd",
        module="httpcore",
        package="httpcore",
        place="tests.servers.etcd:EtcdPlace",
        tells_unclean=False,
    ),
    "gs": Known(page="gcs", url="gs://bucket/locks", extra="gcs", module="httpcore", package="google-cloud-storage"),
    "memory": Known(page="memory", url="memory:"),
    "postgresql": Known(
        page="postgresql",
        url="postgresql://{who}127.0.0.1:{port}/db",
        tls="?sslmode=require",
        extra="postgres",
        module="psycopg",
        package="psycopg",
        place="tests.servers.postgres:PostgresPlace",
    ),
    "redis": Known(
        page="redis",
        url="redis://{who}127.0.0.1:{port}/0",
        tls="rediss://{who}127.0.0.1:{port}/0",
        extra="redis",
        module="redis",
        package="redis",
        place="tests.servers.redis:RedisPlace",
    ),
    "redlock": Known(
        page="redlock",
        url=THREE,
        extra="redis",
        module="redis",
        package="redis",
        place="tests.servers.redlock:RedlockPlace",
        tells_unclean=False,
    ),
    "sqlite": Known(page="sqlite", url="sqlite:////nowhere/locks.db"),
    "zk": Known(
        page="zookeeper",
        url="zk://{who}127.0.0.1:{port}/locks",
        extra="zookeeper",
        module="kazoo",
        package="kazoo",
        place="tests.servers.zookeeper:ZookeeperPlace",
    ),
}
"""Scheme to store; one that has several schemes stands here under one of them."""

SERVED: Final = {scheme: known for scheme, known in STORES.items() if known.place}
"""Those with a server of their own that the tests start."""


def folder(scheme: str) -> str:
    """Return the package of the store that a scheme opens."""
    return OURS[scheme].partition(":")[0].rpartition(".")[0]


def known(scheme: str) -> Known:
    """Return the store of a scheme, which may be one of several that it has."""
    return next(one for other, one in STORES.items() if folder(other) == folder(scheme))
