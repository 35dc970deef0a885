"""How records are listed on Redis: by the index of a lock's members and audits, or by scanning all keys.

Scripts only, like those of `route`. A record that is removed meanwhile is not listed; one that exists throughout is.
Must not know what the fields of a record mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lockstead.errors import StoreError
from lockstead.protocol.commands import Absent, List, Listing, Read, Snapshot
from lockstead.reading import whole
from lockstead.stores import paging
from lockstead.stores.bounds import LISTING_MAX
from lockstead.stores.kept import unreadable
from lockstead.stores.redis.access import Address
from lockstead.stores.redis.encoding import Keys, answer, glance, measured
from lockstead.stores.redis.errors import refusal
from lockstead.stores.redis.resp import ServerError, Words
from lockstead.stores.redis.route import Ask, Asking, Route, call_many
from lockstead.stores.redis.scripts import SCAN
from lockstead.stores.servers import endpoint
from lockstead.values import Name, Space

SCAN_COUNT: Final = b"1000"
SCANS_MAX: Final = 100
"""Scans of one page: a database may have few records among many keys of others."""

_RUN: Final = re.compile(r"[0-9a-f]{0,64}")
PAGE: Final = 1000
"""Records that are asked for at once."""

GLANCE_BYTES: Final = 1024
"""Bytes of a record that is read in the first pass: most have less. Larger ones are read afterwards, smallest first."""

GLANCES_ROOM: Final = LISTING_MAX // 4
ROOM: Final = LISTING_MAX // 2
"""Bytes of the records that a listing reads, in the first pass and in all: what is left is for names and sizes."""

NOT_READ: Final = f"it is one of the largest records of a listing of more than {ROOM >> 20} MiB, and was not read"


def listed(command: List, keys: Keys, route: Route) -> Asking[Listing]:
    """Find the names, then read the records: the small ones first, so that large ones leave room for them."""
    next_cursor = None
    if command.key is None:
        names, next_cursor = yield from _scanned(command, keys, route)
    else:
        if command.cursor is not None:
            raise paging.refused_cursor()  # the records of one key are all in one page
        names = yield from _indexed(command.space, command.key, keys, route)
    wanted = [name for name in names if name.part.startswith(command.part_prefix)]
    found: dict[Name, Snapshot] = {}
    large: dict[Name, int] = {}
    room = GLANCES_ROOM
    for page in _pages(wanted):
        most = GLANCE_BYTES if room > 0 else 0
        replies = yield from call_many([glance(name, most, keys) for name in page], route)
        room -= _sort(page, replies, found, large)
    room += ROOM - GLANCES_ROOM
    fits: list[Name] = []
    for name, size in sorted(large.items(), key=lambda one: one[1]):
        room -= size
        if room < 0:
            break
        fits.append(name)
    for page in _pages(fits):
        asked = [glance(name, large[name], keys) for name in page]
        _sort(page, (yield from call_many(asked, route)), found, {})
    return Listing(tuple((name, found[name]) for name in wanted if name in found), next_cursor)


def _pages(names: list[Name]) -> Iterator[list[Name]]:
    return (names[at : at + PAGE] for at in range(0, len(names), PAGE))


def _sort(page: list[Name], replies: list[Any], found: dict[Name, Snapshot], large: dict[Name, int]) -> int:
    """Note what was read and what was only measured, by which it can be removed; return how many bytes came."""
    came = 0
    for name, reply in zip(page, replies, strict=True):
        if isinstance(reply, StoreError):
            raise reply
        size = None
        if isinstance(reply, bytes):
            came += len(reply)
            size = measured(reply)
        if size is not None:
            large[name] = size[2]
            found[name] = Snapshot(unreadable(NOT_READ), *size[:2])
            continue
        seen = answer(Read(name), reply)
        if isinstance(seen, Absent):
            found.pop(name, None)
        else:
            found[name] = seen
    return came


def _indexed(space: Space, key: str, keys: Keys, route: Route) -> Asking[list[Name]]:
    index = keys.index(Name(key, space))
    if index is None:
        return [Name(key, space)]
    parts = yield from _plain(index, (b"ZRANGE", index, b"0", b"-1"), route)
    # what is not text was not written by lockstead, and is found absent
    return [Name(key, space, part) for part in dict.fromkeys(part.decode(errors="replace") for part in parts)]


def _plain(key: bytes, words: Words, route: Route) -> Asking[Any]:
    """Ask for something that changes nothing, following a slot that has moved."""
    for _ in range(3):
        address = yield from route.find(key)
        reply = (yield Ask(address, (words,)))[0]
        if not isinstance(reply, ServerError):
            return reply
        route.failed(address)
    raise refusal(reply, endpoint(address))


def _scanned(command: List, keys: Keys, route: Route) -> Asking[tuple[list[Name], str | None]]:
    """Scan all keys of all masters; a record that exists throughout is found. A cursor is returned once a page is full.

    A scan means nothing to another server, to the same one after a restart, or after slots have moved.
    """
    space, page = command.space, command.page
    masters, layout = yield from route.layout()
    found: dict[Name, None] = {}
    pattern, longest = keys.pattern(space), b"%d" % keys.longest(space)
    number, cursor, run = _begin(command, masters, layout)
    scans = 0
    while number < len(masters):
        address = masters[number]
        if page is not None and (len(found) >= page or scans == SCANS_MAX):
            return list(found), paging.cursor(command, endpoint(address), cursor.decode(), run.decode(), layout)
        count = SCAN_COUNT if page is None else b"%d" % (page - len(found))
        # by a script, for a name that is none of ours can be as long as a record
        words = (b"EVAL", SCAN.text, b"0", cursor, pattern, count, longest, run)
        reply = (yield Ask(address, (words,)))[0]
        if isinstance(reply, ServerError):
            raise refusal(reply, endpoint(address))
        cursor, found_keys, run = reply
        scans += 1
        if not cursor:
            raise paging.refused_cursor()
        for key in found_keys:
            name = keys.name(key)
            if name is not None and name.space is space:
                found[name] = None
        if cursor == b"0":
            number, run = number + 1, b""
    if page is not None and (yield from route.layout())[1] != layout:
        raise paging.refused_cursor()
    return list(found), None


def _begin(command: List, masters: Sequence[Address], layout: str) -> tuple[int, bytes, bytes]:
    """Return the number of the master with which a page begins, the cursor of its scan, and its run."""
    place = paging.text_place(command, 4)
    if place is None:
        return 0, b"0", b""
    where, cursor, run, seen = place
    addresses = [endpoint(address) for address in masters]
    if where not in addresses or whole(cursor) is None or not _RUN.fullmatch(run) or seen != layout:
        raise paging.refused_cursor()
    return addresses.index(where), cursor.encode(), run.encode()
