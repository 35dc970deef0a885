"""Decides how a URL becomes an opened engine: shared per process and URL, closed with its last user.

The registry here is the one module-level state of the engine. Naming a lock parses its URL and opens nothing.
"""

from __future__ import annotations

import getpass
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstead.events import log
from lockstead.protocol.record import Revocation
from lockstead.runtime.engine import Engine
from lockstead.settings import SETTING_NAMES, Settings
from lockstead.stores import url as urls
from lockstead.stores.port import Store, StoreUrl
from lockstead.values import LeaseTicket

_ENGINES: weakref.WeakValueDictionary[tuple[str, int], Engine] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed lock URL: the store, the key, and the settings that stood behind `?`."""

    store: StoreUrl
    key: str
    settings: Mapping[str, Any]


def target(url: str) -> Target:
    """Parse a lock's URL; ValueError with one clear line if it cannot be one."""
    parsed = urls.parse_lock(url)
    if parsed.key is None:
        raise ValueError("the URL names no key; write the lock's name after '#'")
    unknown = sorted(set(parsed.options) - SETTING_NAMES)
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r} in the URL; known are {', '.join(sorted(SETTING_NAMES))}")
    return Target(parsed, parsed.key, parsed.options)


def open_store(url: str, client: object | None) -> Store:
    """Open a store by its URL; a key or settings in it are a mistake."""
    parsed = urls.parse_store(url)
    if parsed.key is not None:
        raise ValueError(f"connect opens a store, not a lock: leave out '#{parsed.key}' and name it with client.lock()")
    if parsed.options:
        raise ValueError(f"settings belong to a lock: give {sorted(parsed.options)[0]!r} to client.lock()")
    return urls.open_store(parsed, client)


def shared_engine(target: Target, client: object | None) -> Engine:
    """Give the engine of a store, opening it if nobody in this process has; it lives as long as anybody uses it."""
    identity = (target.store.text, id(client) if client is not None else 0)
    with _LOCK:
        engine = _ENGINES.get(identity)
        if engine is None or engine.is_closed:
            engine = Engine(urls.open_store(target.store, client), log)
            _ENGINES[identity] = engine
        return engine


def _after_fork() -> None:
    # another thread may have held it at the fork
    global _LOCK  # noqa: PLW0603
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def person() -> str:
    """Name who sits here, for the audit."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


def revocation(reason: str, by: str | None, settings: Settings) -> Revocation:
    """Say who breaks a lease, and why; ValueError without a reason."""
    if not reason or not reason.strip():
        raise ValueError("breaking a lease needs a reason; the holder and the audit are told it")
    return Revocation(by or settings.owner or person(), reason)


def checked_ticket(ticket: LeaseTicket | str, key: str, store: str) -> LeaseTicket:
    """Read a ticket; ValueError if it is none, or one of another lock."""
    said = LeaseTicket.parse(ticket)
    if said.key != key:
        raise ValueError(f"the ticket is for {said.key!r}, this lock is {key!r}")
    if said.store != store:
        raise ValueError(f"the ticket is for a lock in {said.store}, this store is {store}")
    return said
