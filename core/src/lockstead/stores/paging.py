"""Cursors of listings: JSON that names the listing and where its next page begins. Must not know a store."""

from __future__ import annotations

import json
from typing import Final

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import List

CURSOR_CHARACTERS_MAX: Final = 16_384
"""Maximum length of a cursor; the longest names, escaped, are shorter."""


def refused_cursor() -> StoreRefused:
    """Return the error for a cursor that is not the store's own, or out of date."""
    return StoreRefused("the cursor of this listing is not one of this store, or out of date; begin the listing again")


def cursor(command: List, *place: str) -> str:
    """Return the cursor of the page after a place: the last name of the page, or what else the store needs."""
    return json.dumps([*_listing(command), *place])


def place(command: List, length: int) -> tuple[str, ...] | None:
    """Return the place that the cursor of a command has, of so many texts; None for the first page.

    Raises StoreRefused if it is not a cursor of the same listing. A text may contain anything, even surrogates.
    """
    if command.cursor is None:
        return None
    try:
        found = json.loads(command.cursor) if len(command.cursor) <= CURSOR_CHARACTERS_MAX else None
    except (ValueError, RecursionError) as error:
        raise refused_cursor() from error
    listing = _listing(command)
    if not isinstance(found, list) or len(found) != len(listing) + length or found[: len(listing)] != listing:
        raise refused_cursor()
    texts = tuple(text for text in found[len(listing) :] if isinstance(text, str))
    if len(texts) != length:
        raise refused_cursor()
    return texts


def text_place(command: List, length: int) -> tuple[str, ...] | None:
    """Return the same, of texts that every store can take: valid Unicode without NUL."""
    texts = place(command, length)
    try:
        if b"\0" in "".join(texts or ()).encode():
            raise refused_cursor()
    except UnicodeEncodeError as error:
        raise refused_cursor() from error
    return texts


def _listing(command: List) -> list[str | None]:
    return [command.space.value, command.key, command.part_prefix]
