"""Parsing of `zk:` URLs: servers, credentials and the path of the locks; only a fragment gives a key.

A DAG file defines many locks and opens none, so this module imports more only to open one. Must not know kazoo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.servers import OPTIONS, Servers, servers_in
from lockstead.stores.url import BuiltInOpener, options_of, query
from lockstead.values import seconds

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.store import ZookeeperStore

PORT: Final = 2181
PATH: Final = "/lockstead"
"""The path of a URL without one."""

SESSION_DEFAULT: Final = 10.0
"""Seconds that a queue entry outlives its process; the server may grant more or less."""

_VARIABLES: Final = ("ZOOKEEPER_USER", "ZOOKEEPER_PASSWORD")
_SHAPE: Final = "write 'zk://host1,host2:2181/path', with 'user:password@' before the hosts where these are wanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Servers):
    """A ZooKeeper ensemble, and the path of the store's nodes.

    session is in seconds. acl is a file with the ACL of new nodes.
    """

    path: str
    session: float = SESSION_DEFAULT
    acl: str = ""

    @property
    def url(self) -> str:
        """The URL without credentials."""
        from urllib.parse import quote

        options = self.shown
        if self.acl:
            options["acl"] = self.acl
        if self.session != SESSION_DEFAULT:
            options["session"] = f"{self.session:g}"
        return f"zk://{','.join(self.endpoints)}{quote(self.path, safe='/:@!$&*+,;=')}{query(options)}"


class _Opener(BuiltInOpener):
    """The opener of `zk://h1,h2:2181/path`."""

    options = OPTIONS | {"session", "acl"}
    takes_user = True

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return target_of(store_url).url

    def open(self, store_url: str, client: object | None) -> ZookeeperStore:
        """Open the store; it connects on first use. Raises ValueError for an invalid URL.

        client is a callable that returns a new KazooClient, not started; TypeError for anything else. Raises
        StoreRefused if kazoo is missing.
        """
        import os

        target = target_of(store_url, os.environ)
        target.check()
        if target.acl and client is not None:
            raise ValueError("acl= is for the clients that lockstead creates; set default_acl on yours")
        if client is not None and (not callable(client) or hasattr(client, "start_async")):
            raise TypeError("the client of a ZooKeeper store is a function that returns a KazooClient not started")
        try:
            from lockstead.stores.zookeeper.store import ZookeeperStore
        except ImportError as error:
            raise StoreRefused("the ZooKeeper store needs kazoo: pip install 'lockstead[zookeeper]'") from error
        if target.acl:
            from lockstead.stores.zookeeper.acls import acl_of

            acl_of(target.acl)  # so that its errors are raised now
        return ZookeeperStore(target, client)


def target_of(store_url: str, environ: Mapping[str, str] | None = None) -> Target:
    """Parse a store's URL; missing credentials are taken from ZOOKEEPER_USER and ZOOKEEPER_PASSWORD."""
    from urllib.parse import unquote

    before, options = options_of(store_url)
    if not before.startswith("zk://"):
        raise ValueError(f"not the URL of a ZooKeeper store; {_SHAPE}")
    authority, slash, path = before.removeprefix("zk://").partition("/")
    return Target(
        path=_path(unquote(slash + path, errors="strict")),
        session=_session(options.get("session")),
        acl=options.get("acl", ""),
        **servers_in(authority, options, environ, variables=_VARIABLES, port=PORT, shape=_SHAPE),
    )


def _path(path: str) -> str:
    path = path.rstrip("/") or PATH
    pieces = path.split("/")[1:]
    if any(piece in {"", ".", ".."} for piece in pieces) or not path.isprintable():
        raise ValueError(
            f"a path in ZooKeeper has no empty pieces, no '.', no '..' and no control characters; {_SHAPE}"
        )
    if pieces[0] == "zookeeper":
        raise ValueError("the path /zookeeper belongs to the server itself; choose another")
    return path


def _session(text: str | None) -> float:
    if text is None:
        return SESSION_DEFAULT
    value = seconds(text, "session")
    if not 1.0 <= value <= 3600.0:
        raise ValueError(f"session is {value:g} s; it must be between 1 s and an hour")
    return value


OPENER: Final = _Opener()
