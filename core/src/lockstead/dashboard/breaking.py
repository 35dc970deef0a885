"""Breaking from the page: which lease was shown, what a break of it does, and the break of that lease alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.dashboard.rows import Part, Row, consequence, part_of, row_of
from lockstead.errors import StoreError
from lockstead.protocol.record import KeyIsSemaphore
from lockstead.reading import clean, date_text, whole
from lockstead.states import time_left
from lockstead.views import semaphore_info

if TYPE_CHECKING:
    from lockstead.aio_lock import AsyncClient
    from lockstead.views import BreakResult, LockInfo

REASON_MAX: Final = 500
BY_MAX: Final = 200
NAME_MAX: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a form asks for. reader: a reader's holder; slot: a permit's number; now: remove instead of revoke."""

    store: str
    key: str
    incarnation: str
    reader: str = ""
    slot: int | None = None
    now: bool = False
    reason: str = ""
    by: str = ""

    @classmethod
    def parse(cls, said: Mapping[str, str]) -> Asked:
        """Return what a query or a form says."""
        return cls(
            store=said.get("store", "")[:NAME_MAX],
            key=said.get("key", "")[:NAME_MAX],
            incarnation=said.get("incarnation", "")[:NAME_MAX],
            reader=said.get("reader", "")[:NAME_MAX],
            slot=whole(said.get("slot", "")),
            now=said.get("now", "") == "yes",
            reason=clean(said.get("reason", ""))[:REASON_MAX].strip(),
            by=clean(said.get("by", ""))[:BY_MAX].strip(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The lease that was shown and still holds. shown: the reader or the permit, if it is one."""

    client: AsyncClient
    row: Row
    held: LockInfo
    part: Part | None
    revoking: str
    removing: str


async def inspected(client: AsyncClient, key: str) -> LockInfo | None:
    """Return the holder of a lock, or the semaphore under its key; None if it is free."""
    try:
        return await client.lock(key).inspect()
    except KeyIsSemaphore:
        shown = await client.semaphore(key).inspect()
        return None if shown is None else semaphore_info(shown)


async def chosen(client: AsyncClient, asked: Asked, now: float) -> Chosen | str:
    """Return the lease that was shown, if it still holds; otherwise why nothing can be broken."""
    try:
        whole_lock = await inspected(client, asked.key)
    except (StoreError, ValueError) as error:
        return clean(str(error))
    if whole_lock is None:
        return f"{asked.key} is free: there is nothing to break."
    held = _lease(whole_lock, asked)
    if held is None or held.incarnation != asked.incarnation:
        return f"{asked.key} is no longer held by the lease that was shown. Nothing was broken."
    who = f"each of its {len(held.readers)} readers" if held.readers else "its holder"
    left = time_left(held, now)
    said = {
        kind: consequence(left, held.ttl, now=kind == "now", is_expired=held.is_expired, who=who)
        for kind in ("revoke", "now")
    }
    return Chosen(
        client=client,
        row=row_of(asked.store, whole_lock, now),
        held=held,
        part=None if held is whole_lock else part_of(held, now),
        revoking=said["revoke"],
        removing=said["now"],
    )


def _lease(held: LockInfo, asked: Asked) -> LockInfo | None:
    """Return the lease that a form names: a permit, a reader, or the lock's own."""
    if held.permits is not None:
        return next((one for one in held.permits.held if one.slot == asked.slot), None)
    if asked.reader:
        return next((one for one in held.readers if one.holder == asked.reader), None)
    return held


async def carry_out(found: Chosen, asked: Asked, by: str) -> str:
    """Break the lease, and return what was done, in one line."""
    lock, held = found.client.lock(asked.key), found.held
    try:
        if held.slot is not None:
            semaphore = found.client.semaphore(asked.key)
            broken = await semaphore.break_lease(
                slot=held.slot, reason=asked.reason, by=by, now=asked.now, incarnation=held.incarnation
            )
        elif held.registration is not None:
            broken = await lock.break_lease(reason=asked.reason, by=by, now=asked.now, reader=held)
        else:
            broken = await lock.break_lease(reason=asked.reason, by=by, now=asked.now, incarnation=held.incarnation)
    except (StoreError, ValueError) as error:
        return f"Nothing is known of the break: {clean(str(error))}"
    return _done(asked.key, broken)


def _done(key: str, broken: BreakResult | None) -> str:
    if broken is None:
        return f"{key} was no longer held by the lease that was shown. Nothing was broken."
    if not broken.removed and broken.was.revoked_by is not None:
        return f"{key} was revoked already, by {broken.was.revoked_by}. Nothing was changed."
    until = date_text(broken.overlap_until_epoch)
    may = "" if broken.max_overlap == 0 else f" Its holder stops by {until or 'a time that is not known'}."
    return f"{key} is {'removed' if broken.removed else 'revoked'}.{may}"
