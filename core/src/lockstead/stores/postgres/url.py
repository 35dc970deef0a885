"""What a `postgresql:` URL says: hosts and database, what of it is libpq's, and what may be shown of it.

A DAG file names many locks and opens none, so this file imports nothing but to open one. Must not know SQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.port import Opener
from lockstead.stores.transport import CLEARTEXT, flag
from lockstead.stores.url import options_of, query

if TYPE_CHECKING:
    from lockstead.protocol.commands import Traits
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
"""What libpq reads itself. Host, port and database stand in the URL proper."""

OURS: Final = frozenset(("cleartext", "schema", "listen", "listen_host", "listen_port"))
SECRET: Final = frozenset(("password", "sslpassword", "user"))
"""What is left out of a URL that is shown: libpq finds it in PGUSER, PGPASSWORD, a password file or a service."""

SCHEMA: Final = "lockstead"
MISSING: Final = "the PostgreSQL store needs psycopg: pip install 'lockstead[postgres]'"


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names. conninfo is for libpq and may hold credentials; url may be shown.

    listen: whether a connection that waits for notifications is opened: "auto" (not through a pooler), "yes", "no".
    listen_to: libpq's options for that connection where it goes another way. may_be_clear: a password may go in clear
    to another machine. is_verified: the server's certificate has to name the host.
    """

    conninfo: str = field(repr=False)
    url: str
    schema: str = SCHEMA
    listen: str = "auto"
    listen_to: tuple[tuple[str, str], ...] = ()
    may_be_clear: bool = False
    is_verified: bool = False


class _Opener(Opener):
    """Opens `postgresql://user@host1,host2/database?sslmode=verify-full`, also written `postgres://`."""

    options = LIBPQ | OURS
    takes_user = True

    @property
    def traits(self) -> Traits:
        from lockstead.stores.postgres.store import TRAITS

        return TRAITS

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password."""
        return target_of(store_url).url

    def open(self, store_url: str, client: object | None) -> PostgresStore:
        """Open the store; asks the server nothing yet. ValueError for a URL that names no database.

        StoreRefused when the client library is missing, TypeError for a client.
        """
        if client is not None:
            raise TypeError("a PostgreSQL store accepts no client: it needs connections of its own; give a URL")
        target = target_of(store_url)
        try:
            import psycopg  # noqa: F401 - found missing here, not in the middle of a renewal
        except ImportError as error:
            raise StoreRefused(MISSING) from error
        from lockstead.stores.postgres.store import PostgresStore

        return PostgresStore(target)


def target_of(store_url: str) -> Target:
    """Read a store's URL. ValueError, which repeats nothing of it, if it is none of this store."""
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
    shown = {name: value for name, value in options.items() if name not in SECRET}
    if schema == SCHEMA:
        shown.pop("schema", None)
    return Target(
        # libpq knows only one of the two ways to write its scheme in every version
        conninfo=before.replace("postgres:", "postgresql:", 1) + _query(options, LIBPQ),
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
    """Return what stands after the colon of each host, empty where libpq's own default holds."""
    return [re.sub(r"^\[[^\]]*\]", "", host).partition(":")[2] for host in hosts.split(",")]


def _query(options: dict[str, str], names: frozenset[str]) -> str:
    return query({name: value for name, value in options.items() if name in names})


OPENER: Final = _Opener()
