"""What is taken from text that somebody else wrote: bounded, parsed and never evaluated, and without raising.

Anybody who may write to a store writes this text. Every reader here returns a value, or None for what is none. Must not
know what a record means, nor which store holds it.
"""

from __future__ import annotations

import math
import re
from typing import Final

RECORD_BYTES_MAX: Final = 65_536
"""Bytes of a record as a store keeps it. What we write has 8 KiB of fields, and what a renewal or a break adds."""

WHOLE_DIGITS_MAX: Final = 40
COUNTER_MAX: Final = 1 << 53
"""Above it a number may lose its last digits in JSON. Milliseconds since the epoch reach it in the year 287,396."""

EPOCH_MAX: Final = 253_402_300_799.0
"""The last second of the year 9999, where the calendars of Python end."""

DAMAGE: Final = "damage"
"""The field by which a store says why a record cannot be read. It is shown, and decides nothing."""

_BLANKS: Final = re.compile("[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
_OBEYED: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""What a terminal, a log or a page obeys instead of showing: control characters, line separators, marks of direction,
invisible characters, lone surrogates. A fixed list, so that two versions of Python clean alike."""


def clean(text: str) -> str:
    """Return a text in one line, without anything that a terminal, a log or a page would obey."""
    if _OBEYED.search(text) is None:
        return text
    return _OBEYED.sub("\ufffd", _BLANKS.sub(" ", text))


def clean_lines(text: str) -> str:
    """Do as `clean` does, and keep the ends of lines."""
    return text if _OBEYED.search(text) is None else "\n".join(clean(line) for line in text.split("\n"))


def whole(text: str) -> int | None:
    """Read a whole number of at most 40 ASCII digits: `int` takes digits of every script, and fails on thousands."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= WHOLE_DIGITS_MAX else None


def decimal(text: str) -> float | None:
    """Read a finite number; None for what Python alone takes for one ("1_0", digits of other scripts)."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def instant(text: str) -> float | None:
    """Read seconds since the epoch that a calendar has."""
    return on_calendar(decimal(text))


def date_text(epoch: float | None) -> str | None:
    """Return an instant for people, to the second: "2026-11-21 07:27:10 UTC"; None if no calendar has it."""
    epoch = on_calendar(epoch)
    if epoch is None:
        return None
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"


def on_calendar(epoch: float | None) -> float | None:
    """Return an instant if a calendar has it."""
    return epoch if epoch is not None and 0 <= epoch <= EPOCH_MAX else None


TOO_LARGE: Final = f"it is larger than {RECORD_BYTES_MAX // 1024} KiB"
