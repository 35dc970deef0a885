"""What an examination of a ZooKeeper says of the path: whether it is there, and what this user may do in it.

It is tried and not computed: ACLs name users by hashes, and what the servers make of them only they know. Must not know
sessions.
"""

from __future__ import annotations

import os

from kazoo import exceptions as kz

from lockstead.script import Script
from lockstead.stores.examination import Finding, Severity
from lockstead.stores.zookeeper.answers import refused_at
from lockstead.stores.zookeeper.encoding import Tree
from lockstead.stores.zookeeper.requests import Answers, Request, transaction
from lockstead.values import Space

REMEDY = "have an administrator allow creating, reading, writing and deleting below it, or name another user"


def rights(tree: Tree) -> Script[Request, Answers, Finding]:
    """Find out whether locks and places in queues can be made and deleted here. Nothing is left of it."""
    check, is_there = "rights", True
    for place in (tree.space(Space.LOCK), tree.queues):
        where, verb = yield from _tried(place)
        if verb:
            text = f"this user may not {verb} nodes below {where or '/'}, and locks need it"
            return Finding(Severity.FAILURE, check, text, REMEDY)
        is_there = is_there and len(where) >= len(tree.base)
    if not is_there:
        return Finding(Severity.NOTE, check, f"{tree.base} is not there yet: it is made when it is first used")
    return Finding(Severity.OK, check, f"this user may create and delete nodes below {tree.base}")


def _tried(place: str) -> Script[Request, Answers, tuple[str, str]]:
    """Make and delete a node at a place, or above it where that is missing: where, and what is not allowed there."""
    name = f"doctor-{os.urandom(8).hex()}"
    while True:
        node = f"{place}/{name}"
        results = (yield transaction([("create", node, b""), ("delete", node)]))[0]
        for verb, result in zip(("create", "delete"), results, strict=True):
            if isinstance(result, kz.NoAuthError):
                return place, verb
        if refused_at(results) is None or not place:
            return place, ""
        place = place.rpartition("/")[0]
