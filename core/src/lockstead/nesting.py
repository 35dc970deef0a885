"""What waiting for a lock while another one is held means for the wrappers: a limit, and one line of warning.

Two that nest two locks in opposite order wait for each other, and no store can know. If possible, acquire both at once
(`Client.acquire_all`).
"""

from __future__ import annotations

from typing import Final

LIMIT: Final = 600.0
"""Seconds for which the holder of one lock waits for another, unless a timeout was given."""


def warning(key: str, held: str, limit: float | None) -> str:
    """Say that a wait for a key begins while another lock is held; held: which, as in "'apt' is held by this run"."""
    until = "" if limit is None else f"; this one gives up after {limit:g} s"
    return f"waiting for {key!r} while {held}: two that do so in opposite order wait for each other{until}"
