"""Diagnosis of a Redlock beyond the store's commands: each master, and all of them together.

Must not know commands or records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lockstead.errors import StoreError
from lockstead.stores.bootclock import boot_now
from lockstead.stores.bounds import Bounds
from lockstead.stores.examination import Finding, Severity
from lockstead.stores.redis.resp import ServerError
from lockstead.stores.redlock.connection import Master
from lockstead.stores.redlock.masters import MasterGroup

CLOCKS_APART: Final = 1.0
"""Seconds of difference between two masters' clocks that are reported: nothing compares them, but one may jump."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What one master reports; settings is empty and clock None if this user may not read them."""

    settings: dict[str, str]
    clock: float | None
    started_before: float


def examination(group: MasterGroup, restart_delay: float, limit: float) -> Iterator[Finding]:
    """Yield the findings. limit: seconds for each master."""
    count = len(group.masters)
    if count % 2 == 0:
        text = f"{count} masters tolerate no more failures than {count - 1}, and votes may be split in halves"
        yield Finding(Severity.WARNING, "masters.number", text, "use an odd number of masters")
    looked: dict[str, _Looked] = {}
    for master in group.masters:
        try:
            looked[master.where] = _look(master, limit)
        except StoreError as error:
            yield Finding(
                Severity.WARNING, "master.reached", f"{master.where}: {error}", "a quorum has to be reachable"
            )
    if len(looked) < group.quorum:
        text = f"only {len(looked)} of {count} masters are usable, {group.quorum} are needed"
        yield Finding(Severity.FAILURE, "masters.quorum", text, "start the others, or see above", stops=True)
        return
    yield Finding(Severity.OK, "masters.quorum", f"{len(looked)} of {count} masters are usable")
    for where, one in looked.items():
        yield from _memory(where, one.settings, restart_delay)
        yield from _age(where, one.started_before, restart_delay)
    yield from _clocks(looked)
    text = "there are no fencing tokens across masters: the resource cannot refuse writes of a holder that was paused"
    remedy = "where that matters, use a store with consensus (etcd:, zk:) or one database (postgresql:)"
    yield Finding(Severity.NOTE, "fencing", text, remedy)


def _look(master: Master, limit: float) -> _Looked:
    connection = master.connect()
    try:
        now, pairs = connection.connection.exchange([(b"TIME",), (b"CONFIG", b"GET", b"*")], Bounds(limit))
    finally:
        connection.close()
    clock = None if isinstance(now, ServerError) else int(now[0]) + int(now[1]) / 1e6 - boot_now()
    words = [] if isinstance(pairs, ServerError) else [word.decode() for word in pairs]
    return _Looked(dict(zip(words[::2], words[1::2], strict=True)), clock, connection.identity.started_before)


def _memory(where: str, settings: dict[str, str], restart_delay: float) -> Iterator[Finding]:
    if not settings:
        yield Finding(Severity.NOTE, "master.settings", f"{where}: this user may not read the settings (CONFIG GET)")
        return
    if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy") != "noeviction":
        text = f"{where} evicts keys when its memory is full (maxmemory-policy {settings.get('maxmemory-policy')})"
        remedy = "set maxmemory-policy noeviction, or use servers that store nothing else"
        yield Finding(Severity.FAILURE, "master.eviction", text, remedy)
    is_kept = settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always"
    if restart_delay == 0 and not is_kept:
        text = f"{where} loses locks in a restart and may vote at once afterwards: two may hold one lock"
        remedy = "set ?restart_delay= above the longest ttl, or appendonly yes with appendfsync always"
        yield Finding(Severity.WARNING, "master.persistence", text, remedy)


def _age(where: str, started_before: float, restart_delay: float) -> Iterator[Finding]:
    left = started_before + restart_delay - boot_now()
    if restart_delay and left > 0:
        text = f"{where} restarted recently and may not vote for {left:.0f} s"
        yield Finding(Severity.NOTE, "master.age", text, figures={"left_seconds": left})


def _clocks(looked: dict[str, _Looked]) -> Iterator[Finding]:
    clocks = [one.clock for one in looked.values() if one.clock is not None]
    if len(clocks) < len(looked):
        yield Finding(Severity.NOTE, "masters.clocks", "this user may not read the clocks of all masters (TIME)")
        return
    apart = max(clocks) - min(clocks)
    figures = {"apart_seconds": apart}
    if apart > CLOCKS_APART:
        text = f"the clocks of the masters differ by {apart:.1f} s: when one is corrected, its locks end early or late"
        yield Finding(Severity.WARNING, "masters.clocks", text, "have a time service slew them, never step", figures)
    else:
        yield Finding(Severity.OK, "masters.clocks", "the clocks of the masters agree", figures=figures)
