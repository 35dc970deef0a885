"""Decides which requests a command is: the layout of records, and what each answer of ZooKeeper means.

A record is a node that is made anew with every grant, and under it a *mark*, an empty node of a random name. The name
of the mark is the incarnation. Whatever is written expects the mark of its incarnation in the same transaction: a
node's version starts again when the node is made again, a mark never comes back. So records can be deleted. The node's
version is the revision, and the transaction that made the node is the token: such numbers only grow in a ZooKeeper.

Must not know sessions, limits or what the fields of a record mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as kz

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.zookeeper_names import Tree, in_order, is_mark, named, stored, written
from lockstead.stores.zookeeper_wire import Ask, Flow, refused_at
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from lockstead.stores.zookeeper_line import Line, Stand

LISTED_AT_ONCE: Final = 500
"""Records of a listing that are asked for together."""

Refusal = tuple[int, Exception]


class Commands:
    """Every command as a flow of requests. line is where this process stands in queues."""

    def __init__(self, tree: Tree, line: Line) -> None:
        self._tree = tree
        self._line = line

    def flow(self, command: Command[Any]) -> Flow[Any]:
        """Give the flow of a command."""
        match command:
            case Read():
                return self._read(command.name)
            case Create():
                return self._create(command)
            case Extend():
                return self._extend(command)
            case Replace():
                return self._replace(command)
            case Remove():
                return self._remove(command)
            case List():
                return self._list(command)
        raise TypeError(f"not a command for a store: {type(command).__name__}")

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self, name: Name) -> Flow[Snapshot | Absent]:
        path = self._tree.record(name)
        # another server of the ensemble may be behind: without the sync a member could miss a holder's own words
        got = (yield Ask(lambda client: (client.sync_async(path), client.get_async(path))))[1]
        if isinstance(got, kz.NoNodeError):
            return Absent()
        return _shown(name, *got)

    def _list(self, command: List) -> Flow[Listing]:
        space = command.space
        root = self._tree.space(space)
        if space is Space.LOCK and command.key is not None:
            only = Name(command.key)
            one = yield from self._read(only)
            return Listing(((only, one),) if isinstance(one, Snapshot) and not command.part_prefix else ())
        nodes = (yield Ask(lambda client: (client.sync_async(root), client.get_children_async(root))))[1]
        if isinstance(nodes, kz.NoNodeError):
            return Listing(())
        names = [
            name
            for name in (named(space, node) for node in nodes)
            if name is not None
            and (command.key is None or name.key == command.key)
            and name.part.startswith(command.part_prefix)
        ]
        entries: list[tuple[Name, Snapshot]] = []
        for first in range(0, len(names), LISTED_AT_ONCE):
            some = names[first : first + LISTED_AT_ONCE]
            answers = yield Ask(_getting([self._tree.record(name) for name in some]))
            entries += [
                (name, _shown(name, *got))
                for name, got in zip(some, answers, strict=True)
                if not isinstance(got, kz.NoNodeError)
            ]
        return Listing(tuple(entries))

    # --- granting ------------------------------------------------------------------------------------------------

    def _create(self, command: Create) -> Flow[Snapshot | Conflict]:
        answer = yield from self._grant(command.name, command.fields, command.asker, _Nothing())
        return Conflict() if isinstance(answer, Absent) else answer

    def _replace(self, command: Replace) -> Flow[Snapshot | Conflict | Absent]:
        revision = _version(command.revision)
        if revision is None or not is_mark(command.incarnation):
            return (yield from self._what_stands(command.name))
        old = _Old(self._tree.record(command.name), command.incarnation, revision)
        return (yield from self._grant(command.name, command.fields, command.asker, old))

    def _grant(
        self, name: Name, fields: Mapping[str, str], asker: str, old: _Nothing | _Old
    ) -> Flow[Snapshot | Conflict | Absent]:
        """Write a record of a new incarnation in the place of an old one, unless others stand in line for it."""
        path, queue = self._tree.record(name), self._tree.queue(name)
        kept, mark = dict(fields), os.urandom(16).hex()
        stand = self._line.stand(name, asker)
        is_first, has_leftover = False, False
        while True:
            if stand is not None and not is_first:
                is_first = stand.is_first
                if not is_first:
                    order = yield from self._order(queue)
                    is_first = order[:1] == [stand.node]
                    if stand.node in order and not is_first:
                        return Conflict(is_queued=True)
                    if not is_first:  # the session was lost, and the place with it
                        stand = None
            turn = _turn(queue, asker, stand, has_leftover=has_leftover)

            def granting(client: Any, turn: _Turn = turn) -> tuple[Any]:
                step = client.transaction()
                old.adds(step)
                step.create(path, b"")
                step.create(f"{path}/{mark}", b"")
                # its answer alone says in which transaction the node was made
                step.set_data(path, written(mark, kept), 0)
                turn.adds(step)
                return (step.commit_async(),)

            results = (yield Ask(granting, writes=True))[0]
            refused = refused_at(results)
            if refused is None:
                self._line.granted(name, asker)
                stat = results[old.steps + 2]
                return Snapshot(kept, mark, str(stat.version), token=stat.mzxid)
            index, error = refused
            if index < old.steps:
                return (yield from self._what_stands(name))
            if index < old.steps + 3:
                if isinstance(error, kz.NodeExistsError):
                    return Conflict()
                yield from self._make(self._tree.space(name.space))
            elif stand is not None:
                stand, is_first = None, False
            elif isinstance(error, kz.NotEmptyError):
                return Conflict(is_queued=True)
            elif has_leftover:
                has_leftover = False
            elif isinstance(error, kz.NodeExistsError):
                # somebody stands in line, or the last one left without clearing up
                if (yield from self._order(queue)):
                    return Conflict(is_queued=True)
                has_leftover = True
            else:
                yield from self._make(self._tree.queues)

    def _order(self, queue: str) -> Flow[list[str]]:
        found = (yield Ask(lambda client: (client.get_children_async(queue),)))[0]
        return [] if isinstance(found, kz.NoNodeError) else in_order(found)

    # --- writing -------------------------------------------------------------------------------------------------

    def _extend(self, command: Extend) -> Flow[Snapshot | Conflict | Absent]:
        path = self._tree.record(command.name)
        while True:
            got = (yield Ask(lambda client: (client.sync_async(path), client.get_async(path))))[1]
            if isinstance(got, kz.NoNodeError):
                return Absent()
            data, stat = got
            said = stored(data)
            if said is None:
                raise _damaged(command.name, path)
            if command.incarnation not in {None, said.mark} or command.revision not in {None, str(stat.version)}:
                return Conflict()
            fields = {**said.fields, **command.fields}
            extending = _extending(path, said.mark, stat.version, written(said.mark, fields))
            results = (yield Ask(extending, writes=True))[0]
            if refused_at(results) is None:
                return Snapshot(fields, said.mark, str(results[1].version), token=stat.czxid)
            # it changed in between; nothing was written, so it may be looked at again

    def _remove(self, command: Remove) -> Flow[Removed | Conflict | Absent]:
        path = self._tree.record(command.name)
        revision = -1 if command.revision is None else _version(command.revision)
        if revision is not None and is_mark(command.incarnation):

            def removing(client: Any) -> tuple[Any]:
                step = client.transaction()
                step.delete(f"{path}/{command.incarnation}")
                step.delete(path, revision)
                return (step.commit_async(),)

            if refused_at((yield Ask(removing, writes=True))[0]) is None:
                return Removed()
        return (yield from self._what_stands(command.name))

    def _what_stands(self, name: Name) -> Flow[Conflict | Absent]:
        """Tell, of a record that is not the one expected, whether there is another."""
        path = self._tree.record(name)
        found = (yield Ask(lambda client: (client.sync_async(path), client.exists_async(path))))[1]
        return Absent() if found is None else Conflict()

    def _make(self, path: str) -> Flow[None]:
        """Make a node that records or queues stand under, and those above it."""
        pieces = path.split("/")[1:]
        above = ["/" + "/".join(pieces[: length + 1]) for length in range(len(pieces))]
        yield Ask(lambda client: [client.create_async(node, b"") for node in above], writes=True)


class _Nothing:
    """What a Create expects: nothing, which making the node checks by itself."""

    steps = 0

    def adds(self, step: Any) -> None:
        """Add nothing."""


class _Old:
    """What a Replace expects: a record of this incarnation, at this revision, which goes in the same step."""

    steps = 2

    def __init__(self, path: str, mark: str, version: int) -> None:
        self._path, self._mark, self._version = path, mark, version

    def adds(self, step: Any) -> None:
        """Delete the mark, then the node."""
        step.delete(f"{self._path}/{self._mark}")
        step.delete(self._path, self._version)


class _Turn:
    """What keeps who asks from overtaking: the last operations of a grant."""

    def __init__(self, *operations: tuple[str, str]) -> None:
        self._operations = operations

    def adds(self, step: Any) -> None:
        """Add the operations."""
        for verb, path in self._operations:
            getattr(step, verb)(path)


def _turn(queue: str, asker: str, stand: Stand | None, *, has_leftover: bool) -> _Turn:
    """Give what proves that nobody is overtaken. has_leftover: the queue's node stands there, and is empty."""
    if not asker:
        return _Turn()
    if stand is not None:
        # who is first stays first, as long as the place is there
        return _Turn(("delete", f"{queue}/{stand.node}"))
    if has_leftover:
        return _Turn(("delete", queue))
    # a queue's node that cannot be made is one in which somebody may stand
    return _Turn(("create", queue), ("delete", queue))


def _getting(paths: list[str]) -> Callable[[Any], list[Any]]:
    return lambda client: [client.get_async(path) for path in paths]


def _extending(path: str, mark: str, version: int, data: bytes) -> Callable[[Any], tuple[Any]]:
    def extending(client: Any) -> tuple[Any]:
        step = client.transaction()
        step.check(f"{path}/{mark}", -1)
        step.set_data(path, data, version)
        return (step.commit_async(),)

    return extending


def _version(revision: str) -> int | None:
    """Read a revision; None if it cannot be one of ours. -1 would be any."""
    return int(revision) if revision.isascii() and revision.isdigit() and len(revision) < 11 else None


def _shown(name: Name, data: bytes | None, stat: Any) -> Snapshot:
    said = stored(data)
    if said is None:
        raise _damaged(name, "")
    return Snapshot(said.fields, said.mark, str(stat.version), token=stat.czxid)


def _damaged(name: Name, path: str) -> StoreRefused:
    return StoreRefused(f"the record of {name.key!r} in ZooKeeper is damaged or another program's; delete the node {path}")
