"""What a `zk:` URL says: servers, credentials, the path that holds the locks, and that only a fragment names
a key.

A DAG file names many locks and opens none, so this file imports nothing but to open one. Must not know kazoo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstead.stores.port import Opener

if TYPE_CHECKING:
    from lockstead.protocol.commands import Traits
    from lockstead.stores.examination import Finding
    from lockstead.stores.zookeeper.store import ZookeeperStore

TLS_WAY: Final = "tls=true"
PORT: Final = 2181
PATH: Final = "/lockstead"
"""The path of a URL that names none."""

SESSION_DEFAULT: Final = 10.0
"""Seconds that a place in the queue outlives a process that has gone; the server may grant more or less."""

_SHAPE: Final = "write 'zk://host1,host2:2181/path', with 'user:password@' before the hosts where these are wanted"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Target:
    """Which ZooKeeper, and the path of all its nodes. hosts are `host:port`, as written and in order.

    session is seconds. With certificates the connection is TLS: ca, cert and key are files; verify says whether the
    server's name is held against its certificate. acl is a file that says who may do what with new nodes.
    """

    hosts: tuple[str, ...]
    path: str
    user: str = ""
    password: str = field(default="", repr=False)
    session: float = SESSION_DEFAULT
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    acl: str = ""
    may_be_clear: bool = False

    def check(self) -> None:
        """Raise StoreRefused where the password would go in clear to another machine."""
        from lockstead.stores.transport import refuse_clear

        if (self.user or self.password) and not self.tls and not self.may_be_clear:
            refuse_clear(self.names, way=TLS_WAY)

    def transport(self) -> Finding:
        """Return who can read what is sent."""
        from lockstead.stores.transport import transport

        has_password = bool(self.user or self.password)
        return transport(self.names, tls=self.tls, is_verified=self.tls, has_password=has_password, way=TLS_WAY)

    @property
    def names(self) -> list[str]:
        """The hosts without their ports."""
        return [host.rpartition(":")[0] for host in self.hosts]

    @property
    def url(self) -> str:
        """The URL without credentials."""
        from urllib.parse import quote

        from lockstead.stores.url import query

        options = {name: getattr(self, name) for name in ("ca", "cert", "key", "acl") if getattr(self, name)}
        if self.session != SESSION_DEFAULT:
            options["session"] = f"{self.session:g}"
        if self.tls and not self.ca and not self.cert:
            options["tls"] = "true"
        if self.may_be_clear:
            options["cleartext"] = "true"
        return f"zk://{','.join(self.hosts)}{quote(self.path, safe='/:@!$&*+,;=')}{query(options)}"


class _Opener(Opener):
    """Opens `zk://h1,h2:2181/path`."""

    options = frozenset({"session", "tls", "cleartext", "ca", "cert", "key", "acl"})
    takes_user = True

    @property
    def traits(self) -> Traits:
        from lockstead.stores.zookeeper.store import TRAITS

        return TRAITS

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return target_of(store_url).url

    def open(self, store_url: str, client: object | None) -> ZookeeperStore:
        """Open the store; it connects when it is first used. ValueError for a URL that is none.

        client makes a KazooClient each time it is called, not started; TypeError for anything else. StoreRefused if
        kazoo is missing.
        """
        import os

        from lockstead.errors import StoreRefused

        target = target_of(store_url, os.environ)
        target.check()
        if target.acl and client is not None:
            raise ValueError("acl= says what the clients do that lockstead makes; give yours its default_acl")
        if client is not None and (not callable(client) or hasattr(client, "start_async")):
            raise TypeError("the client of a ZooKeeper store is a function that makes a KazooClient, not started")
        try:
            from lockstead.stores.zookeeper.store import ZookeeperStore
        except ImportError as error:
            raise StoreRefused("ZooKeeper stores need kazoo: pip install kazoo") from error
        if target.acl:
            from lockstead.stores.zookeeper.acls import acl_of

            acl_of(target.acl)  # what is wrong with it is said at once
        return ZookeeperStore(target, client)


def target_of(store_url: str, environ: Mapping[str, str] | None = None) -> Target:
    """Read a store's URL; credentials that it does not name are taken from ZOOKEEPER_USER and ZOOKEEPER_PASSWORD."""
    from urllib.parse import unquote

    from lockstead.stores.transport import CLEARTEXT, flag, wants_tls
    from lockstead.stores.url import options_of

    before, options = options_of(store_url)
    if not before.startswith("zk://"):
        raise ValueError(f"not the URL of a ZooKeeper store; {_SHAPE}")
    authority, slash, path = before.removeprefix("zk://").partition("/")
    credentials, _, hosts = authority.rpartition("@")
    user, _, password = (unquote(part) for part in credentials.partition(":"))
    if environ is not None and ":" not in credentials:
        user, password = user or environ.get("ZOOKEEPER_USER", ""), environ.get("ZOOKEEPER_PASSWORD", "")
    files = {name: options.get(name, "") for name in ("ca", "cert", "key")}
    return Target(
        hosts=tuple(_host(host) for host in hosts.split(",")),
        path=_path(unquote(slash + path, errors="strict")),
        user=user,
        password=password,
        session=_session(options.get("session")),
        tls=wants_tls(options, files),
        may_be_clear=flag(options, CLEARTEXT),
        acl=options.get("acl", ""),
        **files,
    )


def _host(text: str) -> str:
    found = _HOST.fullmatch(text.strip())
    if found is None or not 0 < int(found[2] or PORT) < 65536:
        raise ValueError(f"the URL of a ZooKeeper store names no server, or one that is none; {_SHAPE}")
    return f"{found[1]}:{found[2] or PORT}"


def _path(path: str) -> str:
    path = path.rstrip("/") or PATH
    pieces = path.split("/")[1:]
    if any(piece in {"", ".", ".."} for piece in pieces) or not path.isprintable():
        raise ValueError(
            f"a path in ZooKeeper has no empty pieces, no '.', no '..' and no control characters; {_SHAPE}"
        )
    if pieces[0] == "zookeeper":
        raise ValueError("the path /zookeeper belongs to the server itself; take another one")
    return path


def _session(text: str | None) -> float:
    if text is None:
        return SESSION_DEFAULT
    from lockstead.values import seconds

    value = seconds(text, "session")
    if not 1.0 <= value <= 3600.0:
        raise ValueError(f"session is {value:g} s; between 1 s and an hour makes sense")
    return value


OPENER: Final = _Opener()
