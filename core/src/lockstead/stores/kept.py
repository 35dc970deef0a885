"""Decoding of stored records, and what is shown of a record that cannot be decoded.

The functions accept any input, because anyone with write access may have written it. Must not know what the fields
mean, nor any store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError
from lockstead.protocol.commands import Extend, Remove, Replace
from lockstead.reading import DAMAGE, RECORD_BYTES_MAX, TOO_LARGE

T = TypeVar("T")

NO_MAP: Final = "its fields are not a map of text"
NO_HEAD: Final = "the store's own data of it is missing"

to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Encode a value as JSON. Made once: `json.dumps` would make an encoder for each call."""

DAMAGED: Final = "damaged-"
"""Prefix of the incarnation of an unreadable record; such an incarnation identifies exactly what is stored."""


MALFORMED: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""Errors that decoding a reply raises if it does not have the expected shape."""


def senseless(server: str, error: Exception) -> OutcomeUnknown:
    """Return the error of a command whose reply cannot be decoded: the command may have been carried out."""
    return OutcomeUnknown(f"no clear answer from {server}: its reply is malformed ({type(error).__name__})")


def outcome(call: Callable[..., T], *arguments: Any) -> T | StoreError:
    """Return what a call returns, or the StoreError that it raises."""
    try:
        return call(*arguments)
    except StoreError as error:
        return error


def json_object(written: bytes) -> dict[str, Any]:
    """Return the JSON object of a reply; an empty dict if it is not one."""
    try:
        decoded = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def map_of_text(written: object) -> dict[str, str]:
    """Return the fields of a record from its stored JSON object; the fields of `unreadable` if it is invalid.

    None stands for a record that the store found too large and did not send.
    """
    if written is None:
        return unreadable(TOO_LARGE)
    if not isinstance(written, str | bytes):
        return unreadable(NO_MAP)
    if len(written) > RECORD_BYTES_MAX:
        return unreadable(TOO_LARGE)
    try:
        text = written.decode() if isinstance(written, bytes) else written
        decoded = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return unreadable(NO_MAP)
    if not isinstance(decoded, dict) or not all(isinstance(value, str) for value in decoded.values()):
        return unreadable(NO_MAP)
    # JSON can contain a lone surrogate, which no store accepts
    if "\\u" in text:
        return {_whole_characters(name): _whole_characters(value) for name, value in decoded.items()}
    return decoded


def _whole_characters(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def unreadable(why: str) -> dict[str, str]:
    """Return the fields of an unreadable record: ours, so that an operator may remove it, but without a holder."""
    return {"v": "1", DAMAGE: why}


def bounded(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields that a client library has decoded, if they are text and within the size of a record."""
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in fields.items()):
        return unreadable(NO_MAP)
    if sum(map(len, fields)) + sum(map(len, fields.values())) > RECORD_BYTES_MAX:
        return unreadable(TOO_LARGE)
    return dict(fields)


def is_expected(command: Extend | Replace | Remove, incarnation: str, revision: str) -> bool:
    """Return whether a record is the one that a command expects."""
    return command.incarnation in (None, incarnation) and command.revision in (None, revision)


def is_damaged(fields: Mapping[str, str]) -> bool:
    """Return whether these fields were returned by `unreadable`."""
    return DAMAGE in fields


def damaged_incarnation(kept: object) -> str:
    """Return an incarnation for an unreadable record, so that an operator removes exactly that and nothing newer."""
    return DAMAGED + sha256(repr(kept).encode("utf-8", "backslashreplace")).hexdigest()[:32]
