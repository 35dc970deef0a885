"""Decides how records are listed on Redis: by the index of a lock's members and audits, or by looking through all keys.

Conversations only, like those of `route`. What is removed in between is not listed; what stands there throughout
is found. Must not know what the fields of a record mean.
"""

from __future__ import annotations

from typing import Any, Final

from lockstead.errors import StoreError
from lockstead.protocol.commands import Absent, List, Listing, Read, Snapshot
from lockstead.stores.redis.errors import refusal
from lockstead.stores.redis.route import Ask, Route, Talk, call_many, shown
from lockstead.stores.redis.wire import Keys, Words, answer, request
from lockstead.values import Name, Space

SCAN_COUNT: Final = b"1000"


def listed(command: List, keys: Keys, route: Route, *, is_routed: bool) -> Talk[Listing]:
    """Find the names, then read the records."""
    if command.key is None:
        names = yield from _scanned(command.space, keys, route, is_routed=is_routed)
    else:
        names = yield from _indexed(command.space, command.key, keys, route, is_routed=is_routed)
    wanted = [name for name in names if name.part.startswith(command.part_prefix)]
    reads = [Read(name) for name in wanted]
    requests = [request(read, keys) for read in reads]
    said = yield from call_many(requests, route, is_routed=is_routed)
    entries: list[tuple[Name, Snapshot]] = []
    for read, reply in zip(reads, said, strict=True):
        if isinstance(reply, StoreError):
            raise reply
        seen = answer(read, reply)
        if not isinstance(seen, Absent):
            entries.append((read.name, seen))
    return Listing(tuple(entries))


def _indexed(space: Space, key: str, keys: Keys, route: Route, *, is_routed: bool) -> Talk[list[Name]]:
    index = keys.index(Name(key, space))
    if index is None:
        return [Name(key, space)]
    parts = yield from _plain(index, (b"ZRANGE", index, b"0", b"-1"), route, is_routed=is_routed)
    # what is no text is nobody's: we could not have written it
    return [Name(key, space, part.decode()) for part in parts if _is_text(part)]


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(key: bytes, words: Words, route: Route, *, is_routed: bool) -> Talk[Any]:
    """Ask for something that changes nothing, following a slot that has moved."""
    for _ in range(3):
        address = yield from route.find(key)
        reply = (yield Ask(address, (words,), is_routed=is_routed))[0]
        if not isinstance(reply, Exception):
            return reply
        route.failed(address)
    raise refusal(reply, shown(address))


def _scanned(space: Space, keys: Keys, route: Route, *, is_routed: bool) -> Talk[list[Name]]:
    """Look through all keys of all masters: what stands there throughout is found."""
    found: dict[Name, None] = {}
    pattern = keys.pattern(space)
    for address in (yield from route.masters()):
        cursor = b"0"
        while True:
            words = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_COUNT)
            reply = (yield Ask(address, (words,), is_routed=is_routed))[0]
            if isinstance(reply, Exception):
                raise refusal(reply, shown(address))
            cursor, found_keys = reply
            for key in found_keys:
                name = keys.name(key)
                if name is not None and name.space is space:
                    found[name] = None
            if cursor == b"0":
                break
    return list(found)
