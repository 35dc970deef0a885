"""Descriptions of commands and replies in the event log. Used only if the log is kept."""

from __future__ import annotations

from typing import Any

from lockstead.protocol.commands import Absent, Conflict, Listing, Removed, Snapshot
from lockstead.values import Name, Space

_SHOWN = ("identity", "ttl", "closing", "revoked", "token", "tombstone")


def brief(thing: Any) -> str:
    """Return a short description of a command or a reply."""
    match thing:
        case Snapshot():
            fields = {key: thing.fields[key] for key in _SHOWN if key in thing.fields}
            times = "" if thing.updated_at is None else f" updated={thing.updated_at:.3f} now={thing.store_now:.3f}"
            token = "" if thing.token is None else f" token={thing.token}"
            return f"{thing.incarnation}.{thing.revision} {fields}{times}{token}"
        case Absent() | Removed() | Conflict():
            return type(thing).__name__.lower()
        case Listing():
            return f"{len(thing.entries)} listed"
    name = getattr(thing, "name", None)
    where = _where(name) if isinstance(name, Name) else ""
    expects = [str(getattr(thing, word)) for word in ("incarnation", "revision") if getattr(thing, word, None)]
    added = getattr(thing, "fields", {})
    fields = {key: added[key] for key in _SHOWN if key in added}
    return " ".join(
        filter(None, [type(thing).__name__, where, "@" + ".".join(expects) if expects else "", _text(fields)])
    )


def _where(name: Name) -> str:
    return name.key if name.space is Space.LOCK else f"{name.key}:{name.space.value}:{name.part}"


def _text(fields: dict[str, str]) -> str:
    return str(fields) if fields else ""
