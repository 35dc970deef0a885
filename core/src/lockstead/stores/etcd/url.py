"""Parsing of `etcd:` URLs: members, credentials, certificates and the prefix of the keys; only a fragment gives a key.

What the URL leaves out is taken from the variables of `etcdctl`. A DAG file defines many locks and opens none, so this
module imports more only to open one. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import StoreRefused
from lockstead.stores.servers import OPTIONS, Servers, servers_in
from lockstead.stores.url import BuiltInOpener, options_of, query

if TYPE_CHECKING:
    from lockstead.stores.etcd.encoding import Root
    from lockstead.stores.etcd.store import EtcdStore

PORT: Final = 2379

USER: Final = "ETCDCTL_USER"
"""The variable with the user, or user:password."""
PASSWORD: Final = "ETCDCTL_PASSWORD"  # noqa: S105 - the variable's name
CERTIFICATES: Final = {"ca": "ETCDCTL_CACERT", "cert": "ETCDCTL_CERT", "key": "ETCDCTL_KEY"}

_SHAPE: Final = "write 'etcd://host1:2379,host2:2379/prefix', with 'user:password@' before the hosts if needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Servers):
    """The members of an etcd, and what all keys of the store begin with."""

    root: Root


class _Opener(BuiltInOpener):
    """The opener of `etcd://host1:2379,host2:2379/prefix`."""

    options = OPTIONS
    takes_user = True

    def printable(self, store_url: str) -> str:
        """Return the URL without user and password; with them in the environment it opens the same store."""
        from urllib.parse import quote

        target, options = target_of(store_url), options_of(store_url)[1]
        prefix = quote(f"/{target.root.text}".rstrip("/"), safe="/:!$&*+,;=")
        return f"etcd://{','.join(target.endpoints)}{prefix}{query(options)}"

    def open(self, store_url: str, client: object | None) -> EtcdStore:
        """Open the store; it connects on first use. Raises ValueError for an invalid URL.

        Raises StoreRefused if h11 is missing or a certificate cannot be used, TypeError for a client.
        """
        import os

        if client is not None:
            raise TypeError("the etcd store accepts no client: it speaks to the JSON gateway by itself")
        target = target_of(store_url, os.environ)
        target.check()
        try:
            from lockstead.stores.etcd.store import EtcdStore
        except ImportError as error:
            raise StoreRefused("the etcd store needs h11: pip install 'lockstead[etcd]'") from error
        return EtcdStore(target, self.printable(store_url))


def target_of(store_url: str, environ: Mapping[str, str] | None = None) -> Target:
    """Parse a store's URL. Raises ValueError, which repeats nothing of it."""
    from urllib.parse import unquote

    from lockstead.stores.etcd.encoding import Root

    before, options = options_of(store_url)
    if not before.startswith("etcd://"):
        raise ValueError(f"not the URL of an etcd; {_SHAPE}")
    authority, _, prefix = before.removeprefix("etcd://").partition("/")
    root = Root.at(unquote(prefix, errors="strict").strip("/"))
    return Target(root=root, **_servers(authority, options, dict(environ or {})))


def _servers(authority: str, options: Mapping[str, str], environ: dict[str, str]) -> dict[str, Any]:
    """Return the fields of `Servers`."""
    if "@" not in authority:
        user, _, password = environ.get(USER, "").partition(":")
        environ |= {USER: user, PASSWORD: password or environ.get(PASSWORD, "") if user else ""}
    fields = servers_in(authority, options, environ, variables=(USER, PASSWORD), port=PORT, shape=_SHAPE)
    files = {name: fields[name] or environ.get(variable, "") for name, variable in CERTIFICATES.items()}
    # a certificate that etcdctl takes asks for TLS here as well, unless the URL says otherwise
    if fields["tls"] or (any(files.values()) and "tls" not in options):
        if bool(files["cert"]) != bool(files["key"]):
            raise ValueError("a client certificate for etcd needs cert and key (or ETCDCTL_CERT and ETCDCTL_KEY)")
        fields |= {"tls": True, **files}
    return {**fields, "hosts": tuple(dict.fromkeys(fields["hosts"]))}


OPENER: Final = _Opener()
