"""What an `etcd:` URL says: which members, that only a fragment names a key, and what of it may be shown.

A DAG file names many locks and opens none, so this file imports nothing but to open one. Must not know requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.port import Opener

if TYPE_CHECKING:
    from lockstead.protocol.commands import Traits
    from lockstead.stores.etcd.store import EtcdStore

MISSING: Final = "the etcd store needs its client libraries: pip install 'httpcore[asyncio]' h11"


class _Opener(Opener):
    """Opens `etcd://user:password@host1:2379,host2:2379/prefix?tls=true&cacert=ca.pem`."""

    options = frozenset({"tls", "cleartext", "cacert", "cert", "cert_key"})
    takes_user = True

    @property
    def traits(self) -> Traits:
        from lockstead.stores.etcd.store import TRAITS

        return TRAITS

    def printable(self, store_url: str) -> str:
        """Return the URL in its one form, without user and password."""
        from lockstead.stores.etcd.settings import printable

        return printable(store_url)

    def open(self, store_url: str, client: object | None) -> EtcdStore:
        """Open the store; asks the servers nothing yet.

        Raises StoreRefused when httpcore is missing or a certificate cannot be used, ValueError for a URL that names no
        etcd, TypeError for a client: there is none to bring.
        """
        import os

        if client is not None:
            raise TypeError("the etcd store accepts no client: it speaks to the JSON gateway by itself")
        try:
            import httpcore  # noqa: F401 - found missing here, not in the middle of a renewal
        except ImportError as error:
            raise StoreRefused(MISSING) from error
        from lockstead.stores.etcd.settings import printable, read
        from lockstead.stores.etcd.store import EtcdStore

        settings = read(store_url, os.environ)
        settings.check()
        return EtcdStore(settings, printable(store_url))


OPENER: Final = _Opener()
