"""Parsing of `postgresql:` URLs: hosts and database, the options of libpq, and the URL without credentials.

A DAG file defines many locks and opens none, so this module imports more only to open one. Must not know SQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.transport import CLEARTEXT, flag
from lockstead.stores.url import BuiltInOpener, options_of, query

if TYPE_CHECKING:
    from lockstead.stores.postgres.store import PostgresStore

# fmt: off
LIBPQ: Final = frozenset((
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "gsslib", "hostaddr", "keepalives",
    "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname", "load_balance_hosts", "options",
    "passfile", "password", "require_auth", "requirepeer", "service", "ssl_max_protocol_version",
    "ssl_min_protocol_version", "sslcert", "sslcertmode", "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslmode",
    "sslnegotiation", "sslpassword", "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "user",
))
# fmt: on
"""The options that libpq reads. Host, port and database are in the URL before the `?`."""

OURS: Final = frozenset(("cleartext", "schema", "listen", "listen_host", "listen_port"))
SECRET: Final = frozenset(("password", "sslpassword", "user"))
"""The options that a printable URL omits: libpq reads them from PGUSER, PGPASSWORD, a password or service file."""

SCHEMA: Final = "lockstead"
MISSING: Final = "the PostgreSQL store needs psycopg: pip install 'lockstead[postgres]'"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. conninfo is for libpq and may contain credentials; url contains none.

    listen: whether to open a connection for notifications: "auto" (not through a pooler), "yes" or "no". listen_to:
    the options of libpq that differ for that connection. may_be_clear: a password may be sent unencrypted to another
    machine. is_verified: the server's certificate must name the host.
    """

    conninfo: str = field(repr=False)
    url: str
    schema: str = SCHEMA
    listen: str = "auto"
    listen_to: tuple[tuple[str, str], ...] = ()
    may_be_clear: bool = False
    is_verified: bool = False


class _Opener(BuiltInOpener):
    """The opener of `postgresql://user@host1,host2/database?sslmode=verify-full`, also written `postgres://`."""

    options = LIBPQ | OURS
    takes_user = True

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return target_of(store_url).url

    def open(self, store_url: str, client: object | None) -> PostgresStore:
        """Open the store without connecting. Raises ValueError for a URL without a database.

        Raises StoreRefused if the client library is missing, TypeError if a client is passed.
        """
        if client is not None:
            raise TypeError("a PostgreSQL store accepts no client: it needs connections of its own; give a URL")
        target = target_of(store_url)
        try:
            import psycopg  # noqa: F401 - if it is missing, fail here and not during a renewal
        except ImportError as error:
            raise StoreRefused(MISSING) from error
        from lockstead.stores.postgres.store import PostgresStore

        return PostgresStore(target)


def target_of(store_url: str) -> Target:
    """Parse a store's URL; raise ValueError, with a message that repeats nothing of it, if it is invalid."""
    before, options = options_of(store_url)
    found = re.fullmatch(r"postgres(?:ql)?://(?:[^/]*@)?(?P<hosts>[^/@]*)/(?P<database>[^/]+)", before)
    if found is None:
        raise ValueError(
            "not the URL of a PostgreSQL database; write 'postgresql://user@host/database' "
            "(percent-encode '/', '@', ':', '?' and '#' in a name or password)"
        )
    for number in (*_ports(found["hosts"]), options.get("listen_port", "")):
        if number and not (re.fullmatch("[0-9]{1,5}", number) and 0 < int(number) < 1 << 16):
            raise ValueError("a port in the URL of a PostgreSQL database must be a number from 1 to 65535")
    schema = options.get("schema", SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", schema) or schema.startswith("pg_"):
        raise ValueError("the schema in the URL must be a plain lower-case name of at most 40 letters, digits and '_'")
    listen = options.get("listen", "auto")
    if listen not in ("auto", "yes", "no"):
        raise ValueError(f"listen in the URL is 'auto', 'yes' or 'no', not {listen!r}")
    of_libpq = {name: value for name, value in options.items() if name in LIBPQ}
    shown = {name: value for name, value in options.items() if name not in SECRET}
    if schema == SCHEMA:
        shown.pop("schema", None)
    return Target(
        # older versions of libpq know only one of the two spellings of the scheme
        conninfo=before.replace("postgres:", "postgresql:", 1) + query(of_libpq),
        url=f"postgresql://{found['hosts']}/{found['database']}{query(shown)}",
        schema=schema,
        listen=listen,
        listen_to=tuple(
            (libpq, options[ours])
            for ours, libpq in (("listen_host", "host"), ("listen_port", "port"))
            if options.get(ours)
        ),
        may_be_clear=flag(options, CLEARTEXT),
        is_verified=options.get("sslmode") == "verify-full",
    )


def _ports(hosts: str) -> list[str]:
    """Return the port of each host as written; empty for libpq's default."""
    return [re.sub(r"^\[[^\]]*\]", "", host).partition(":")[2] for host in hosts.split(",")]


OPENER: Final = _Opener()
