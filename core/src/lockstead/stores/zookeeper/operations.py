"""Commands as scripts of requests: the layout of records, and what each reply of ZooKeeper means.

A record is a node that is created anew with every grant, with one child, the *mark*: an empty node with a random name,
which is the incarnation. Every write requires the mark of its incarnation in the same transaction, because a node's
version restarts when the node is recreated, but a mark is never reused. So records can be deleted. The node's version
is the revision, and the id of the transaction that created the node is the token; ZooKeeper's transaction ids only
increase.

Must not know sessions, limits or what the fields of a record mean.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
from lockstead.script import Script
from lockstead.stores import paging
from lockstead.stores.kept import DAMAGED, NO_MAP, is_expected, unreadable
from lockstead.stores.zookeeper.answers import refused_at
from lockstead.stores.zookeeper.encoding import Tree, decode_name, decode_record, encode_name, encode_record, is_mark
from lockstead.stores.zookeeper.grant import Grants, check_below, conflict_or_absent, version_of
from lockstead.stores.zookeeper.requests import Answers, Operation, Request, ask, descendants, read, transaction
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.queue import WaitQueue

LISTED_AT_ONCE: Final = 500
"""Records of a listing that are requested together."""


class Operations:
    """Every command as a script of requests. queue has the queue entries of this process."""

    def __init__(self, tree: Tree, queue: WaitQueue) -> None:
        self._tree = tree
        self._queue = queue
        self._grants = Grants(tree, queue)
        self._kept: dict[str, list[str]] = {}  # the names of a listing, under the cursor of its next page

    def script(self, command: Command[Any]) -> Script[Request, Answers, Any]:
        """Return the script of a command."""
        match command:
            case Read():
                return self._read(command.name)
            case Create() | Replace():
                return self._grants.grant(command)
            case Extend():
                return self._extend(command)
            case Remove():
                return self._remove(command)
            case List():
                return self._list(command)
        raise TypeError(f"not a command for a store: {type(command).__name__}")

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self, name: Name) -> Script[Request, Answers, Snapshot | Absent]:
        path = self._tree.record(name)
        # another server of the ensemble may be behind; without the sync a member could miss its holder's update
        got = (yield read(path))[0]
        if isinstance(got, kz.NoNodeError):
            return Absent()
        return _shown(*got)

    def _list(self, command: List) -> Script[Request, Answers, Listing]:
        space = command.space
        root = self._tree.space(space)
        if space is Space.LOCK and command.key is not None:
            if command.cursor is not None:
                raise paging.refused_cursor()
            only = Name(command.key)
            one = yield from self._read(only)
            return Listing(((only, one),) if isinstance(one, Snapshot) and not command.part_prefix else ())
        after = _order((paging.text_place(command, 1) or ("",))[0])
        names = yield from self._names(root, command)
        if space is Space.PERMIT:
            nodes = yield from self._slots(root, names, after, command.page)
        else:
            of_key = names if command.key is None else [node for node in names if _is_of(command, node)]
            nodes = of_key[bisect_right(of_key, after[0]) :]
        nodes = nodes[: command.page]
        decoded = (decode_name(space, node) for node in nodes)
        shown = [name for name in decoded if name is not None and command.shows(name)]
        entries: list[tuple[Name, Snapshot]] = []
        for first in range(0, len(shown), LISTED_AT_ONCE):
            some = shown[first : first + LISTED_AT_ONCE]
            answers = yield ask("get", *map(self._tree.record, some), syncs=root)
            entries += [
                (name, _shown(*got))
                for name, got in zip(some, answers, strict=True)
                if not isinstance(got, kz.NoNodeError)
            ]
        if len(nodes) != command.page:
            return Listing(tuple(entries))
        cursor = paging.cursor(command, nodes[-1])
        self._kept = {cursor: names}
        return Listing(tuple(entries), cursor)

    def _names(self, root: str, command: List) -> Script[Request, Answers, list[str]]:
        """Return the names of the nodes below that of a space, in order; of permits, these stand for keys.

        ZooKeeper sends them all at once, so the next page finds them kept. Another listing in between drops them, and
        they are read again: a cursor does not need them.
        """
        if command.space is Space.PERMIT and command.key is not None:
            return [encode_name(Name(command.key))]
        kept = self._kept.pop(command.cursor or "", None)
        if kept is not None:
            return kept
        found = (yield ask("get_children", root, syncs=root))[0]
        return [] if isinstance(found, kz.NoNodeError) else sorted(found)

    def _slots(
        self, root: str, keys: list[str], after: tuple[str, str, str], page: int | None
    ) -> Script[Request, Answers, list[str]]:
        """Return the nodes of permits after one, in order, at least as many as a page has, if there are."""
        slots: list[str] = []
        at_once = min(LISTED_AT_ONCE, page or LISTED_AT_ONCE)
        for first in range(bisect_left(keys, after[0]), len(keys), at_once):
            some = keys[first : first + at_once]
            below = yield ask("get_children", *(f"{root}/{key}" for key in some), syncs=root)
            for key, parts in zip(some, below, strict=True):
                found = [] if isinstance(parts, kz.NoNodeError) else [f"{key}/{part}" for part in sorted(parts)]
                slots += [slot for slot in found if _order(slot) > after]
            if page is not None and len(slots) >= page:
                break
        return slots

    # --- writing -------------------------------------------------------------------------------------------------

    def _extend(self, command: Extend) -> Script[Request, Answers, Snapshot | Conflict | Absent]:
        path = self._tree.record(command.name)
        while True:
            got = (yield read(path))[0]
            if isinstance(got, kz.NoNodeError):
                return Absent()
            data, stat = got
            stored = decode_record(data)
            if stored is None or not stat.numChildren:
                raise StoreRefused(
                    f"the record of {command.name.key!r} at {path} in ZooKeeper is damaged, or another program's; "
                    "break it with now=True (--now)"
                )
            if not is_expected(command, stored.mark, str(stat.version)):
                return Conflict()
            fields = {**stored.fields, **command.fields}
            data = encode_record(stored.mark, fields)
            writes: list[Operation] = [("check", f"{path}/{stored.mark}"), ("set", path, data, stat.version)]
            results = (yield transaction([*writes, *self._tree.notices(command.name)]))[0]
            if refused_at(results) is None:
                return Snapshot(fields, stored.mark, str(results[1].version), token=stat.czxid)
            # the record changed in between and nothing was written, so read it again

    def _remove(self, command: Remove) -> Script[Request, Answers, Removed | Conflict | Absent]:
        path = self._tree.record(command.name)
        if command.incarnation.startswith(DAMAGED):
            return (yield from self._remove_damaged(path, command))
        revision = -1 if command.revision is None else version_of(command.revision)
        if revision is not None and is_mark(command.incarnation):
            mark = f"{path}/{command.incarnation}"
            deletes: list[Operation] = [("delete", mark), ("delete", path, revision)]
            notices = self._tree.notices(command.name)
            removing = transaction([*deletes, *notices], self._queue.clears(command.name))
            refused = refused_at((yield removing)[0])
            if refused is None:
                return Removed()
            check_below(command.name, path, refused[1])
        return (yield from conflict_or_absent(path))

    def _remove_damaged(self, path: str, command: Remove) -> Script[Request, Answers, Removed | Conflict | Absent]:
        """Delete a damaged record with all nodes below it, if it is still the one that was shown."""
        got = (yield read(path))[0]
        if isinstance(got, kz.NoNodeError):
            return Absent()
        shown = _shown(*got)
        if not is_expected(command, shown.incarnation, shown.revision):
            return Conflict()
        below = yield from descendants(path, got[1].numChildren)
        # a record created here meanwhile has a mark that is not in `below`, so its deletion would fail
        deletes: list[Operation] = [("delete", node) for node in reversed(below)]
        notices = self._tree.notices(command.name)
        removing = transaction([*deletes, ("delete", path, got[1].version), *notices])
        return Removed() if refused_at((yield removing)[0]) is None else Conflict()


def _order(node: str) -> tuple[str, str, str]:
    """Return what the nodes of a listing are sorted by."""
    return node.partition("/")


def _is_of(command: List, node: str) -> bool:
    name = decode_name(command.space, node)
    return name is not None and command.shows(name)


def _shown(data: bytes | None, stat: Any) -> Snapshot:
    stored = decode_record(data)
    why = NO_MAP if stored is None else _why_not_one(stat.numChildren)
    if stored is None or why:
        return Snapshot(unreadable(why), f"{DAMAGED}{stat.czxid}", str(stat.version), token=stat.czxid)
    return Snapshot(stored.fields, stored.mark, str(stat.version), token=stat.czxid)


def _why_not_one(below: int) -> str:
    """Return what is wrong with a record that has `below` children; "" if it has only its mark."""
    if below == 1:
        return ""
    return "other nodes are below its node" if below else "its mark is missing"
