"""Sentences about a lock's holder, for the logs, events and states of wrappers. Each is one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstead.reading import date_text

if TYPE_CHECKING:
    from lockstead.unclean import Unclean
    from lockstead.views import LockInfo


def is_held(key: str, held: LockInfo | None) -> str:
    """Return a sentence that says who holds a lock, since when and why. None: the holder is not known.

    >>> is_held("apt", None)
    "'apt' is held"
    """
    return f"{key!r} is held{_by(held)}"


def waiting_for(key: str, held: LockInfo | None) -> str:
    """Return a sentence that says which lock is waited for, and who holds it. None: the holder is not known.

    >>> waiting_for("apt", None)
    "waiting for 'apt'"
    """
    return f"waiting for {key!r}" if held is None else f"waiting for {key!r}, held{_by(held)}"


def repair_first(found: Unclean) -> str:
    """Return a sentence that says why a run is refused after an unclean end, and what to do."""
    return (
        f"{found}: repair what it left, then acquire and release {found.key!r} once "
        "('lockstead run LOCK -- true'); until then on_unclean='fail' refuses every run"
    )


def may_need_repair(found: object) -> str:
    """Return a sentence that warns of an unclean end; found: an `Unclean`, or its text."""
    return f"{found}: what it left may need repair"


def _by(held: LockInfo | None) -> str:
    if held is None:
        return ""
    acquired_at = date_text(held.acquired_epoch)
    since = f" since {acquired_at}" if acquired_at else ""
    why = f" (purpose: {held.purpose})" if held.purpose else ""
    token = f", token {held.token}" if held.token is not None else ""
    who = repr(held.owner)
    if held.readers:
        who = "1 reader" if len(held.readers) == 1 else f"{len(held.readers)} readers"
    elif held.permits is not None:
        who = held.owner or "nobody, as its limit is 0"
    return f" by {who}{since}{why}{token}"
