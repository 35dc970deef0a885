"""Parsing of `cassandra:` URLs: nodes, credentials and the keyspace of the locks; only a fragment gives a key.

A DAG file defines many locks and opens none, so this module imports more only to open one. Must not know the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.servers import OPTIONS, Servers, servers_in
from lockstead.stores.url import BuiltInOpener, options_of, query

if TYPE_CHECKING:
    from lockstead.stores.cassandra.store import CassandraStore

PORT: Final = 9042
KEYSPACE: Final = "lockstead"
"""The keyspace of a URL without one."""

_VARIABLES: Final = ("CASSANDRA_USERNAME", "CASSANDRA_PASSWORD")
CONSISTENCIES: Final = ("serial", "local_serial")

_SHAPE: Final = "write 'cassandra://host1,host2:9042/keyspace', with 'user:password@' before the hosts if needed"
_KEYSPACE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_DATACENTER_COPIES: Final = re.compile(r"([A-Za-z0-9._-]+):([1-9]\d?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(Servers):
    """A cluster, and the keyspace in it.

    consistency is that of Paxos: among all data centres, or in the local one. replication is used to create a missing
    keyspace: a number of copies, or "dc1:3,dc2:3".
    """

    keyspace: str
    consistency: str = "serial"
    replication: str = ""
    datacenter: str = ""

    @property
    def url(self) -> str:
        """The URL without credentials."""
        options = self.shown
        options |= {name: getattr(self, name) for name in ("datacenter", "replication") if getattr(self, name)}
        if self.consistency != "serial":
            options["consistency"] = self.consistency
        return f"cassandra://{','.join(self.endpoints)}/{self.keyspace}{query(options)}"

    @property
    def replication_cql(self) -> str:
        """The replication of a new keyspace, in CQL."""
        if self.replication.isdigit() or not self.replication:
            return f"{{'class': 'SimpleStrategy', 'replication_factor': {self.replication or 1}}}"
        copies = ", ".join(
            "'{}': {}".format(*pair) for pair in (text.split(":") for text in self.replication.split(","))
        )
        return f"{{'class': 'NetworkTopologyStrategy', {copies}}}"


class _Opener(BuiltInOpener):
    """The opener of `cassandra://h1,h2:9042/keyspace`."""

    options = OPTIONS | {"consistency", "datacenter", "replication"}
    takes_user = True

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return where_of(store_url).url

    def open(self, store_url: str, client: object | None) -> CassandraStore:
        """Open the store; it connects on first use. Raises ValueError for an invalid URL.

        client is a callable that returns a new, unconnected `cassandra.cluster.Cluster`; TypeError for anything else.
        Raises StoreRefused if the driver is missing.
        """
        import os

        where = where_of(store_url, os.environ)
        where.check()
        if client is not None and (not callable(client) or hasattr(client, "connect")):
            raise TypeError("the client of a Cassandra store is a function that makes a Cluster, not connected")
        try:
            from lockstead.stores.cassandra.store import CassandraStore
        except ImportError as error:
            raise StoreRefused(
                "the Cassandra store needs cassandra-driver or scylla-driver: pip install 'lockstead[cassandra]'"
            ) from error
        return CassandraStore(where, client)


def where_of(store_url: str, environ: Mapping[str, str] | None = None) -> Where:
    """Parse a store's URL; missing credentials are taken from CASSANDRA_USERNAME and CASSANDRA_PASSWORD."""
    from urllib.parse import unquote

    before, options = options_of(store_url)
    if not before.startswith("cassandra://"):
        raise ValueError(f"not the URL of a Cassandra store; {_SHAPE}")
    authority, _, keyspace = before.removeprefix("cassandra://").partition("/")
    return Where(
        keyspace=_keyspace(unquote(keyspace, errors="strict").rstrip("/")),
        consistency=_consistency(options.get("consistency", "serial")),
        replication=_replication(options.get("replication", "")),
        datacenter=options.get("datacenter", ""),
        **servers_in(authority, options, environ, variables=_VARIABLES, port=PORT, shape=_SHAPE),
    )


def _keyspace(text: str) -> str:
    name = text or KEYSPACE
    if _KEYSPACE.fullmatch(name) is None:
        raise ValueError("a keyspace is a letter and up to 47 letters, digits and '_'; " + _SHAPE)
    return name


def _consistency(text: str) -> str:
    if text.lower() not in CONSISTENCIES:
        raise ValueError("consistency is 'serial' (one lock for all data centres) or 'local_serial' (one for each)")
    return text.lower()


def _replication(text: str) -> str:
    is_number = text.isascii() and text.isdigit() and 0 < int(text) < 100
    if text and not is_number and not all(_DATACENTER_COPIES.fullmatch(part) for part in text.split(",")):
        raise ValueError("replication is a number of copies, or one for each data centre: 'dc1:3,dc2:3'")
    return text


OPENER: Final = _Opener()
