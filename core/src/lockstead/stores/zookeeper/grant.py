"""How a lock is granted: one transaction that makes the record, and proves that no waiter is overtaken.

The server judges in that transaction whose turn it is. Places are only below the node of the queue, so a waiter without
one makes the queue's node and deletes it again, which nobody can while it is there; the first one deletes its place.
It stays first as long as the place is there: numbers only grow while there is any.

Must not know sessions, limits or what the fields of a record mean.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kazoo import exceptions as kz

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Absent, Conflict, Snapshot
from lockstead.script import Script
from lockstead.stores.zookeeper.answers import refused_at
from lockstead.stores.zookeeper.encoding import Tree, encode_record, in_order
from lockstead.stores.zookeeper.requests import Answers, Operation, Request, ask, make, remove_strays, transaction
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.queue import WaitQueue

_QUEUED: Final = Conflict(is_queued=True)

LOOKS_MAX: Final = 16
"""Looks at one queue, each but the first after something was cleared away there."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The record that a Replace takes the place of: its mark, and the version of its node."""

    mark: str
    version: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """The operations at the end of a grant that prove whose turn it is. node: the place that they take out, or ""."""

    operations: tuple[Operation, ...] = ()
    node: str = ""


class Grants:
    """How Create and Replace write a record of a new incarnation. queue has the places of this process."""

    def __init__(self, tree: Tree, queue: WaitQueue) -> None:
        self._tree = tree
        self._queue = queue

    def grant(
        self, name: Name, fields: Mapping[str, str], waiter_id: str, expected: Expected | None
    ) -> Script[Request, Answers, Snapshot | Conflict | Absent]:
        """Write a record in the place of the one expected, or of none. Conflict(is_queued) if it is not the turn.

        What is sent again was refused before, as a whole: only one of these transactions can ever be carried out.
        """
        if not waiter_id:
            return (yield from self._grant(name, fields, "", expected))
        with self._queue.granting((name, waiter_id)):
            return (yield from self._grant(name, fields, waiter_id, expected))

    def _grant(
        self, name: Name, fields: Mapping[str, str], waiter_id: str, expected: Expected | None
    ) -> Script[Request, Answers, Snapshot | Conflict | Absent]:
        path, kept, mark = self._tree.record(name), dict(fields), os.urandom(16).hex()
        data = encode_record(mark, kept)
        before = 0 if expected is None else 3
        makes = "enter" if name.space is Space.AUDIT else "create"
        turn = yield from self._turn(name, waiter_id)
        while isinstance(turn, _Turn):
            operations: list[Operation] = []
            if expected is not None:
                # written before it is deleted: watchers are notified of a change, not of a free lock
                replaced: Operation = ("set", path, b"", expected.version)
                operations += [("delete", f"{path}/{expected.mark}"), replaced, ("delete", path)]
            # of these operations the answer to the last alone says which transaction this was
            operations += [(makes, path, b""), (makes, f"{path}/{mark}", b""), ("set", path, data, 0)]
            results = (yield transaction([*operations, *turn.operations]))[0]
            if makes == "enter" and any(isinstance(one, kz.InvalidACLError) for one in results):
                makes = "create"  # the writer has no user whom the ACL of an entry could name, as where it names hosts
                continue
            refused = refused_at(results)
            if refused is None:
                if waiter_id:
                    self._queue.granted((name, waiter_id), turn.node)
                stat = results[before + 2]
                return Snapshot(kept, mark, str(stat.version), token=stat.mzxid)
            index, error = refused
            if index < before:
                check_below(name, path, error)
                return (yield from conflict_or_absent(path))
            if index >= before + 3:
                turn = yield from self._next_turn(name, turn, error)
            elif isinstance(error, kz.NodeExistsError):
                return Conflict()
            else:
                yield from make(self._tree.space(name.space))
        return turn

    # --- whose turn ----------------------------------------------------------------------------------------------

    def _turn(self, name: Name, waiter_id: str) -> Script[Request, Answers, _Turn | Conflict]:
        if not waiter_id:
            return _Turn()
        node, is_first = self._queue.turn((name, waiter_id))
        if not node:
            return self._newcomer(name)
        if not is_first:
            order = yield from self._order(name)
            if node not in order:  # it went with its session
                return self._newcomer(name)
            if order[0] != node:
                return _QUEUED
        return _Turn((("delete", f"{self._tree.queue(name)}/{node}"),), node)

    def _newcomer(self, name: Name) -> _Turn:
        queue = self._tree.queue(name)
        return _Turn((("create", queue, b""), ("delete", queue)))

    def _next_turn(self, name: Name, turn: _Turn, error: Exception) -> Script[Request, Answers, _Turn | Conflict]:
        """Return what to try after a turn that the server did not grant."""
        if turn != self._newcomer(name):
            # the place went with its session, or the queue has another waiter by now, or its node has gone
            return _QUEUED if isinstance(error, kz.NotEmptyError) else self._newcomer(name)
        if isinstance(error, kz.NodeExistsError):
            # there is a place, or the last waiter left without clearing up
            order = yield from self._order(name)
            return _QUEUED if order else _Turn((("delete", self._tree.queue(name)),))
        yield from make(self._tree.queues)
        return turn

    def _order(self, name: Name) -> Script[Request, Answers, list[str]]:
        queue = self._tree.queue(name)
        for _ in range(LOOKS_MAX):
            found = (yield ask("get_children", queue))[0]
            if isinstance(found, kz.NoNodeError):
                return []
            order = in_order(found)
            # what is not a place of ours blocks a newcomer, and the first of the queue blocks all others
            strays = [*(set(found) - set(order)), *order[:1]]
            if not found or not (yield from remove_strays(queue, strays)):
                break
        return order


def check_below(name: Name, path: str, error: Exception) -> None:
    """Raise StoreRefused if a record could not be deleted because of foreign nodes below it."""
    if isinstance(error, kz.NotEmptyError):
        raise StoreRefused(
            f"below the record of {name.key!r} at {path} in ZooKeeper stand other nodes than its mark, so that it can "
            "be neither released nor taken over; break it with now=True (--now), or delete those nodes"
        )


def conflict_or_absent(path: str) -> Script[Request, Answers, Conflict | Absent]:
    """Tell, where the record expected is not, whether there is another."""
    found = (yield ask("exists", path, syncs=path))[0]
    return Absent() if found is None else Conflict()


def version_of(revision: str) -> int | None:
    """Read a revision; None if it cannot be one of ours. As a version, -1 would be any."""
    return int(revision) if revision.isascii() and revision.isdigit() and len(revision) < 11 else None
