"""What the URL and the environment say of an etcd: members, prefix, certificates, user. Must not know requests.

Credentials and certificates that the URL leaves out come from the variables of `etcdctl`: ETCDCTL_USER (user, or
user:password), ETCDCTL_PASSWORD, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY. A certificate from either asks for TLS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from lockstead.stores.etcd.encoding import Root
from lockstead.stores.transport import CLEARTEXT, flag, refuse_clear, wants_tls
from lockstead.stores.url import options_of, query

PORT: Final = 2379
FILES: Final = ("cacert", "cert", "cert_key")
TLS_WAY: Final = "?tls=true"

VARIABLES: Final = ("ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY")

_SHAPE: Final = re.compile(r"etcd://(?:(?P<who>[^/]*)@)?(?P<hosts>[^/@]+)(?:/(?P<prefix>.*))?")
_HOST: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where the members are, and how they are spoken to. endpoints are `host:port`; paths are of PEM files."""

    endpoints: tuple[str, ...]
    root: Root
    is_secure: bool = False
    cacert: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    may_be_clear: bool = False

    @property
    def hosts(self) -> list[str]:
        """The hosts of the members."""
        return [endpoint.rpartition(":")[0] for endpoint in self.endpoints]

    def check(self) -> None:
        """Raise StoreRefused where the password would go in clear to another machine."""
        if self.user and not self.is_secure and not self.may_be_clear:
            refuse_clear(self.hosts, way=TLS_WAY)

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return "https" if self.is_secure else "http"


def read(store_url: str, environment: Mapping[str, str]) -> EtcdSettings:
    """Read a store's URL. ValueError with one line, which repeats nothing of it, if it is none of etcd's."""
    before, options = options_of(store_url)
    found = _SHAPE.fullmatch(before)
    if found is None:
        raise ValueError("not the URL of an etcd; write 'etcd://host1:2379,host2:2379/prefix'")
    is_secure, cacert, cert, cert_key = _certificates(options, environment)
    user, password = _credentials(found["who"], environment)
    return EtcdSettings(
        endpoints=_endpoints(found["hosts"]),
        root=Root.at(_decoded(found["prefix"] or "", "prefix").strip("/")),
        is_secure=is_secure,
        cacert=cacert,
        cert=cert,
        cert_key=cert_key,
        user=user,
        password=password,
        may_be_clear=flag(options, CLEARTEXT),
    )


def printable(store_url: str) -> str:
    """Return URL in its one form, without user and password; with them in the environment it opens the same store."""
    settings, options = read(store_url, {}), options_of(store_url)[1]
    prefix = settings.root.text.rstrip("/")
    path = f"/{quote(prefix, safe='/:!$&*+,;=')}" if prefix else ""
    return f"etcd://{','.join(settings.endpoints)}{path}{query(options)}"


def _endpoints(hosts: str) -> tuple[str, ...]:
    endpoints = []
    for text in hosts.split(","):
        found = _HOST.fullmatch(text)
        port = int(found["port"] or PORT) if found else 0
        if found is None or not 0 < port < 65536:
            raise ValueError("the hosts of an etcd's URL are written host1:2379,host2:2379")
        endpoints.append(f"{found['host']}:{port}")
    return tuple(dict.fromkeys(endpoints))


def _certificates(
    options: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[bool, str | None, str | None, str | None]:
    # what etcdctl takes for TLS asks for it here as well, unless the URL says otherwise
    asks = wants_tls(options, FILES) or any(environment.get(name) for name in VARIABLES)
    if not asks or ("tls" in options and not flag(options, "tls")):
        return False, None, None, None
    cacert = options.get("cacert") or environment.get("ETCDCTL_CACERT") or None
    cert = options.get("cert") or environment.get("ETCDCTL_CERT") or None
    cert_key = options.get("cert_key") or environment.get("ETCDCTL_KEY") or None
    if (cert is None) != (cert_key is None):
        raise ValueError("a client certificate for etcd needs both cert and cert_key (ETCDCTL_CERT and ETCDCTL_KEY)")
    return True, cacert, cert, cert_key


def _credentials(who: str | None, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    if who:
        user, _, password = who.partition(":")
        given = _decoded(user, "user"), _decoded(password, "password")
    else:
        user, _, password = environment.get("ETCDCTL_USER", "").partition(":")
        given = user, password
    password = given[1] or environment.get("ETCDCTL_PASSWORD", "")
    return (given[0], password) if given[0] else (None, None)


def _decoded(text: str, what: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"the {what} in the URL is not UTF-8 once percent-decoded") from None
