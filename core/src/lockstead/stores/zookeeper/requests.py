"""Requests to ZooKeeper: batches, transactions, and reads after a sync.

Must not know sessions, limits or records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kazoo import exceptions as kz
from kazoo.protocol import serialization
from kazoo.security import OPEN_ACL_UNSAFE

from lockstead.errors import StoreRefused
from lockstead.script import Script
from lockstead.stores.zookeeper.acls import acl_of_entry


@dataclass(frozen=True, slots=True)
class Request:
    """Requests that are sent together, after the driver has checked that they can be sent at once.

    writes: whether any of them writes. syncs: a path to sync first, so that reads see all earlier writes; "" for none.
    """

    send: Callable[[Any], Sequence[Any]]
    writes: bool = False
    syncs: str = ""


Answers: TypeAlias = list[Any]
"""The outcome of each request, a value or one of the errors REFUSALS; sent to the script for its `Request`."""


Operation: TypeAlias = tuple[str, str] | tuple[str, str, int] | tuple[str, str, bytes] | tuple[str, str, bytes, int]
"""One operation of a transaction: "create" path data, "delete" path [version], "set" path data version, "check" path.

"enter" is "create" with the ACL of a history entry."""

STRAYS_MAX: Final = 100
"""Nodes of a queue that are checked together."""

BELOW_MAX: Final = 500
"""Maximum number of nodes below a damaged record; they are deleted with it in one transaction."""

_KINDS: Final[dict[str, Callable[..., Any]]] = {
    "create": serialization.Create,
    "enter": serialization.Create,
    "delete": serialization.Delete,
    "set": serialization.SetData,
    "check": serialization.CheckVersion,
}

_ANY: Final = (-1,)
"""The version that matches any."""


def transaction(operations: Sequence[Operation], clears: str = "") -> Request:
    """Return a request for all operations or none. clears: a node to delete afterwards if it has no children then.

    The outcome of that deletion is not awaited.
    """

    def sending(client: Any) -> tuple[Any]:
        step, acl = client.transaction(), client.default_acl or OPEN_ACL_UNSAFE
        # kazoo's own methods take four times as long, because they check every path again
        for verb, path, *given in operations:
            more: Sequence[Any] = given or _ANY
            if verb in {"create", "enter"}:
                more = *given, acl if verb == "create" else acl_of_entry(acl), 0
            step.operations.append(_KINDS[verb](client.chroot + path, *more))
        result = step.commit_async()
        if clears:
            client.delete_async(clears)
        return (result,)

    return Request(sending, writes=True)


def ask(verb: str, *paths: str, writes: bool = False, syncs: str = "") -> Request:
    """Return a request for one kazoo method ("get", "exists", "get_children" or "delete") on several nodes."""
    return Request(lambda client: [getattr(client, f"{verb}_async")(path) for path in paths], writes, syncs)


def read(path: str) -> Request:
    """Return a request to read a node after a sync."""
    return ask("get", path, syncs=path)


def make(path: str) -> Script[Request, Answers, None]:
    """Create a parent of records or queues, and its missing parents.

    It starts at the bottom, because a user that may write below a path may lack the permission to write above it.
    """
    made = (yield Request(lambda client: (client.create_async(path, b""),), writes=True))[0]
    parent = path.rpartition("/")[0]
    if isinstance(made, kz.NoNodeError) and parent:
        yield from make(parent)
        yield from make(path)


def remove_strays(queue: str, nodes: Sequence[str]) -> Script[Request, Answers, bool]:
    """Delete those nodes of a queue that are not ephemeral: they are not waiters' places and would never end.

    Returns True if one was deleted or is gone, so that the queue should be read again.
    """
    some = [f"{queue}/{node}" for node in nodes[:STRAYS_MAX]]
    found = yield ask("exists", *some)
    strays = [path for path, stat in zip(some, found, strict=True) if stat is not None and not stat.ephemeralOwner]
    if not strays:
        return any(stat is None for stat in found)
    gone = yield ask("delete", *strays, writes=True)
    if all(isinstance(one, kz.NotEmptyError) for one in gone):
        raise StoreRefused(
            f"the node {strays[0]} in ZooKeeper is not an entry of a queue and blocks its waiters; delete it with "
            "everything below it"
        )
    return True


def strays(queues: str, at_most: int, *, deletes: bool) -> Script[Request, Answers, list[str]]:
    """Return nodes of queues that are not ephemeral, and queues without a node, at most so many; and delete them.

    A queue that was left empty is that of a process that died; a waiter that comes in between prevents the deletion.
    """
    found = (yield ask("get_children", queues, syncs=queues))[0]
    names = [] if isinstance(found, kz.NoNodeError) else sorted(found)
    gone: list[str] = []
    for first in range(0, len(names), STRAYS_MAX):
        some = names[first : first + STRAYS_MAX]
        children = yield ask("get_children", *(f"{queues}/{name}" for name in some))
        paths = [
            f"{name}/{node}" if node else name
            for name, nodes in zip(some, children, strict=True)
            if not isinstance(nodes, kz.NoNodeError)
            for node in nodes or [""]
        ]
        for start in range(0, len(paths), STRAYS_MAX):
            part = paths[start : start + STRAYS_MAX]
            stats = yield ask("exists", *(f"{queues}/{path}" for path in part))
            left = [
                path for path, stat in zip(part, stats, strict=True) if stat is not None and not stat.ephemeralOwner
            ]
            left = left[: at_most - len(gone)]
            if left and deletes:
                done = yield ask("delete", *(f"{queues}/{path}" for path in left), writes=True)
                left = [path for path, one in zip(left, done, strict=True) if not isinstance(one, Exception)]
            gone += left
            if len(gone) >= at_most:
                return gone
    return gone


def descendants(path: str, children: int) -> Script[Request, Answers, list[str]]:
    """Return all nodes below a node, parents first. Raises StoreRefused if there are more than BELOW_MAX."""
    found: list[str] = []
    level, count = [path], children
    while level and count:
        if len(found) + count > BELOW_MAX:
            raise StoreRefused(
                f"more than {BELOW_MAX} nodes are below {path} in ZooKeeper; delete it with everything below it"
            )
        parents, names = level, (yield ask("get_children", *level))
        level = [
            f"{parent}/{name}"
            for parent, below in zip(parents, names, strict=True)
            if not isinstance(below, Exception)
            for name in below
        ]
        found += level
        stats = yield ask("exists", *level)
        count = sum(0 if stat is None else stat.numChildren for stat in stats)
    return found
