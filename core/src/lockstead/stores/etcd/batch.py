"""Renewal of many records together: one KeepAlive for their leases, and one read that proves it.

Records on a lease that was retired are moved, many in one transaction. Other commands (an Extend with fields, a record
that hangs on an unknown lease) are carried out one by one. Must not know connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from lockstead.protocol.commands import Absent, Command, Extend, Read
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.encoding import Json, Kv, Root
from lockstead.stores.etcd.errors import LeaseGone
from lockstead.stores.etcd.extend import counted, judged
from lockstead.stores.etcd.operations import Operations
from lockstead.stores.etcd.scripts import Operation, ask, keep_alive, shared, term_of
from lockstead.stores.kept import is_damaged
from lockstead.values import Name

GETS_MAX: Final = 40
"""Records that are read one by one inside of one transaction; etcd takes up to 128 operations, three a record."""

RANGED_MIN: Final = 100
"""Records from which on all are read as one range."""

STRANGERS_MAX: Final = 1000
"""Foreign records, between ours, in a range; above that, ours are read one by one."""


MOVES_MAX: Final = 60
"""Records that are moved to another lease in one transaction."""


def batch(operations: Operations, commands: Sequence[Command[Any]], *, is_ranged: bool = True) -> Operation[list[Any]]:
    """Carry out what can be carried out together; None stands for a command to be carried out alone.

    is_ranged: foreign records between ours may be read as well.
    """
    answers: list[Any] = [None] * len(commands)
    plain = [
        (n, one) for n, one in enumerate(commands) if isinstance(one, Extend) and not one.fields and one.incarnation
    ]
    records = [(one.name, one.incarnation or "") for _number, one in plain]
    held = zip(plain, operations.leases.wanted(records, boot_now()), strict=True)
    renewals = {number: (one, hold) for (number, one), hold in held if hold is not None}
    reads = {number: one for number, one in enumerate(commands) if isinstance(one, Read)}
    if len(renewals) + len(reads) < 2:
        return answers
    leases = {hold.lease for _one, hold in renewals.values() if hold.is_good}
    beats = (yield from keep_alive(*leases)) if leases else {}
    for gone in leases - beats.keys():
        operations.leases.retire(gone)
    names = {one.name for one, _hold in renewals.values()} | {one.name for one in reads.values()}
    seen, term = yield from _seen(operations.root, names, is_ranged=is_ranged)
    for number, read in reads.items():
        kv = seen.get(read.name)
        answers[number] = kv.snapshot() if isinstance(kv, Kv) else kv
    moving: dict[int, tuple[Name, Kv]] = {}
    for number, (one, hold) in renewals.items():
        kv = seen.get(one.name)
        if one.name not in seen or (isinstance(kv, Kv) and is_damaged(kv.fields)):
            continue
        standing = kv if isinstance(kv, Kv) else None
        answers[number] = judged(operations.leases, one, standing, beats.get(hold.lease), term)
        if answers[number] is None and standing is not None and standing.lease == hold.lease and not hold.is_good:
            moving[number] = one.name, standing
    yield from _moved(operations, moving, answers)
    return answers


def _moved(operations: Operations, moving: dict[int, tuple[Name, Kv]], answers: list[Any]) -> Operation[None]:
    """Move records to the current lease, many in one transaction; those that have changed are left out."""
    for ttl in {encoding.ttl_of(kv.min_retention) for _name, kv in moving.values()}:
        group = [number for number, (_name, kv) in moving.items() if encoding.ttl_of(kv.min_retention) == ttl]
        for first in range(0, len(group), MOVES_MAX):
            beat = yield from shared(operations.leases, ttl)
            some = [(number, *moving[number]) for number in group[first : first + MOVES_MAX]]
            moved = [(number, name, replace(kv, lease=beat.lease, is_alone=False)) for number, name, kv in some]
            for _number, name, kv in moved:
                operations.leases.hangs(name, beat.lease, kv.created, boot_now())
            same = [encoding.compared(encoding.at(kv.key), "mod_revision", kv.changed) for _, _, kv in moved]
            puts = [encoding.put_record(kv) for _, _, kv in moved]
            try:
                body = yield from ask(encoding.txn("Extend", puts, when=same))
            except LeaseGone:
                operations.leases.retire(beat.lease)
                continue
            if not body.get("succeeded") or not beat.is_proved(term_of(body)):
                continue
            for number, name, kv in moved:
                now = replace(kv, changed=body["header"]["revision"])
                answers[number] = counted(operations.leases, name, now, beat)


def _seen(root: Root, names: set[Name], *, is_ranged: bool) -> Operation[tuple[dict[Name, Kv | Absent], str]]:
    """Return many records, except those that were not read, and the term; empty if it changed meanwhile."""
    seen: dict[Name, Kv | Absent] = {}
    terms: set[str] = set()
    if is_ranged and len(names) > RANGED_MIN:
        for space, group in groupby(sorted(names, key=lambda name: name.space.value), key=lambda name: name.space):
            # by the whole key: a colon sorts above digits, so that "key-1:" comes after "key-10:"
            wanted = sorted(group, key=lambda name: root.base(name) + ":")
            limit = str(2 * len(wanted) + STRANGERS_MAX)
            keys = encoding.between(root.base(wanted[0]) + ":", encoding.end_of(root.base(wanted[-1]) + ":"))
            body = yield from ask(encoding.range_of("Range", keys, limit=limit))
            terms.add(term_of(body))
            if not body.get("more"):
                found: dict[Name | None, list[Json]] = {}
                for item in body.get("kvs", ()):
                    found.setdefault(root.name_of(encoding.text(item["key"]), space), []).append(item)
                for name in wanted:
                    slots = found.get(name)
                    seen[name] = encoding.kv_of(encoding.first_of(slots)) if slots else Absent()
    left = list(names - seen.keys())
    for some in (left[first : first + GETS_MAX] for first in range(0, len(left), GETS_MAX)):
        gets = [get for name in some for get in encoding.seeking(root.base(name))]
        body = yield from ask(encoding.txn("Range", gets))
        terms.add(term_of(body))
        for number, name in enumerate(some):
            first = number * encoding.SOUGHT
            seen[name] = encoding.sought(body["responses"][first : first + encoding.SOUGHT]) or Absent()
    return seen, terms.pop() if len(terms) == 1 else ""
