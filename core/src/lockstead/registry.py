"""The registry of opened engines: one per process and URL, closed with its last user.

Making a lock parses its URL and opens nothing.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, Unpack

from lockstead.reading import clean
from lockstead.runtime import fork
from lockstead.settings import SETTING_NAMES, Given, Settings
from lockstead.stores import url as urls
from lockstead.values import EXCLUSIVE, LeaseTicket, checked_key, checked_permits

if TYPE_CHECKING:
    from lockstead.protocol.record import Revocation
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.keeper import KeptLease
    from lockstead.stores.port import Store, StoreUrl

Identity: TypeAlias = "tuple[str, int]"
"""A store's URL, and the id of the caller's client object, if any."""


class _Registry:
    """The engines of this process by store, and a mutex for each store that is being opened."""

    def __init__(self) -> None:
        self.engines: weakref.WeakValueDictionary[Identity, Engine] = weakref.WeakValueDictionary()
        self.gates: dict[Identity, threading.Lock] = {}
        self.lock = threading.Lock()

    def after_fork(self) -> None:
        """Replace the mutexes: the threads that may hold them were not copied."""
        self.gates = {}
        self.lock = threading.Lock()


_REGISTRY: Final = _Registry()
fork.watch(_REGISTRY)


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed lock URL: the store, the key, and the settings after `?`."""

    store: StoreUrl
    key: str
    settings: Mapping[str, Any]


def target(url: str) -> Target:
    """Parse a lock's URL; ValueError, with a one-line message, if it is invalid."""
    parsed = urls.parse_lock(url)
    return Target(parsed, checked_key(parsed.key or ""), known_settings(parsed))


def known_settings(url: StoreUrl) -> dict[str, Any]:
    """Return the settings in a URL; ValueError for an unknown one, with a suggestion."""
    unknown = sorted(set(url.options) - SETTING_NAMES)
    if unknown:
        _refuse_of_call(unknown[0], " in the URL")
        own = frozenset() if url.scheme in urls.ELSEWHERE else urls.opener(url.scheme).options
        of_store = f"; and of {url.scheme}: {', '.join(sorted(own))}" if own else ""
        known = f"; known are {', '.join(sorted(SETTING_NAMES))}{of_store}"
        hint = urls.meant(unknown[0], own | SETTING_NAMES) or known
        raise ValueError(f"unknown setting {unknown[0]!r} in the URL{hint}")
    return dict(url.options)


def open_store(url: str, client: object | None) -> Store:
    """Open a store by its URL; ValueError if it contains a key or settings."""
    parsed = urls.parse_store(url)
    if parsed.key is not None:
        raise ValueError(f"connect opens a store, not a lock: leave out '#{parsed.key}' and name it with client.lock()")
    if parsed.options:
        raise ValueError(f"settings belong to a lock: give {sorted(parsed.options)[0]!r} to client.lock()")
    return urls.open_store(parsed, client)


def shared_engine(target: Target, client: object | None) -> Engine:
    """Return the engine of a store, opened if this process has none; it is closed with its last user."""
    identity = (target.store.text, id(client) if client is not None else 0)
    from lockstead.runtime.engine import Engine

    # opening may take long, and other stores must not wait for it
    with _REGISTRY.lock:
        gate = _REGISTRY.gates.setdefault(identity, threading.Lock())
    with gate:
        engine = _REGISTRY.engines.get(identity)
        if engine is None or engine.is_closed:
            engine = Engine(urls.open_store(target.store, client))
            _REGISTRY.engines[identity] = engine
        return engine


_OF_CALL: Final = {
    "timeout": "hold() or acquire(), at the command line to --timeout",
    "reclaim": "hold(), acquire() or try_acquire()",
    "interrupt": "hold()",
    "permits": "lockstead.Semaphore, at the command line to run -n",
}
"""Arguments of calls that are mistaken for settings, and where each belongs."""


def _refuse_of_call(name: str, where: str, kind: type[Exception] = ValueError) -> None:
    if name in _OF_CALL:
        raise kind(f"{name!r}{where} is not a setting of a lock: give it to {_OF_CALL[name]}")


def made_settings(given: Mapping[str, Any]) -> Settings:
    """Complete and check settings; TypeError, with a suggestion, for an unknown one."""
    unknown = sorted(set(given) - SETTING_NAMES)
    if unknown:
        _refuse_of_call(unknown[0], "", TypeError)
        hint = urls.meant(unknown[0], SETTING_NAMES) or f"; known are {', '.join(sorted(SETTING_NAMES))}"
        raise TypeError(f"unknown setting {unknown[0]!r}{hint}")
    return Settings.make(**given)


_INSTEAD: Final = {
    "blocking": "for a single try call try_acquire()",
    "blocking_timeout": "write timeout=",
}
"""Arguments of other libraries' locks, and the equivalent here."""


def refuse_unknown(given: Mapping[str, object]) -> None:
    """Raise TypeError for an argument that acquire() does not have, naming the equivalent of another library's."""
    for name in given:
        instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise TypeError(f"acquire() has no argument {name!r}{instead}")


class NamedLock:
    """The common base of Lock and AsyncLock: a key, settings, and a store that is opened by the first operation."""

    def __init__(self, url: str, *, client: object | None = None, **settings: Unpack[Given]) -> None:
        named = target(url)
        self._key = named.key
        self._named = named.store
        self._settings = made_settings({**named.settings, **settings})
        self._open = functools.partial(shared_engine, named, client)
        self._opened: Engine | None = None

    @classmethod
    def _of(cls, engine: Engine, key: str, settings: Mapping[str, Any]) -> Self:
        """Return a lock of an open store."""
        made = cls.__new__(cls)
        made._key = checked_key(key)
        made._settings = made_settings(settings)
        made._opened = engine
        engine.warn_once(key, made._settings)
        return made

    @property
    def key(self) -> str:
        """The lock's name inside its store."""
        return self._key

    @property
    def settings(self) -> Settings:
        """The settings, complete and checked."""
        return self._settings

    def require_unclean_detection(self) -> None:
        """Raise ValueError if the store can never tell that the previous lease expired or was broken; opens no store.

        For callers that must not work after an unclean end: on a server that drops expired records itself, a free key
        looks the same after any holder.
        """
        from lockstead.protocol.commands import StoreClock

        traits = urls.traits(self._named) if self._opened is None else self._opened.traits
        if traits.clock is StoreClock.SERVER_EXPIRES:
            raise ValueError(
                f"{traits.scheme}: cannot tell how a holder ended, so on_unclean='fail' would never fail; "
                "use on_unclean='warn', or another store"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open engine: another process, or a copy, opens the store again."""
        if not hasattr(self, "_open"):
            raise TypeError(
                f"{self!r} was made by a client, whose connections stay in this process; to copy or pickle a lock, "
                f"make it from its URL: {type(self).__name__}('STORE#KEY')"
            )
        return {**self.__dict__, "_opened": None}

    def _open_now(self) -> Engine:
        if self._opened is None:
            self._opened = self._open()
            self._opened.warn_once(self._key, self._settings)
        return self._opened

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key!r}>"


def checked_text(text: str, what: str, bytes_max: int) -> str:
    """Return a text that a record shows to others; ValueError if it is empty, not printable, or too long."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be text, not {type(text).__name__}")
    if not text.strip() or clean(text) != text or not text.isprintable():
        raise ValueError(f"{what} must be printable text, not {text[:40]!r}")
    if (size := len(text.encode())) > bytes_max:
        raise ValueError(f"{what} has {size} bytes; it may have {bytes_max}")
    return text


MISMATCHES: Final = ("refuse", "follow", "resize")


class NamedSemaphore(NamedLock):
    """The common base of Semaphore and AsyncSemaphore: a lock's name and settings, and the expected limit."""

    def __init__(
        self, url: str, permits: int | None, *, on_mismatch: str, client: object | None, **settings: Unpack[Given]
    ) -> None:
        super().__init__(url, client=client, **settings)
        self._expect(permits, on_mismatch)

    def _expect(self, permits: int | None, on_mismatch: str) -> None:
        if self._settings.mode != EXCLUSIVE:
            raise ValueError("the permits of a semaphore are exclusive: leave out mode")
        if permits is not None:
            checked_permits(permits, 1)
        if on_mismatch not in MISMATCHES:
            raise ValueError(f"on_mismatch must be one of {', '.join(map(repr, MISMATCHES))}, not {on_mismatch!r}")
        self._permits = permits
        self._on_mismatch = on_mismatch
        self._last = LastPermit()

    @property
    def permits(self) -> int | None:
        """The limit that this process expects; None for any."""
        return self._permits


@dataclass(slots=True)
class LastPermit:
    """The permit that a semaphore object acquired last: its slot is tried first, once it is released."""

    slot: int | None = None
    kept: weakref.ref[KeptLease] | None = None

    def guess(self) -> int | None:
        """Return the slot, unless its lease is still held."""
        kept = None if self.kept is None else self.kept()
        return None if kept is not None and not kept.lease_state.is_over else self.slot

    def __reduce__(self) -> tuple[type[LastPermit], tuple[int | None]]:
        """Leave the lease in this process."""
        return LastPermit, (self.slot,)


def person() -> str:
    """Return user and host of this process, for the audit entry."""
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


def revocation(reason: str, by: str | None, settings: Settings) -> Revocation:
    """Return who breaks a lease, and why; ValueError without a reason."""
    if not reason or not reason.strip():
        raise ValueError("breaking a lease needs a reason, for the holder and the audit")
    from lockstead.protocol.record import Revocation

    # text that is not valid UTF-8 would be refused by some stores, and fail in others
    return Revocation(clean(by or settings.owner or person()), clean(reason))


def checked_ticket(ticket: LeaseTicket | str, key: str, store: str) -> LeaseTicket:
    """Parse a ticket; ValueError if it is invalid, or of another lock."""
    said = LeaseTicket.parse(ticket)
    if said.key != key:
        raise ValueError(f"the ticket is for {said.key!r}, this lock is {key!r}")
    if said.store != store:
        # the text of a ticket is untrusted
        shown = "".join(character if character.isprintable() else " " for character in said.store[:200])
        raise ValueError(f"the ticket is for a lock in {shown}, this store is {store}")
    return said
