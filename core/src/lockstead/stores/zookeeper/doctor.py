"""Diagnosis of a ZooKeeper ensemble beyond the store's commands: servers, majority, sessions, permissions.

Servers are queried by the four-letter command that is enabled by default (`srvr`); missing replies become notes.
Permissions are tested, not computed, because ACLs name users by hashes that only the servers can interpret. Must not
know what a lock is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from kazoo import exceptions as kz

from lockstead.script import Script
from lockstead.stores.examination import Finding, Guarantee, Severity
from lockstead.stores.zookeeper.acls import acl_of, is_open
from lockstead.stores.zookeeper.answers import refused_at
from lockstead.stores.zookeeper.encoding import Tree
from lockstead.stores.zookeeper.probe import Reply, query
from lockstead.stores.zookeeper.requests import Answers, Request, transaction
from lockstead.stores.zookeeper.url import Target
from lockstead.values import Space

BEHIND: Final[Mapping[Guarantee, str]] = {
    Guarantee.CREATE_PRESENT: "the refusal to create a node that exists",
    Guarantee.CREATE_RACE: "the refusal to create a node that exists",
    Guarantee.EXTEND_REVISION: "the version expected by setData",
    Guarantee.EXTEND_RACE: "the version expected by setData",
    Guarantee.EXTEND_INCARNATION: "the check of a mark in a multi",
    Guarantee.REPLACE_REVISION: "the version expected by setData in a multi",
    Guarantee.REMOVE_REVISION: "the version expected by delete in a multi",
    Guarantee.STALE_EXTEND: "the check of a mark in a multi",
    Guarantee.STALE_REPLACE: "the deletion of a mark in a multi",
    Guarantee.STALE_REMOVE: "the deletion of a mark in a multi",
    Guarantee.TOKEN: "the numbers of transactions (zxid)",
}

OLD: Final = (3, 5)
"""Older versions are unmaintained, and answer every administrator command."""

SESSION_SHORT: Final = 4.0
"""Seconds. A process that is paused for longer, by a garbage collector or a busy machine, loses its queue entry."""

_VERSION: Final = re.compile(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)")
_BOUND: Final = re.compile(r"(min|max)SessionTimeout=(\d+)")
_MODE: Final = re.compile(r"Mode: ([\w-]+)")


def examination(target: Target, limit: float) -> Iterator[Finding]:
    """Yield the findings on the servers of a store, with `limit` seconds for each request."""
    replies = [query(target, host, limit) for host in target.endpoints]
    yield from _servers(target, replies)
    yield from _versions(replies)
    yield from _session(target, _granted(target, replies, limit))
    yield _access(target)


def _granted(target: Target, replies: list[Reply], limit: float) -> float | None:
    """Return the session timeout that the servers grant this store, in seconds; None if no server says."""
    for host in (one.host for one in replies if one.kind == "serves"):
        bounds = dict(_BOUND.findall(query(target, host, limit, b"conf").text))
        if len(bounds) == 2:
            return max(int(bounds["min"]) / 1000, min(int(bounds["max"]) / 1000, target.session))
    return None


def _servers(target: Target, replies: list[Reply]) -> Iterator[Finding]:
    down = [one for one in replies if one.kind not in {"serves", "mute"}]
    for one in down:
        text = f"{one.host} does not serve ({one.text or one.kind}): the others continue while they are a majority"
        yield Finding(Severity.WARNING, "servers", text, "check that server")
    modes = {one.host: found[1] for one in replies if (found := _MODE.search(one.text))}
    if not modes:
        text = (
            "the servers do not report their mode: `srvr` is not among the commands they allow (4lw.commands.whitelist)"
        )
        yield Finding(Severity.NOTE, "ensemble", text)
    elif "standalone" in modes.values():
        text = "a single server: while it is down nothing is locked or released, and its disk is the only copy"
        yield Finding(Severity.WARNING, "ensemble", text, "an ensemble of three or five servers")
    elif "read-only" in modes.values():
        text = f"a server is read-only, for it sees no majority: {', '.join(sorted(modes))}"
        yield Finding(Severity.WARNING, "ensemble", text, "bring the other servers back")
    elif len(target.hosts) == 1:
        (mode,) = modes.values()
        text = f"the URL names one server of an ensemble ({mode}): if it is down, no lock can be reached"
        yield Finding(Severity.WARNING, "ensemble", text, "name all servers in the URL")
    else:
        roles = ", ".join(f"{host} {mode}" for host, mode in sorted(modes.items()))
        yield Finding(Severity.OK, "ensemble", f"an ensemble: {roles}", figures={"servers": float(len(target.hosts))})


def _versions(replies: list[Reply]) -> Iterator[Finding]:
    versions = sorted({tuple(map(int, found.groups())) for one in replies if (found := _VERSION.search(one.text))})
    if not versions:
        return
    text = f"ZooKeeper {', '.join('.'.join(map(str, version)) for version in versions)}"
    if versions[0] < OLD:
        yield Finding(Severity.WARNING, "version", f"{text} is no longer maintained", "upgrade to 3.8 or later")
    else:
        yield Finding(Severity.OK, "version", text)


def _session(target: Target, granted: float | None) -> Iterator[Finding]:
    if granted is None:
        return
    figures = {"session_s": granted, "asked_s": target.session}
    if granted < SESSION_SHORT:
        text = f"sessions end after {granted:g} s of silence: a waiter that is paused for longer loses its place"
        yield Finding(
            Severity.WARNING, "session", text, "a longer `session`, or maxSessionTimeout of the server", figures
        )
    elif granted != target.session:
        text = f"the server grants sessions of {granted:g} s, not {target.session:g} s: a queue entry lasts that long"
        yield Finding(Severity.NOTE, "session", text, figures=figures)
    else:
        yield Finding(Severity.OK, "session", f"sessions of {granted:g} s, for queue entries only", figures=figures)


def _access(target: Target) -> Finding:
    if target.acl and not is_open(acl_of(target.acl)):
        return Finding(Severity.OK, "access", f"only those whom {target.acl} names may change new nodes")
    if not target.acl and (target.user or target.password):
        return Finding(Severity.OK, "access", "only the user of this store may change new nodes")
    text = "anyone who can reach the servers may change new nodes, and so break any lock"
    remedy = "give user:password@ in the URL, or ZOOKEEPER_USER and ZOOKEEPER_PASSWORD"
    return Finding(Severity.NOTE, "access", text, f"remove world:anyone from {target.acl}" if target.acl else remedy)


def rights(tree: Tree) -> Script[Request, Answers, Finding]:
    """Test whether locks and queue entries can be created and deleted here. Leaves nothing behind."""
    check, is_there = "rights", True
    for place in (tree.space(Space.LOCK), tree.queues):
        where, verb = yield from _tried(place)
        if verb:
            text = f"this user may not {verb} nodes below {where or '/'}, and locks need it"
            remedy = "have an administrator allow creating, reading, writing and deleting there, or name another user"
            return Finding(Severity.FAILURE, check, text, remedy)
        is_there = is_there and len(where) >= len(tree.base)
    if not is_there:
        return Finding(Severity.NOTE, check, f"{tree.base} does not exist yet: it is created on first use")
    return Finding(Severity.OK, check, f"this user may create and delete nodes below {tree.base}")


def _tried(place: str) -> Script[Request, Answers, tuple[str, str]]:
    """Create and delete a node below `place`, or below its nearest existing parent.

    Returns the path that was tested, and the operation that is not allowed there ("" if none).
    """
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
