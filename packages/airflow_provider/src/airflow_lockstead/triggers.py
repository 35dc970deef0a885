"""What the triggerer does for a lock: wait for it, keep it between tasks, wait until it is free.

Three coroutines on the core's awaiting API. What they await is shared: locks of one store and client object stand in
one line, of which the first alone asks the store. `cleanup()` is not overridden: it also runs when a triggerer ends,
and the trigger goes on in another one. Must not know workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import lockstead
from airflow_lockstead import compat, connection, grants, unbegun
from airflow_lockstead.sharing import Shared
from airflow_lockstead.spec import LockSpec
from lockstead.wrapping.aio_acquiring import token_of, unclean_before

if TYPE_CHECKING:
    import logging

    from lockstead import AsyncLease, AsyncLock, LeaseTicket, LockInfo

LOOK_AGAIN: Final = 5.0
"""Seconds for which one look at who holds a lock serves all who begin to wait for it."""

LOOK_MIN: Final = 2.0
"""Seconds that whoever waits until a lock is free has at least."""

ENDED: Final = "ended"
"""What a keeper fires with when its lease has ended, however it did."""

LOOK_EVERY: Final = 3.0
"""Seconds between two looks of a keeper at whether its lease has ended: so much longer its run lasts, at most."""

PAUSE_MIN: Final = 1.0
PAUSE_MAX: Final = 30.0
"""Seconds between two attempts to renew while the store is silent."""

_LOOKS: Final[Shared[LockInfo | None]] = Shared(LOOK_AGAIN)
_FREE: Final[Shared[bool]] = Shared()


class WaitTrigger(compat.BaseTrigger):  # type: ignore[misc]  # a class that is found when Airflow is there
    """Waits for a lock and fires with its ticket; the lease then lives for its ttl, kept by nobody.

    spec: a `LockSpec` as a plain mapping, templates rendered. owner: who asks, the same over tries: a lease of this
    owner is taken over. gives_up_at, asked_at: seconds since the epoch; gives_up_at None waits forever. waiter:
    dag_id, run_id, task_id and map_index of who waits: if it ends before its body begins, the grant is given back.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        owner: str,
        asked_at: float,
        gives_up_at: float | None = None,
        waiter: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.waiter = None if waiter is None else dict(waiter)
        self.spec = dict(spec)
        self.owner = owner
        self.asked_at = asked_at
        self.gives_up_at = gives_up_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer makes this of."""
        told = {"spec": self.spec, "owner": self.owner, "asked_at": self.asked_at, "gives_up_at": self.gives_up_at}
        return f"{__name__}.{type(self).__qualname__}", {**told, "waiter": self.waiter}

    async def run(self) -> AsyncIterator[Any]:
        """Fire once: with the grant, or with why there is none."""
        try:
            lock = await connection.async_lock(LockSpec(**self.spec), self.owner)
            grant = await self._granted(lock)
        except (lockstead.LocksteadError, ValueError, TypeError) as error:
            yield compat.TriggerEvent(grants.failure(error))
        else:
            self.log.info("%s; the task comes back when a worker slot is free", grant)
            yield compat.TriggerEvent(grant.event)

    async def _granted(self, lock: AsyncLock) -> grants.Grant:
        spec = LockSpec(**self.spec)
        # what an earlier try of ours has noted stands in the record of now, not in that of a moment ago
        held = await _look(spec, lock, afresh=spec.on_unclean == "fail")
        lease = None
        if held is not None and held.owner == self.owner:
            # of an earlier try, or of this trigger before its triggerer died: whoever stands first in the line would
            # wait for it, and this waiter behind that one
            lease = await lock.try_acquire(reclaim=True)
        if lease is None:
            if held is not None and held.owner != self.owner:
                self.log.info("%s", grants.waiting(lock.key, held))
            left = None if self.gives_up_at is None else max(0.0, self.gives_up_at - time.time())
            lease = await lock.acquire(left, reclaim=True)
        try:
            token, before = await token_of(lease), await unclean_before(lock, lease, self.log, own=self.owner)
            told = grants.unclean_of(before, self.owner, held)
            ticket = await _detached(lock, lease, told)
        except BaseException:
            # Nobody is told of it: the task was marked or cleared, the triggerer ends, or the store is lost. It is this
            # very lease that is given back, never the owner's: the next trigger of a task may hold that already.
            with suppress(lockstead.StoreError):
                await lease.release(unused=True)
            raise
        grant = grants.granted(ticket, token, time.time() - self.asked_at, told)
        if self.waiter is not None:
            unbegun.watch(lock, grant, self.waiter, self.log)
        if told is not None and spec.on_unclean == "fail":
            await self._mark(lock, grant)
        return grant

    async def _mark(self, lock: AsyncLock, grant: grants.Grant) -> None:
        """Write into the lease why its task is to fail: the task that is told may be failed before it could."""
        try:
            await lock.renew(grant.ticket, progress=f"{grants.MARK}{grant.unclean}")
        except Exception as error:  # noqa: BLE001 - the grant has been given, and is told of
            self.log.warning("could not note in the lease that %s: %s", grant.unclean, error)


class KeepTrigger(compat.BaseTrigger):  # type: ignore[misc]  # a class that is found when Airflow is there
    """Renews a lease until it ends, and fires then. A store that is silent is asked again, for as long as it takes.

    Between two renewals it looks whether the lease is still there: its run lasts until it has fired. release: dag_id,
    run_id, task_id and map_index of the task that gives the lease back, if there is one; when that has failed for
    good, nobody will, and the lease is left to expire.
    """

    def __init__(self, spec: Mapping[str, Any], ticket: str, release: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.spec = dict(spec)
        self.ticket = ticket
        self.release = None if release is None else dict(release)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer makes this of."""
        told = {"spec": self.spec, "ticket": self.ticket, "release": self.release}
        return f"{__name__}.{type(self).__qualname__}", told

    async def run(self) -> AsyncIterator[Any]:
        """Fire once, with why the lease has ended; where that can, it ends its task itself.

        Its run lasts until the keeper has ended, and one that is resumed for it waits for a slot and a process.
        """
        try:
            event = await self._kept()
        except (lockstead.StoreRefused, ValueError, TypeError) as error:
            event = grants.failure(error)
        if event["state"] != ENDED or not compat.HAS_TASK_SDK:
            # 2.10 would set no end date
            yield compat.TriggerEvent(event)
            return
        tell_ended(event, self.log)
        yield compat.TaskSuccessEvent()

    async def _kept(self) -> dict[str, Any]:
        lock = await connection.async_lock(LockSpec(**self.spec))
        said = lockstead.LeaseTicket.parse(self.ticket)
        renew_every = lock.settings.for_ttl(said.ttl).renew_every
        pause = PAUSE_MIN
        while True:
            try:
                await lock.renew(said)
            except lockstead.LeaseLost as lost:
                return {"state": ENDED, "reason": lost.reason.value, "message": str(lost)}
            except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown) as error:
                self.log.warning("could not renew %r, trying again in %.0f s: %s", said.key, pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_MAX, renew_every)
            else:
                pause = min(PAUSE_MIN, renew_every)
                await self._ended_or_due(lock, said.holder, time.monotonic() + renew_every)
            state = await self._state_of_the_release()
            if state in unbegun.OVER:
                told = (
                    f"{self.release['task_id']} is {state}, so nobody gives it back: it expires" if self.release else ""
                )
                return {"state": ENDED, "reason": "not released", "message": told}

    async def _state_of_the_release(self) -> str | None:
        if self.release is None:
            return None
        try:
            return await compat.state_of(**self.release)
        except Exception as error:  # noqa: BLE001 - whatever Airflow raises, a lease is not given up for it
            self.log.warning("could not see how %s stands: %s", self.release["task_id"], error)
            return None

    async def _ended_or_due(self, lock: AsyncLock, holder: str, due_at: float) -> None:
        """Wait until the next renewal is due; but no longer than until the lease has ended, which it then finds."""
        while (left := due_at - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK_EVERY, left))
            try:
                held = await lock.inspect()
            except Exception:  # noqa: BLE001, S112 - for what stands in a store no lease is given up
                continue  # the renewal says so, when it is due
            # nobody, or whoever waited for it: until the lock is free one would wait too long
            if held is None or held.holder != holder:
                return


class FreeTrigger(compat.BaseTrigger):  # type: ignore[misc]  # a class that is found when Airflow is there
    """Waits until nobody holds a lock, never takes it, and fires: {"state": "free" or "held", ...}."""

    def __init__(self, spec: Mapping[str, Any], gives_up_at: float | None = None) -> None:
        super().__init__()
        self.spec = dict(spec)
        self.gives_up_at = gives_up_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer makes this of."""
        return f"{__name__}.{type(self).__qualname__}", {"spec": self.spec, "gives_up_at": self.gives_up_at}

    async def run(self) -> AsyncIterator[Any]:
        """Fire once."""
        try:
            event = await self._free()
        except (lockstead.LocksteadError, ValueError, TypeError) as error:
            event = grants.failure(error)
        yield compat.TriggerEvent(event)

    async def _free(self) -> dict[str, Any]:
        spec = LockSpec(**self.spec)
        lock = await connection.async_lock(spec)
        held = await _look(spec, lock)
        if held is not None:
            self.log.info("%s", grants.waiting(lock.key, held))
        # one look takes a moment, also for who has no time left
        left = None if self.gives_up_at is None else max(LOOK_MIN, self.gives_up_at - time.time())
        try:
            async with asyncio.timeout(left):
                await _FREE.get(_which(spec), lock.wait_until_free)
        except TimeoutError:
            held = await _look(spec, lock)
            return {"state": "held", "message": grants.waiting(lock.key, held) if held else f"{lock.key!r} is held"}
        return {"state": "free"}


def tell_ended(event: Mapping[str, Any], log: logging.Logger) -> None:
    """Say how a lease that was kept has ended; a warning, if it was neither given back nor had by the next one."""
    say = log.info if event.get("reason") in ("GONE", "TAKEN") else log.warning
    say("the lease has ended: %s", event.get("message"))


def plain(spec: LockSpec) -> dict[str, Any]:
    """Return a spec as what a trigger can be told: text, numbers, mappings."""
    return {**asdict(spec), "labels": dict(spec.labels)}


async def _look(spec: LockSpec, lock: AsyncLock, *, afresh: bool = False) -> LockInfo | None:
    """Look who holds the lock: now, or `LOOK_AGAIN` seconds ago at most."""
    try:
        return await (lock.inspect() if afresh else _LOOKS.get(_which(spec), lock.inspect))
    except Exception:  # noqa: BLE001 - for what stands in a store no wait ends
        return None  # it is for the log, and to spare a wait; who asks for the lock hears of it


async def _detached(lock: AsyncLock, lease: AsyncLease, told: str | None) -> LeaseTicket:
    """Detach a lease, whole; who is cancelled meanwhile gives it back, or leaves it to expire after an unclean end."""
    leaving = asyncio.ensure_future(lease.detach())
    try:
        return await asyncio.shield(leaving)
    except asyncio.CancelledError:
        ticket = await leaving
        if told is None:
            with suppress(lockstead.StoreError):
                await lock.release(ticket)
        raise


def _which(spec: LockSpec) -> tuple[str | None, str | None, str | None]:
    return spec.lock, spec.key, spec.conn_id
