"""Granting a lock: one transaction that creates the record and proves that no waiter is overtaken.

The transaction makes the server check whose turn it is. Queue entries are children of the queue's node. A waiter
without an entry creates the queue's node and deletes it again, which fails if the node exists. The first waiter deletes
its entry; it stays first while the entry exists, because sequence numbers only increase while the queue has entries.

Must not know sessions, limits or what the fields of a record mean.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kazoo import exceptions as kz

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Absent, Conflict, Create, Replace, Snapshot
from lockstead.script import Script
from lockstead.stores.zookeeper.answers import refused_at
from lockstead.stores.zookeeper.encoding import Tree, encode_record, in_order, is_mark
from lockstead.stores.zookeeper.requests import Answers, Operation, Request, ask, make, remove_strays, transaction
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.queue import WaitQueue

_QUEUED: Final = Conflict(is_queued=True)

LOOKS_MAX: Final = 16
"""Maximum reads of one queue; each but the first follows the removal of a stray node."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The final operations of a grant, which prove whose turn it is. node: the queue entry that they delete, or ""."""

    operations: tuple[Operation, ...] = ()
    node: str = ""


class Grants:
    """The scripts by which Create and Replace write a new incarnation. queue has the queue entries of this process."""

    def __init__(self, tree: Tree, queue: WaitQueue) -> None:
        self._tree = tree
        self._queue = queue

    def grant(self, command: Create | Replace) -> Script[Request, Answers, Snapshot | Conflict | Absent]:
        """Write a record; Conflict(is_queued) if it is not the waiter's turn."""
        removes: list[Operation] = []
        if isinstance(command, Replace):
            path, version = self._tree.record(command.name), version_of(command.revision)
            if version is None or not is_mark(command.incarnation):
                return (yield from conflict_or_absent(path))
            # write before deleting, so that watchers are notified of a change and not of a free lock
            removes += [("delete", f"{path}/{command.incarnation}"), ("set", path, b"", version), ("delete", path)]
        if not command.waiter_id:
            return (yield from self._grant(command, removes, _Turn()))
        waiter = command.name, command.waiter_id
        node, is_first = self._queue.begin_grant(waiter)
        try:
            return (yield from self._grant(command, removes, (yield from self._turn(command.name, node, is_first))))
        finally:
            self._queue.end_grant(waiter)

    def _grant(
        self, command: Create | Replace, removes: Sequence[Operation], turn: _Turn | Conflict
    ) -> Script[Request, Answers, Snapshot | Conflict | Absent]:
        """Send the transaction. It is sent again only after it was refused as a whole, so it is carried out once."""
        name, fields, mark = command.name, dict(command.fields), os.urandom(16).hex()
        path, data, before = self._tree.record(name), encode_record(mark, fields), len(removes)
        makes = "enter" if name.space is Space.AUDIT else "create"
        while isinstance(turn, _Turn):
            # of these operations, only the reply to the last contains the id of this transaction
            creates = (makes, path, b""), (makes, f"{path}/{mark}", b""), ("set", path, data, 0)
            results = (yield transaction([*removes, *creates, *turn.operations, *self._tree.notices(name)]))[0]
            if makes == "enter" and any(isinstance(one, kz.InvalidACLError) for one in results):
                makes = "create"  # the writer has no user for the ACL of an entry, for instance if ACLs name hosts
                continue
            refused = refused_at(results)
            if refused is None:
                if command.waiter_id:
                    self._queue.granted((name, command.waiter_id), turn.node)
                stat = results[before + 2]
                return Snapshot(fields, mark, str(stat.version), token=stat.mzxid)
            index, error = refused
            if index < before:
                check_below(name, path, error)
                return (yield from conflict_or_absent(path))
            if index >= before + 3:
                turn = yield from self._next_turn(name, turn, error)
            elif isinstance(error, kz.NodeExistsError):
                return Conflict()
            else:
                yield from make(path.rpartition("/")[0])
        return turn

    # --- whose turn ----------------------------------------------------------------------------------------------

    def _turn(self, name: Name, node: str, is_first: bool) -> Script[Request, Answers, _Turn | Conflict]:
        if not node:
            return self._newcomer(name)
        if not is_first:
            order = yield from self._order(name)
            if node not in order:  # the entry ended with its session
                return self._newcomer(name)
            if order[0] != node:
                return _QUEUED
        return _Turn((("delete", f"{self._tree.queue(name)}/{node}"),), node)

    def _newcomer(self, name: Name) -> _Turn:
        queue = self._tree.queue(name)
        return _Turn((("create", queue, b""), ("delete", queue)))

    def _next_turn(self, name: Name, turn: _Turn, error: Exception) -> Script[Request, Answers, _Turn | Conflict]:
        """Return the next turn to try after the server refused one."""
        if turn != self._newcomer(name):
            # the entry ended with its session, or the queue has another waiter now, or its node was deleted
            return _QUEUED if isinstance(error, kz.NotEmptyError) else self._newcomer(name)
        if isinstance(error, kz.NodeExistsError):
            # there is an entry, or the last waiter left without deleting the queue's node
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
            # a node that is not our entry blocks newcomers, and the first of the queue blocks all others
            strays = [*(set(found) - set(order)), *order[:1]]
            if not found or not (yield from remove_strays(queue, strays)):
                break
        return order


def check_below(name: Name, path: str, error: Exception) -> None:
    """Raise StoreRefused if a record could not be deleted because of foreign nodes below it."""
    if isinstance(error, kz.NotEmptyError):
        raise StoreRefused(
            f"below the record of {name.key!r} at {path} in ZooKeeper are other nodes than its mark, so that it can "
            "be neither released nor taken over; break it with now=True (--now), or delete those nodes"
        )


def conflict_or_absent(path: str) -> Script[Request, Answers, Conflict | Absent]:
    """Return Conflict if there is another record than the expected one, else Absent."""
    found = (yield ask("exists", path, syncs=path))[0]
    return Absent() if found is None else Conflict()


def version_of(revision: str) -> int | None:
    """Parse a revision; return None if it cannot be one of ours. As a version, -1 would match any."""
    return int(revision) if revision.isascii() and revision.isdigit() and len(revision) < 11 else None
