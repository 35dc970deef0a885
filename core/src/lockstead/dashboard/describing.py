"""What the page of one lock shows beside its row: its waiters, its history, what the store says of breaks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.dashboard.changes import TEXT_MAX, Event
from lockstead.dashboard.rows import Part, Row, short, waiters_of
from lockstead.errors import StoreError
from lockstead.reading import clean
from lockstead.stores.port import ShowsQueue

if TYPE_CHECKING:
    from lockstead.aio_lock import AsyncClient
    from lockstead.views import AuditEntry

AUDIT_MAX: Final = 100
TIMELINE_MAX: Final = 200
KEPT_MAX: Final = 500
ASKED_EVERY: Final = 5.0
"""Seconds for which what a store said of one lock is shown again, however many pages show it."""

ANSWER_WITHIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a store says of one lock besides its record. waiters: None where it has no queue."""

    waiters: tuple[Part, ...] | None = None
    audit: tuple[AuditEntry, ...] = ()
    problem: str = ""


class Details:
    """What stores said of single locks; each is asked at most every five seconds."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[float, asyncio.Task[Asked]]] = OrderedDict()

    async def of(self, store: str, client: AsyncClient | None, key: str) -> Asked:
        """Return what the store says of a lock; after two seconds without an answer, that there is none."""
        if client is None:
            return Asked(problem="the store is not open")
        loop = asyncio.get_running_loop()
        asked_at, task = self._known.get((store, key), (0.0, None))
        if task is None or task.get_loop() is not loop or (task.done() and loop.time() - asked_at > ASKED_EVERY):
            task = loop.create_task(ask(client, key))
            self._known[store, key] = (loop.time(), task)
            self._known.move_to_end((store, key))
            if len(self._known) > KEPT_MAX:
                self._known.popitem(last=False)[1][1].cancel()
        await asyncio.wait([task], timeout=ANSWER_WITHIN)
        # it is cancelled if too many locks are asked for at once
        return task.result() if task.done() and not task.cancelled() else Asked(problem="the store does not answer")

    def forget(self, store: str, key: str) -> None:
        """Ask the store again for the next page: a break is shown at once."""
        self._known.pop((store, key), None)


async def ask(client: AsyncClient, key: str) -> Asked:
    """Ask a store for the waiters and the breaks of a lock."""
    waiters = None
    try:
        audit = tuple((await client.history(key))[-AUDIT_MAX:])
        if isinstance(client._engine.store, ShowsQueue):
            waiters = waiters_of(await client.lock(key).contenders())
    except (StoreError, ValueError) as error:
        return Asked(problem=short(clean(str(error))))
    return Asked(waiters, audit)


def timeline(row: Row | None, seen: Sequence[Event], audit: Sequence[AuditEntry]) -> list[Event]:
    """Return the history of a lock, the newest first: what was seen, and what the store's audit has of breaks.

    A break that stands in both is shown as the audit has it. The holder's grant is shown even if nobody watched.
    """
    told = [_audited(entry) for entry in audit]
    broken = {entry.holder for entry in audit if entry.what == "revoked"}
    events = [one for one in seen if not (one.what == "revoked" and one.holder in broken)] + told
    granted = {one.holder for one in seen if one.what == "granted"}
    if row is not None and row.since is not None and row.kind == "lock" and row.holder not in granted:
        events.append(Event(row.since, row.key, "granted", row.owner, row.holder, row.token, text=row.purpose))
    return sorted(events, key=lambda one: -one.at)[:TIMELINE_MAX]


def _audited(entry: AuditEntry) -> Event:
    return Event(
        at=entry.at_epoch or 0.0,
        key=entry.key,
        what=short(entry.what, 40) or "broken",
        owner=short(entry.owner or entry.holder, TEXT_MAX),
        holder=entry.holder,
        token=entry.token,
        text=short(f"by {entry.by}: {entry.reason}" if entry.by else entry.reason, TEXT_MAX),
    )
