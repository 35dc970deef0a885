"""How a store reads back the map of text that it keeps, and what it shows of a record that cannot be read.

Total: whoever may write to the store wrote what is read here. Must not know what the fields mean, nor any store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Extend, Remove, Replace
from lockstead.reading import DAMAGE, RECORD_BYTES_MAX, TOO_LARGE

NO_MAP: Final = "its fields are not a map of text"
NO_HEAD: Final = "what the store itself keeps with it is not there"

DAMAGED: Final = "damaged-"
"""Begins the incarnation of a record whose own cannot be read: it stands for exactly what is kept there."""


MALFORMED: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""What reading an answer raises that is of another shape than any of the server's own."""


def senseless(server: str, error: Exception) -> OutcomeUnknown:
    """Return the error of a command whose answer cannot be read: what was asked for may have been done."""
    return OutcomeUnknown(f"no clear answer from {server}: it says what no such server does ({type(error).__name__})")


def json_object(written: bytes) -> dict[str, Any]:
    """Return the JSON object that an answer consists of; empty if it is none."""
    try:
        said = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def map_of_text(written: object) -> dict[str, str]:
    """Read the JSON object that a store keeps for a record; for what is none, what `unreadable` gives.

    None is what a store gives of a record that it measured and did not send.
    """
    if written is None:
        return unreadable(TOO_LARGE)
    if not isinstance(written, str | bytes):
        return unreadable(NO_MAP)
    if len(written) > RECORD_BYTES_MAX:
        return unreadable(TOO_LARGE)
    try:
        text = written.decode() if isinstance(written, bytes) else written
        said = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return unreadable(NO_MAP)
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        return unreadable(NO_MAP)
    # JSON can write half a character, which no store takes back
    if "\\u" in text:
        return {_whole_characters(name): _whole_characters(value) for name, value in said.items()}
    return said


def _whole_characters(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def unreadable(why: str) -> dict[str, str]:
    """Return fields of a record that cannot be read: one of ours, so that an operator may remove it, and nobody's."""
    return {"v": "1", DAMAGE: why}


def bounded(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields that a client library has read already, if they are text and no more than a record has."""
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in fields.items()):
        return unreadable(NO_MAP)
    if sum(map(len, fields)) + sum(map(len, fields.values())) > RECORD_BYTES_MAX:
        return unreadable(TOO_LARGE)
    return dict(fields)


def is_expected(command: Extend | Replace | Remove, incarnation: str, revision: str) -> bool:
    """Return whether a record is the one that a command expects."""
    return command.incarnation in (None, incarnation) and command.revision in (None, revision)


def is_damaged(fields: Mapping[str, str]) -> bool:
    """Return whether these are fields that `unreadable` gave."""
    return DAMAGE in fields


def damaged_incarnation(kept: object) -> str:
    """Return an incarnation for what cannot be read, so that an operator removes that very thing and nothing newer."""
    return DAMAGED + sha256(repr(kept).encode("utf-8", "backslashreplace")).hexdigest()[:32]
