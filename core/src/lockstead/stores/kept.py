"""Decides how a store reads back the map of text that it keeps, and what it shows of a record that cannot be read.

Total: whoever may write to the store wrote what is read here. Must not know what the fields mean, nor any store.
"""

from __future__ import annotations

import json
from typing import Final

from lockstead.reading import DAMAGE, RECORD_BYTES_MAX, TOO_LARGE

NO_MAP: Final = "its fields are no map of text"


def map_of_text(written: str | bytes | None) -> dict[str, str]:
    """Read the JSON object that a store keeps for a record; for what is none, what `unreadable` gives."""
    if written is None or len(written) > RECORD_BYTES_MAX:
        return unreadable(TOO_LARGE)
    try:
        text = written.decode() if isinstance(written, bytes) else written
        said = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return unreadable(NO_MAP)
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        return unreadable(NO_MAP)
    # JSON can write half a character, which no store takes back
    return (
        {_whole_characters(name): _whole_characters(value) for name, value in said.items()} if "\\u" in text else said
    )


def _whole_characters(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def unreadable(why: str) -> dict[str, str]:
    """Give the fields of a record that cannot be read: one of ours, so that an operator may remove it, and nobody's."""
    return {"v": "1", DAMAGE: why}
