"""Parsing of `gs:` URLs (bucket, prefix, key), and opening of their stores.

A DAG file defines many locks and opens none, so this module imports more only to open one. Must not know requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.url import BuiltInOpener

if TYPE_CHECKING:
    from lockstead.stores.gcs.encoding import BucketPath
    from lockstead.stores.gcs.store import GcsStore


class _Opener(BuiltInOpener):
    """The opener of `gs://bucket/prefix`. In lock URLs, `gs://bucket/prefix/key` means `gs://bucket/prefix#key`."""

    def split(self, rest: str, fragment: str | None) -> tuple[str, str | None]:
        """Return (store, key); without a fragment, the last segment of the path is the key."""
        if fragment is not None:
            return rest, fragment
        store, slash, key = rest.removeprefix("gs://").rpartition("/")
        return (f"gs://{store}", key or None) if slash else (rest, None)

    def printable(self, store_url: str) -> str:
        """Return the canonical URL; it contains no credentials."""
        return _place(store_url).url

    def open(self, store_url: str, client: object | None) -> GcsStore:
        """Open the store; sends no request yet. client is a `google.cloud.storage.Client` of the caller, or None.

        Raises StoreRefused if the client library or credentials are missing, ValueError for a URL without a bucket,
        TypeError for another type of client.
        """
        from lockstead.stores.gcs.access import MISSING, access_of, default_access
        from lockstead.stores.gcs.store import GcsStore

        place = _place(store_url)
        try:
            import httpcore  # noqa: F401 - so that it is found missing now, not during a renewal
        except ImportError as error:
            raise StoreRefused(MISSING) from error
        return GcsStore(place, default_access() if client is None else access_of(client))


def _place(store_url: str) -> BucketPath:
    from urllib.parse import unquote

    from lockstead.stores.gcs.encoding import BucketPath

    bucket, _, prefix = store_url.removeprefix("gs://").partition("/")
    if not store_url.startswith("gs://") or not bucket or "@" in bucket:
        raise ValueError("not the URL of a bucket; write 'gs://bucket/prefix', without credentials")
    try:
        return BucketPath.at(unquote(bucket, errors="strict"), unquote(prefix, errors="strict").strip("/"))
    except UnicodeDecodeError:
        raise ValueError("the prefix in the URL is not UTF-8 once percent-decoded") from None


OPENER: Final = _Opener()
