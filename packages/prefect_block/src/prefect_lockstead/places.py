"""The URL, client object and settings that a block's fields describe. Must not import Prefect, nor open anything.

Waiters with the same store URL and client object share one poller, so each set of Google credentials has one client,
kept as long as it is in use.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lockstead import Lock, Settings, urls
from lockstead.values import checked_key


@dataclass(frozen=True, slots=True)
class Place:
    """A lock or a store as it is opened: its URL, which may hold credentials, and the client object that brings others.

    settings are those of `lockstead.Lock`; timeout is how long to wait for the lock, seconds, None forever.
    """

    url: str = field(repr=False)
    client: object | None = field(default=None, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None

    def of_key(self, key: str) -> Place:
        """Return the place of a lock in this store."""
        return Place(urls.lock_url(self.url, key), self.client, self.settings, self.timeout)


def check_lock(url: str) -> None:
    """Raise ValueError, with one line, for what is not a URL of a lock or holds a password."""
    Lock(url)
    _refuse_password(url)


def check_store(url: str) -> None:
    """Raise ValueError, with one line, for a store's URL that cannot be saved: settings and passwords have fields."""
    urls.check_store(url)
    names = {pair.partition("=")[0] for pair in url.partition("?")[2].split("&")}
    if settings := sorted(names & set(Settings.__dataclass_fields__)):
        raise ValueError(f"the setting {settings[0]!r} belongs to a lock: leave it out of the store's URL")
    _refuse_password(url)


def lock_key(key: str) -> str:
    """Return the key of a record's lock: its name, or a digest of one that is too long or not printable."""
    try:
        return checked_key(key)
    except ValueError:
        return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _refuse_password(url: str) -> None:
    if urls.has_password(url):
        raise ValueError(
            "there is a password in the URL, which everybody who sees the block can read: put it into the field "
            "'password', and replace the password if the block was saved"
        )


class GoogleClients:
    """The Cloud Storage clients in use in this process, one for each set of credentials."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def client(self, said: str, make: Callable[[], Any]) -> object:
        """Return the client for these credentials, made if there is none yet; ValueError if that fails."""
        name = hashlib.sha256(said.encode()).hexdigest()
        with self._lock:
            found = self._known.get(name)
        if found is None:
            made = _made(make)
            with self._lock:
                found = self._known.setdefault(name, made)
        return found


def _made(make: Callable[[], Any]) -> Any:
    from google.auth.exceptions import GoogleAuthError

    try:
        return make()
    except (GoogleAuthError, ValueError, OSError, ImportError) as error:
        raise ValueError(
            f"cannot make a Cloud Storage client from the Google credentials block: {' '.join(str(error).split())}"
        ) from error


GOOGLE: Final = GoogleClients()
"""The clients of this process."""
