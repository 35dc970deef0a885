"""Decides how the renewals of many leases go out together: one KeepAlive for all of them, one range that proves it.

What does not fit (a record with fields to write, one that hangs elsewhere by now) is left to be asked alone. Must not
know connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Absent, Command, Extend, Read
from lockstead.stores import etcd_wire as wire
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd_extend import judged
from lockstead.stores.etcd_steps import Beat, Steps, ask, beats_in, record_in, term_of
from lockstead.stores.etcd_talk import Talker
from lockstead.stores.etcd_wire import Json, Root
from lockstead.values import Name

GETS_MAX: Final = 100
"""Records that are read one by one inside of one transaction; etcd takes up to 128 operations. More are one range."""

STRANGERS_MAX: Final = 1000
"""Records of others, between ours, that a range may show before reading one by one is less."""


def batch(talker: Talker, commands: Sequence[Command[Any]]) -> Steps[list[Any]]:
    """Carry out what can be carried out together; None stands for what is to be asked alone."""
    answers: list[Any] = [None] * len(commands)
    leases: dict[str, bool] = {}
    hanging: dict[int, str] = {}
    together: dict[int, Extend | Read] = {}
    names = {command.name for command in commands if isinstance(command, Extend | Read)}
    for number, command in enumerate(commands):
        if isinstance(command, Read):
            together[number] = command
        if isinstance(command, Extend) and not command.fields and command.incarnation is not None:
            known = talker.leases.of(command.name, command.incarnation, boot_now(), names)
            if known is not None:
                together[number], hanging[number], leases[known[0]] = command, *known
    if len(together) < 2:
        return answers
    beats: dict[str, Beat] = {}
    if leases:
        request = wire.keep_alive(*leases)
        response = yield request
        beats = beats_in(talker.leases, request, response, leases)
    seen, term = yield from _seen(talker.root, {command.name for command in together.values()})
    for number, command in together.items():
        if command.name in seen:
            answers[number] = _answer(talker, command, seen[command.name], beats.get(hanging.get(number, "")), term)
    return answers


def _answer(talker: Talker, command: Command[Any], item: Json | None, beat: Beat | None, term: str) -> Any:
    try:
        kv = record_in([item] if item is not None else None)
    except StoreRefused as error:
        return error
    if isinstance(command, Extend):
        return judged(talker.leases, command, kv, beat, term)
    return Absent() if kv is None else kv.snapshot()


def _seen(root: Root, names: set[Name]) -> Steps[tuple[dict[Name, Json | None], str]]:
    """Read many records; missing is what was not read. The term is empty if it changed on the way."""
    seen: dict[Name, Json | None] = {}
    terms: set[str] = set()
    if len(names) > GETS_MAX:
        for space, group in groupby(sorted(names, key=lambda name: name.space.value), key=lambda name: name.space):
            # by the whole key: a colon sorts above digits, so that "key-1:" comes after "key-10:"
            wanted = sorted(group, key=lambda name: root.base(name) + ":")
            limit = str(2 * len(wanted) + STRANGERS_MAX)
            start, stop = root.base(wanted[0]) + ":", wire.end_of(root.base(wanted[-1]) + ":")
            body = yield from ask(wire.range_of("Range", start, stop, limit=limit))
            terms.add(term_of(body))
            if not body.get("more"):
                found = {root.name_of(wire.text(item["key"]), space): item for item in body.get("kvs", ())}
                seen.update({name: found.get(name) for name in wanted})
    for some in _chunks(names - seen.keys()):
        gets = [
            {"request_range": wire.get(base, wire.end_of(base))} for base in (root.base(name) + ":" for name in some)
        ]
        body = yield from ask(wire.txn("Range", [], gets, []))
        terms.add(term_of(body))
        for name, one in zip(some, body["responses"], strict=True):
            found_one = one["response_range"].get("kvs")
            seen[name] = found_one[0] if found_one else None
    return seen, terms.pop() if len(terms) == 1 else ""


def _chunks(names: Iterable[Name]) -> list[list[Name]]:
    ordered = list(names)
    return [ordered[first : first + GETS_MAX] for first in range(0, len(ordered), GETS_MAX)]
