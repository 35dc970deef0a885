"""Diagnosis of Redis beyond the store's commands: version, memory, persistence, replicas.

Must not know how commands are sent, nor what a lock is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from lockstead.stores.examination import Finding, Guarantee, Severity
from lockstead.stores.redis.access import Address
from lockstead.stores.redis.errors import OLDEST, code_of
from lockstead.stores.redis.resp import ServerError, Words
from lockstead.stores.servers import endpoint

Send = Callable[[Address, Words], Any]
"""Sends one command to a server and returns its reply; an error of the server is returned, too."""

BEHIND: Final[Mapping[Guarantee, str]] = {
    Guarantee.CREATE_PRESENT: "EXISTS and SET in one script",
    Guarantee.CREATE_RACE: "EXISTS and SET in one script",
    Guarantee.EXTEND_KEEPS: "the merge of fields in a script",
    Guarantee.EXTEND_REVISION_MOVES: "the counting of revisions in a script",
    Guarantee.EXTEND_UPDATED_MOVES: "TIME in a script",
    Guarantee.EXTEND_INCARNATION: "GET, compare and SET in one script",
    Guarantee.EXTEND_REVISION: "GET, compare and SET in one script",
    Guarantee.EXTEND_RACE: "GET, compare and SET in one script",
    Guarantee.REPLACE_INCARNATION: "GET, compare and SET in one script",
    Guarantee.REPLACE_REVISION: "GET, compare and SET in one script",
    Guarantee.REMOVE_INCARNATION: "GET, compare and DEL in one script",
    Guarantee.REMOVE_REVISION: "GET, compare and DEL in one script",
    Guarantee.FRESH_INCARNATION: "96 random bits in every incarnation",
    Guarantee.LIST: "SCAN of every master",
    Guarantee.TOKEN: "the larger of the counter and the server's TIME",
}


def examination(servers: tuple[Address, ...], channel: bytes, send: Send) -> Iterator[Finding]:
    """Yield the findings on every server on which there are records."""
    for server in servers:
        where = endpoint(server)
        info = _info(send(server, (b"INFO",)))
        if info is None:
            remedy = "grant INFO and CONFIG GET, or check maxmemory-policy, persistence and replicas yourself"
            yield Finding(Severity.NOTE, "settings", f"this user may not read the settings of {where}", remedy)
        else:
            config = _config(send(server, (b"CONFIG", b"GET", b"*")))
            yield _version(where, info)
            yield from _memory(where, info)
            yield _persistence(where, info, config)
            yield from _replicas(where, info, config)
        published = send(server, (b"PUBLISH", channel, b"doctor"))
        if isinstance(published, ServerError) and code_of(published) == "NOPERM":
            text = f"this user may not publish at {where}: a release wakes no waiter, and waiters poll"
            yield Finding(Severity.WARNING, "wake", text, "ACL SETUSER ... &PREFIX:wake:* +publish +subscribe")
        else:
            yield Finding(Severity.OK, "wake", f"a release at {where} wakes a waiter")


def _info(reply: Any) -> dict[str, str] | None:
    if not isinstance(reply, bytes):
        return None
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines if name}


def _config(reply: Any) -> dict[str, str]:
    if isinstance(reply, ServerError) or not isinstance(reply, list):
        return {}
    words = [word.decode("utf-8", "replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=False))


def _version(where: str, info: Mapping[str, str]) -> Finding:
    version = info.get("redis_version", "")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < int(OLDEST.partition(".")[0]):
        text = f"{where} is Redis {version}; Redis {OLDEST} or later is needed"
        return Finding(Severity.FAILURE, "version", text, "upgrade the server", stops=True)
    return Finding(Severity.OK, "version", f"{where} is {info.get('server_name', 'redis')} {version}")


def _memory(where: str, info: Mapping[str, str]) -> Iterator[Finding]:
    policy, limit = info.get("maxmemory_policy", ""), int(info.get("maxmemory", "0") or 0)
    evicted = int(info.get("evicted_keys", "0") or 0)
    figures = {"maxmemory_bytes": float(limit), "evicted_keys": float(evicted)}
    if policy not in ("", "noeviction"):
        text = f"{where} may drop a lock that is held when it is short of memory (maxmemory-policy {policy})"
        if evicted:
            text += f"; it has dropped {evicted} keys since its start"
        # without a limit nothing is dropped; but a limit is set more easily than this is thought of
        severity = Severity.WARNING if limit or evicted else Severity.NOTE
        remedy = "CONFIG SET maxmemory-policy noeviction, or a server of its own for locks"
        yield Finding(severity, "memory", text, remedy, figures)
    else:
        yield Finding(Severity.OK, "memory", f"{where} drops no key when it is short of memory", figures=figures)


def _persistence(where: str, info: Mapping[str, str], config: Mapping[str, str]) -> Finding:
    if info.get("aof_enabled") == "1":
        if config.get("appendfsync") == "always":
            return Finding(Severity.OK, "persistence", f"{where} keeps every write over a restart")
        text = f"a crash of {where} forgets the locks of its last second (appendfsync {config.get('appendfsync', '?')})"
        return Finding(Severity.NOTE, "persistence", text, "CONFIG SET appendfsync always, where that matters")
    text = f"a restart of {where} forgets the locks since its last snapshot"
    if "save" in config and not config["save"]:
        text = f"a restart of {where} forgets all locks"
    text += ": others acquire them, and the holders learn of it at the next renewal"
    return Finding(Severity.WARNING, "persistence", text, "CONFIG SET appendonly yes")


def _replicas(where: str, info: Mapping[str, str], config: Mapping[str, str]) -> Iterator[Finding]:
    replicas = int(info.get("connected_slaves", "0") or 0)
    if not replicas:
        return
    needed = config.get("min-replicas-to-write", "0")
    text = f"{where} has {replicas} replicas, which follow it asynchronously: a failover may forget the latest locks"
    remedy = "check the fencing token where the data is"
    if needed == "0":
        remedy += "; CONFIG SET min-replicas-to-write 1 ends the writes of a master that is cut off"
    yield Finding(Severity.NOTE, "replicas", text, remedy, {"replicas": float(replicas)})
