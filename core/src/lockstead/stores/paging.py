"""Cursors of listings that are ordered by name: a cursor is the last name of its page. Must not know a store."""

from __future__ import annotations

import json
from typing import Final

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import List
from lockstead.values import Name

CURSOR_CHARACTERS_MAX: Final = 16_384
"""Maximum length of a cursor; the longest name, escaped, is shorter."""


def refused_cursor() -> StoreRefused:
    """Return the error for a cursor that is not the store's own, or out of date."""
    return StoreRefused("the cursor of this listing is not one of this store, or out of date; begin the listing again")


def cursor_at(name: Name) -> str:
    """Return the cursor of the page after this name."""
    return json.dumps([name.space.value, name.key, name.part])


def last_name(command: List) -> Name | None:
    """Return the last name of the page before; None for the first page. StoreRefused if it is not of this listing.

    A name that is no UTF-8 has its bytes as "surrogateescape" decodes them.
    """
    if command.cursor is None:
        return None
    try:
        if len(command.cursor) > CURSOR_CHARACTERS_MAX:
            raise refused_cursor()
        match json.loads(command.cursor):
            case [command.space.value, str(key), str(part)] if command.shows(name := Name(key, command.space, part)):
                (key + part).encode(errors="surrogateescape")
                return name
    except (ValueError, RecursionError) as error:
        raise refused_cursor() from error
    raise refused_cursor()
