"""`redlock:` URLs: the masters, prefix, credentials, TLS and time limits.

    redlock://[user:password@]host1[:port],host2[:port],host3[:port][/db][?prefix=...&restart_delay=...&master_limit=...]

A port on the last host alone is that of all hosts. The key follows `#`. Parsing a URL imports no client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstead.stores.redis.url import PORT, PREFIX, TLS_OPTIONS, database, printable, user_and_hosts
from lockstead.stores.servers import host_and_port
from lockstead.stores.url import BuiltInOpener, options_of
from lockstead.values import seconds

if TYPE_CHECKING:
    from lockstead.stores.redis.access import Access, Address
    from lockstead.stores.redlock.store import RedlockStore

MASTERS_MIN: Final = 3
PREFIX_BYTES_MAX: Final = 200

RESTART_DELAY: Final = 600.0
"""Seconds: longer than the lifetime of a record with the default ttl (303 s) and the longest lock-delay (60 s)."""

MASTER_LIMIT: Final = 0.2
"""Seconds to wait for one master: far below any ttl, and above a round trip between data centres."""


class _Opener(BuiltInOpener):
    """Opens stores on several independent masters."""

    options = TLS_OPTIONS | {"prefix", "tls", "cleartext", "restart_delay", "master_limit"}
    takes_user = True
    has_tokens = False

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return printable(store_url)

    def open(self, store_url: str, client: object | None) -> RedlockStore:
        """Open the store; asks no master anything yet. client is a `redis.Redis` of the caller.

        Of a client, credentials and TLS are taken and nothing else. Raises StoreRefused when the client library is
        missing, ValueError for a URL that does not name three servers or more, TypeError for another client.
        """
        from lockstead.stores.redis.access import check_library
        from lockstead.stores.redlock.masters import MasterGroup
        from lockstead.stores.redlock.store import RedlockStore

        _before, options = options_of(store_url)
        restart_delay = seconds(options.get("restart_delay", RESTART_DELAY), "restart_delay")
        master_limit = seconds(options.get("master_limit", MASTER_LIMIT), "master_limit")
        if not 0.001 <= master_limit <= 5.0:
            raise ValueError("master_limit must be between 1 ms and 5 s: far below the ttl of every lock")
        prefix = options.get("prefix", PREFIX)
        if not prefix or not prefix.isprintable() or len(prefix.encode()) > PREFIX_BYTES_MAX:
            raise ValueError(f"the prefix must be printable and have 1 to {PREFIX_BYTES_MAX} bytes")
        check_library()
        access = self._access(store_url, client)
        if len(access.addresses) % 2 == 0:
            _warn_of_even(len(access.addresses))
        group = MasterGroup(access, master_limit, restart_delay)
        return RedlockStore(group, self.printable(store_url), prefix, restart_delay)

    def _access(self, store_url: str, client: object | None) -> Access:
        from lockstead.stores.redis.access import access_of

        before, options = options_of(store_url)
        if not before.startswith("redlock://"):
            raise ValueError("not a Redlock URL; write 'redlock://host1,host2,host3'")
        place, _, path = before.removeprefix("redlock://").partition("/")
        who, hosts = user_and_hosts(place)
        return access_of(_addresses(hosts), database(path), who, options, client)


def _warn_of_even(count: int) -> None:
    import logging

    logging.getLogger("lockstead").warning(
        "%d masters tolerate no more failures than %d; use an odd number of masters", count, count - 1
    )


def _addresses(hosts: str) -> tuple[Address, ...]:
    shape = "write 'redlock://host1:port,host2:port,host3:port'"
    *others, last = hosts.split(",")
    # one port behind the last host is that of all
    port = PORT if any(":" in other.rpartition("]")[2] for other in others) else host_and_port(last, PORT, shape)[1]
    addresses = tuple(host_and_port(host, port, shape) for host in hosts.split(","))
    if len(addresses) < MASTERS_MIN:
        raise ValueError(f"Redlock needs {MASTERS_MIN} masters or more, ideally an odd number; for one use redis://")
    if len({(name.lower(), number) for name, number in addresses}) < len(addresses):
        raise ValueError("the URL names a master twice: every master must be a separate server")
    return addresses


OPENER: Final = _Opener()
