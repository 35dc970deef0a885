"""Parsers of text from other writers: bounded, never evaluated, and without exceptions.

Anyone with write access to a store may write this text. Every parser returns a value, or None for invalid text. Must
not know what a record means, or which store has it.
"""

from __future__ import annotations

import math
import re
from typing import Final
from urllib.parse import urlsplit

RECORD_BYTES_MAX: Final = 65_536
"""Maximum bytes of a record in a store. We write 8 KiB of fields, plus what a renewal or a break adds."""

WHOLE_DIGITS_MAX: Final = 40
COUNTER_MAX: Final = 1 << 53
"""Above it a number may lose its last digits in JSON. Milliseconds since the epoch reach it in the year 287,396."""

EPOCH_MAX: Final = 253_402_300_799.0
"""The last second of the year 9999, where the calendars of Python end."""

DAMAGE: Final = "damage"
"""The field with a store's reason why a record cannot be read. It is for display only."""

_BLANKS: Final = re.compile("[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
_OBEYED: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Characters that a terminal, a log or a page obeys instead of showing: control characters, line separators, marks
of direction, invisible characters, lone surrogates. A fixed list, so that two versions of Python clean alike."""


def clean(text: str) -> str:
    """Return a text in one line, without anything that a terminal, a log or a page would obey."""
    if _OBEYED.search(text) is None:
        return text
    return _OBEYED.sub("\ufffd", _BLANKS.sub(" ", text))


def clean_lines(text: str) -> str:
    """Like `clean`, but keep line breaks."""
    return text if _OBEYED.search(text) is None else "\n".join(clean(line) for line in text.split("\n"))


def whole(text: str) -> int | None:
    """Parse a whole number of at most 40 ASCII digits: `int` accepts digits of every script, and fails on thousands."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= WHOLE_DIGITS_MAX else None


def decimal(text: str) -> float | None:
    """Parse a finite number; None for what only Python accepts ("1_0", digits of other scripts)."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def instant(text: str) -> float | None:
    """Parse seconds since the epoch, within the range of a calendar."""
    return on_calendar(decimal(text))


LINK_CHARACTERS_MAX: Final = 2_000

_LINK: Final = re.compile(r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?(?:[/?#][!-~]*)?", re.IGNORECASE)
"""A URL of http or https in printable ASCII. It names no user: `https://well-known.example@other/` misleads."""


def link(text: str) -> str | None:
    """Return a text if it is a URL that a page may link to: http or https, at most 2,000 characters."""
    if len(text) > LINK_CHARACTERS_MAX or not _LINK.fullmatch(text):
        return None
    try:
        _ = urlsplit(text).port
    except ValueError:  # no such port, or no address in the brackets: whoever shows the link would fail at it
        return None
    return text


_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,200})?")
"""Of W3C Trace Context. A later version may add parts at the end, which are ignored."""


def traceparent(text: str) -> str | None:
    """Parse a W3C `traceparent`: its four parts if it is valid by that standard."""
    found = _TRACEPARENT.fullmatch(text[:256])
    if found is None or found[1] == "ff" or not found[2].strip("0") or not found[3].strip("0"):
        return None
    if found[1] == "00" and found[5] is not None:
        return None
    return "-".join(found.groups()[:4])


def date_text(epoch: float | None) -> str | None:
    """Return an instant for people, to the second: "2026-11-21 07:27:10 UTC"; None if it is out of range."""
    epoch = on_calendar(epoch)
    if epoch is None:
        return None
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"


def on_calendar(epoch: float | None) -> float | None:
    """Return an instant if it is within the range of a calendar."""
    return epoch if epoch is not None and 0 <= epoch <= EPOCH_MAX else None


TOO_LARGE: Final = f"it is larger than {RECORD_BYTES_MAX // 1024} KiB"
