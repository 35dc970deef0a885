"""What a `cassandra:` URL says: nodes, credentials, the keyspace that holds the locks, and that only a fragment
names a key.

A DAG file names many locks and opens none, so this file imports nothing but to open one. Must not know the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstead.stores.port import Opener

if TYPE_CHECKING:
    from lockstead.protocol.commands import Traits
    from lockstead.stores.cassandra.store import CassandraStore
    from lockstead.stores.examination import Finding

TLS_WAY: Final = "tls=true"
PORT: Final = 9042
KEYSPACE: Final = "lockstead"
"""The keyspace of a URL that names none."""

CONSISTENCIES: Final = ("serial", "local_serial")

_SHAPE: Final = "write 'cassandra://host1,host2:9042/keyspace', with 'user:password@' before the hosts if needed"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_KEYSPACE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_DATACENTER_COPIES: Final = re.compile(r"([A-Za-z0-9._-]+):([1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster, and the keyspace in it. hosts are (host, port), in order.

    consistency is that of Paxos: among all data centres, or in the local one. replication is what a keyspace is made
    with that is not there: a number of copies, or "dc1:3,dc2:3". ca, cert and key are files.
    """

    hosts: tuple[tuple[str, int], ...]
    keyspace: str
    user: str = ""
    password: str = field(default="", repr=False)
    consistency: str = "serial"
    replication: str = ""
    datacenter: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    may_be_clear: bool = False

    def check(self) -> None:
        """Raise StoreRefused where the password would go in clear to another machine."""
        from lockstead.stores.transport import refuse_clear

        if (self.user or self.password) and not self.tls and not self.may_be_clear:
            refuse_clear(self.names, way=TLS_WAY)

    def transport(self) -> Finding:
        """Say who can read what is sent."""
        from lockstead.stores.transport import transport

        has_password = bool(self.user or self.password)
        return transport(self.names, tls=self.tls, is_verified=self.tls, has_password=has_password, way=TLS_WAY)

    @property
    def names(self) -> list[str]:
        """The hosts without their ports."""
        return [host for host, _port in self.hosts]

    @property
    def url(self) -> str:
        """The URL without credentials."""
        from lockstead.stores.url import query

        names = ("ca", "cert", "datacenter", "key", "replication")
        options = {name: getattr(self, name) for name in names if getattr(self, name)}
        if self.consistency != "serial":
            options["consistency"] = self.consistency
        if self.tls and not self.ca and not self.cert:
            options["tls"] = "true"
        if self.may_be_clear:
            options["cleartext"] = "true"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"cassandra://{hosts}/{self.keyspace}{query(options)}"

    @property
    def replication_cql(self) -> str:
        """The replication of a keyspace that is made, as CQL has it."""
        if self.replication.isdigit() or not self.replication:
            return f"{{'class': 'SimpleStrategy', 'replication_factor': {self.replication or 1}}}"
        copies = ", ".join(
            "'{}': {}".format(*pair) for pair in (text.split(":") for text in self.replication.split(","))
        )
        return f"{{'class': 'NetworkTopologyStrategy', {copies}}}"


class _Opener(Opener):
    """Opens `cassandra://h1,h2:9042/keyspace`."""

    options = frozenset({"ca", "cert", "consistency", "datacenter", "key", "replication", "tls", "cleartext"})
    takes_user = True

    @property
    def traits(self) -> Traits:
        from lockstead.stores.cassandra.store import TRAITS

        return TRAITS

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return where_of(store_url).url

    def open(self, store_url: str, client: object | None) -> CassandraStore:
        """Open the store; it connects when it is first used. ValueError for a URL that is none.

        client makes a `cassandra.cluster.Cluster` each time it is called, not connected; TypeError for anything else.
        StoreRefused if the driver is missing.
        """
        import os

        from lockstead.errors import StoreRefused

        where = where_of(store_url, os.environ)
        where.check()
        if client is not None and (not callable(client) or hasattr(client, "connect")):
            raise TypeError("the client of a Cassandra store is a function that makes a Cluster, not connected")
        try:
            from lockstead.stores.cassandra.store import CassandraStore
        except ImportError as error:
            raise StoreRefused(
                "Cassandra stores need cassandra-driver or scylla-driver: pip install cassandra-driver"
            ) from error
        return CassandraStore(where, client)


def where_of(store_url: str, environ: Mapping[str, str] | None = None) -> Where:
    """Read a store's URL; credentials it does not name are taken from CASSANDRA_USERNAME and CASSANDRA_PASSWORD."""
    from urllib.parse import unquote

    from lockstead.stores.transport import CLEARTEXT, flag, wants_tls
    from lockstead.stores.url import options_of

    before, options = options_of(store_url)
    if not before.startswith("cassandra://"):
        raise ValueError(f"not the URL of a Cassandra store; {_SHAPE}")
    authority, _, keyspace = before.removeprefix("cassandra://").partition("/")
    credentials, _, hosts = authority.rpartition("@")
    user, _, password = (unquote(part) for part in credentials.partition(":"))
    if environ is not None and ":" not in credentials:
        user, password = user or environ.get("CASSANDRA_USERNAME", ""), environ.get("CASSANDRA_PASSWORD", "")
    files = {name: options.get(name, "") for name in ("ca", "cert", "key")}
    return Where(
        hosts=tuple(_host(host) for host in hosts.split(",")),
        keyspace=_keyspace(unquote(keyspace, errors="strict").rstrip("/")),
        user=user,
        password=password,
        consistency=_consistency(options.get("consistency", "serial")),
        replication=_replication(options.get("replication", "")),
        datacenter=options.get("datacenter", ""),
        tls=wants_tls(options, files),
        may_be_clear=flag(options, CLEARTEXT),
        **files,
    )


def _host(text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text.strip())
    if found is None or not 0 < int(found[2] or PORT) < 65536:
        raise ValueError(f"no node, or an invalid one, in the URL of the Cassandra store; {_SHAPE}")
    return found[1].strip("[]"), int(found[2] or PORT)


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
