"""Releasing a lease: its use ends, a renewal in flight is waited for, and then the release is sent.

Holds no lock itself, so that `inside` passes it over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstead.protocol.commands import Script
from lockstead.runtime.aio_drive import run
from lockstead.runtime.awaiting import AsyncWaker, given_back, settle
from lockstead.runtime.run import Limits

if TYPE_CHECKING:
    from lockstead.runtime.held import HeldLease


async def give_back(lease: HeldLease, giving_back: Script[bool], *, unused: bool) -> bool:
    """Release a lease; True if this removed the record. unused: no work was done under it."""
    engine = lease._engine
    if not lease._may_leave(lease._now(), unused=unused):
        return False
    try:
        await settle(engine, lease._kept)
        limits = Limits(lease._lease_state.settings.request_timeout)
        return await run(giving_back, engine.store, engine.clock, limits, AsyncWaker(engine))
    except BaseException:
        lease._release_failed()
        raise
    finally:
        given_back(lease)
