"""URLs of Redis: servers, Sentinels or a Cluster, the prefix, credentials, TLS.

    redis://[user:password@]host[:port][/db][?prefix=...]          one server; rediss:// for TLS
    redis+sentinel://[user:password@]host[:port],host.../service[/db]
    redis+cluster://[user:password@]host[:port],host...

The key follows `#`. A DAG file defines many locks and opens none, so only `open` imports what opening needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstead.stores.port import Opener
from lockstead.stores.servers import host_and_port
from lockstead.stores.url import options_of, query

if TYPE_CHECKING:
    from lockstead.protocol.commands import Traits
    from lockstead.stores.redis.access import Access, Kind
    from lockstead.stores.redis.store import RedisStore

PREFIX: Final = "lockstead"
PORT: Final = 6379
SENTINEL_PORT: Final = 26379

TLS_OPTIONS: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "ssl_cert_reqs"})
"""The files and checks of TLS in a URL, as redis-py names them. Each of them asks for TLS."""


def printable(store_url: str) -> str:
    """Return a URL of Redis without user and password."""
    before, options = options_of(store_url)
    start, separator, after = before.partition("://")
    place, slash, path = after.partition("/")
    return f"{start}{separator}{user_and_hosts(place)[1]}{slash}{path}{query(options)}"


def user_and_hosts(place: str) -> tuple[str, str]:
    """Split what precedes the path; ValueError for a second `@`: hosts would be taken for a part of a password."""
    who, _, hosts = place.rpartition("@")
    if "@" in who:
        raise ValueError("the URL has several @: write user and password once, before the first host, and an @ as %40")
    return who, hosts


class _Opener(Opener):
    """Opens stores on Redis of one scheme."""

    takes_user = True

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._start = f"{scheme}://"

    @property
    def traits(self) -> Traits:
        from lockstead.stores.redis.store import traits_of

        return traits_of(self._scheme)

    @property
    def options(self) -> frozenset[str]:
        """`prefix` of all keys, `tls` where the scheme does not say it, its files and checks, and `cleartext`."""
        return TLS_OPTIONS | {"prefix", "cleartext"} | (set() if self._scheme.startswith("rediss") else {"tls"})

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return printable(store_url)

    def open(self, store_url: str, client: object | None) -> RedisStore:
        """Open the store; asks the server nothing yet. client is a `redis.Redis` or `redis.RedisCluster` of the caller.

        Of a client, credentials and TLS are taken and nothing else: its connections repeat requests. Raises
        StoreRefused when the client library is missing, ValueError for a URL that names no server, TypeError for
        another client.
        """
        from lockstead.stores.redis.access import check_library
        from lockstead.stores.redis.store import RedisStore

        check_library()
        access = self._access(store_url, client)
        _before, options = options_of(store_url)
        return RedisStore(access, self.printable(store_url), options.get("prefix", PREFIX))

    def _access(self, store_url: str, client: object | None) -> Access:
        from lockstead.stores.redis.access import Kind, access_of

        before, options = options_of(store_url)
        if not before.startswith(self._start):
            raise ValueError(f"not the URL of a Redis; write '{self._start}host:port'")
        place, _, path = before[len(self._start) :].partition("/")
        who, hosts = user_and_hosts(place)
        kind = {"redis+sentinel": Kind.SENTINEL, "redis+cluster": Kind.CLUSTER}.get(self._scheme, Kind.SERVER)
        port = SENTINEL_PORT if kind is Kind.SENTINEL else PORT
        shape = "write 'redis://host:port', with a number for the port"
        addresses = tuple(host_and_port(host, port, shape) for host in hosts.split(","))
        if kind is Kind.SERVER and len(addresses) > 1:
            raise ValueError("several servers: write redis+sentinel:// or redis+cluster:// before them")
        service, db = _path(path, kind)
        is_secure = self._scheme.startswith("rediss")
        return access_of(addresses, db, who, options, client, kind=kind, service=service, is_secure=is_secure)


def _path(path: str, kind: Kind) -> tuple[str, int]:
    """Read the service of Sentinels, and the number of a database. ValueError where the kind has none."""
    from urllib.parse import unquote

    service = ""
    if kind.name == "SENTINEL":
        service, _, path = path.lstrip("/").partition("/")
        if not service:
            raise ValueError("the URL names no service; write 'redis+sentinel://host1,host2/service'")
    if kind.name == "CLUSTER" and path.strip("/") not in ("", "0"):
        raise ValueError("a Redis Cluster has no databases; leave out what follows the hosts")
    return unquote(service), database(path)


def database(path: str) -> int:
    """Read the number of a database from the path of a URL; 0 if there is none."""
    number = path.strip("/")
    if number and not (number.isascii() and number.isdigit()):
        raise ValueError("the path of the URL must be the number of a database, as in 'redis://host:port/0'")
    return int(number or 0)


OPENER: Final = _Opener("redis")
SECURE: Final = _Opener("rediss")
SENTINEL: Final = _Opener("redis+sentinel")
CLUSTER: Final = _Opener("redis+cluster")
