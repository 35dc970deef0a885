"""How to reach Redis: servers, Sentinels or Cluster, credentials, TLS.

Must not know commands. No message and no repr of this file shows a credential.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from lockstead.errors import StoreRefused
from lockstead.stores.redis.url import TLS_OPTIONS
from lockstead.stores.transport import CLEARTEXT, flag, refuse_clear, transport, wants_tls

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

Address: TypeAlias = "tuple[str, int]"
"""Host and port."""

MISSING: Final = "the Redis store needs its client library: pip install 'lockstead[redis]'"


class Kind(Enum):
    """What kind of servers the addresses are."""

    SERVER = "one server"
    SENTINEL = "Sentinels, which know the server"
    CLUSTER = "nodes of a Cluster"


@dataclass(frozen=True, slots=True)
class Access:
    """Where and how to connect. kwargs: arguments of redis-py's connections, of a caller's own client among them.

    may_be_clear: the password may go in clear to other machines.
    """

    kind: Kind
    addresses: tuple[Address, ...]
    service: str = ""
    db: int = 0
    is_secure: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    may_be_clear: bool = False

    def check(self, address: Address, *, to_sentinel: bool = False) -> None:
        """Raise StoreRefused where a password would go in clear to another machine: one may be named by a server."""
        if self.has_password(to_sentinel=to_sentinel) and not self.is_secure and not self.may_be_clear:
            refuse_clear((address[0],), way=TLS_WAY)

    def has_password(self, *, to_sentinel: bool = False) -> bool:
        """Return whether a password is sent."""
        who = self.sentinel_kwargs if to_sentinel else {**self.kwargs, **self._who()}
        return bool(who.get("password") or who.get("credential_provider"))

    @property
    def is_verified(self) -> bool:
        """Whether certificates are checked against the host names."""
        return self.is_secure and bool(self.kwargs.get("ssl_check_hostname"))

    def transport(self, addresses: Iterable[Address]) -> Finding:
        """Return the finding on who can read what is sent to these addresses."""
        hosts = [address[0] for address in addresses]
        is_verified, has_password = self.is_verified, self.has_password()
        return transport(hosts, tls=self.is_secure, is_verified=is_verified, has_password=has_password, way=TLS_WAY)

    def arguments(self, address: Address, *, to_sentinel: bool = False) -> dict[str, Any]:
        """Return the arguments of redis-py's connection to a server. Raises StoreRefused as `check` does."""
        self.check(address, to_sentinel=to_sentinel)
        who = dict(self.sentinel_kwargs) if to_sentinel else self._who()
        return {
            **self.kwargs,
            **who,
            "host": address[0],
            "port": address[1],
            "db": 0 if to_sentinel else self.db,
            # its bounds limit it
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "socket_keepalive": True,
            # a request that is sent again by the library would turn our own success into a conflict
            "retry": None,
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "protocol": 2,
        }

    def _who(self) -> dict[str, Any]:
        if self.kwargs.get("credential_provider") is not None:
            return {}
        return {"username": self.username, "password": self.password}


TLS_WAY: Final = "rediss:// (or tls=true)"


def access_of(
    addresses: tuple[Address, ...],
    db: int,
    who: str,
    options: Mapping[str, str],
    client: object | None,
    *,
    kind: Kind = Kind.SERVER,
    service: str = "",
    is_secure: bool = False,
) -> Access:
    """Return the access that a URL's `user:password` and options, a caller's client and the environment describe.

    is_secure: the scheme says TLS. ValueError for options that do not fit, TypeError for another client, StoreRefused
    where a password would go in clear.
    """
    kwargs, has_tls = ({}, False) if client is None else kwargs_of(client)
    is_secure = wants_tls(options, TLS_OPTIONS) or has_tls or is_secure
    kwargs = tls_kwargs(options, kwargs) if is_secure else kwargs
    user, _, password = who.partition(":")
    username: str | None = unquote(user) or None
    secret: str | None = unquote(password) or None
    if client is not None and not who:
        username, secret = kwargs.pop("username", None), kwargs.pop("password", None)
    elif client is None and ":" not in who:
        named, secret = default_credentials()
        username = username or named
    sentinel_kwargs: dict[str, Any] = {}
    if kind is Kind.SENTINEL:
        sentinel_kwargs = {
            name: way for name, way in kwargs.items() if name.startswith("ssl_")
        } | sentinel_credentials()
    clear = flag(options, CLEARTEXT)
    access = Access(kind, addresses, service, db, is_secure, username, secret, kwargs, sentinel_kwargs, clear)
    for address in addresses:
        # the master behind Sentinels is not known yet, but is checked like them
        access.check(address)
    return access


def tls_kwargs(options: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return redis-py's parameters for TLS. Certificates and names are checked, whatever the library's default is.

    known: those of a caller's client.
    """
    kwargs: dict[str, Any] = {**known, **{name: value for name, value in options.items() if name in TLS_OPTIONS}}
    kwargs.setdefault("ssl_cert_reqs", "required")
    is_checked = str(kwargs["ssl_cert_reqs"]).lower() not in ("none", "verifymode.cert_none", "0")
    if "ssl_check_hostname" in options:
        kwargs["ssl_check_hostname"] = flag(options, "ssl_check_hostname")
    kwargs.setdefault("ssl_check_hostname", is_checked)
    return kwargs


_TAKEN: Final = frozenset({"username", "password", "credential_provider", "client_name", "socket_keepalive_options"})


def kwargs_of(client: object) -> tuple[dict[str, Any], bool]:
    """Take credentials and TLS from a caller's own client, never its connections, time-outs or retries.

    Returns also whether it uses TLS. TypeError for what is not a blocking client of redis-py.
    """
    import redis
    from redis.connection import SSLConnection

    if isinstance(client, redis.RedisCluster):
        arguments: Mapping[str, Any] = client.get_connection_kwargs()  # type: ignore[no-untyped-call]  # not typed there
        is_secure = bool(arguments.get("ssl")) or arguments.get("connection_class") is SSLConnection
    elif isinstance(client, redis.Redis):
        arguments = client.connection_pool.connection_kwargs
        is_secure = issubclass(client.connection_pool.connection_class, SSLConnection)
    else:
        raise TypeError(f"client must be a redis.Redis or redis.RedisCluster, not {type(client).__name__}")
    taken = {
        name: value
        for name, value in arguments.items()
        if value is not None and (name in _TAKEN or (is_secure and name.startswith("ssl_")))
    }
    return taken, is_secure


def default_credentials(environment: Mapping[str, str] = os.environ) -> tuple[str | None, str | None]:
    """Return user and password of the environment: REDIS_USERNAME and REDIS_PASSWORD, or REDISCLI_AUTH."""
    password = environment.get("REDIS_PASSWORD") or environment.get("REDISCLI_AUTH")
    return (environment.get("REDIS_USERNAME") or None, password) if password else (None, None)


def sentinel_credentials(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the Sentinels themselves ask for: REDIS_SENTINEL_USERNAME and REDIS_SENTINEL_PASSWORD."""
    named = {"username": "REDIS_SENTINEL_USERNAME", "password": "REDIS_SENTINEL_PASSWORD"}
    return {name: environment[variable] for name, variable in named.items() if environment.get(variable)}


def check_library() -> None:
    """Raise StoreRefused now, not in the middle of a renewal, if the client library is missing."""
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise StoreRefused(MISSING) from error
