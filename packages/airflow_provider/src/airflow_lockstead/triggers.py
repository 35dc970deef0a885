"""The triggers: wait for a lock, renew it between tasks, wait until it is free.

Three coroutines on the core's async API. Waiters share their requests: those for locks of one store and client object
are in one local queue for each key, and only the first sends requests. `cleanup()` is not overridden: it also runs when
a triggerer ends, and the trigger continues in another one. Must not know workers.
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
from lockstead.wrapping.aio_acquiring import give_back, token_of, unclean_before
from lockstead.wrapping.locks import keeps_out, leases_of
from lockstead.wrapping.messages import is_held, waiting_for

if TYPE_CHECKING:
    import logging

    from lockstead import AsyncLease, AsyncLock, LeaseTicket, LockInfo

SHARED_READ_TTL: Final = 5.0
"""Seconds for which one read of a lock's holder is shared by all triggers that start to wait for it."""

LOOK_MIN: Final = 2.0
"""Minimum seconds of a wait until a lock is free."""

ENDED: Final = "ended"
"""The state in a keeper's event after its lease has ended, for whatever reason."""

LOOK_EVERY: Final = 3.0
"""Seconds between two checks of a keeper whether its lease has ended: its run lasts at most that much longer."""

PAUSE_MIN: Final = 1.0
PAUSE_MAX: Final = 30.0
"""Minimum and maximum seconds between two attempts to renew while the store does not answer."""

_LOOKS: Final[Shared[LockInfo | None]] = Shared(SHARED_READ_TTL)
_FREE: Final[Shared[bool]] = Shared()


class WaitTrigger(compat.BaseTrigger):  # type: ignore[misc]  # the base class is found at run time
    """Waits for a lock and fires with its ticket; nothing renews the lease then, so it expires after its ttl.

    spec: a `LockSpec` as a plain mapping, templates rendered. owner: the same for all tries: a lease of this owner is
    taken over. gives_up_at, asked_at: seconds since the epoch; gives_up_at None waits forever. waiter: dag_id, run_id,
    task_id and map_index of the waiting task: if it ends before its body begins, the lease is released.
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
        """Fire once: with the grant, or with the error."""
        try:
            lock = await connection.async_lock(LockSpec(**self.spec), self.owner)
            grant = await self._granted(lock)
        except (lockstead.LocksteadError, ValueError, TypeError) as error:
            yield compat.TriggerEvent(grants.failure(error))
        else:
            self.log.info("%s; the task resumes when a worker slot is free", grant)
            yield compat.TriggerEvent(grant.event)

    async def _granted(self, lock: AsyncLock) -> grants.Grant:
        spec = LockSpec(**self.spec)
        # a note of an earlier try of this task is in the current record, maybe not yet in a shared earlier read
        held = await _look(spec, lock, afresh=spec.on_unclean == "fail")
        lease = None
        reclaim = connection.reclaims(lock)
        if reclaim and held is not None and held.owner == self.owner:
            # the lease is of an earlier try, or of this trigger before its triggerer died; in the local queue this
            # waiter could be behind one that waits for that same lease
            lease = await lock.try_acquire(reclaim=True)
        if lease is None:
            if held is not None and held.owner != self.owner and keeps_out(lock, held):
                self.log.info("%s", waiting_for(lock.key, held))
            left = None if self.gives_up_at is None else max(0.0, self.gives_up_at - time.time())
            lease = await lock.acquire(left, reclaim=reclaim)
        try:
            token, before = await token_of(lease), await unclean_before(lock, lease, self.log, own=self.owner)
            told = grants.unclean_of(before, self.owner, held)
            ticket = await _detached(lock, lease, told)
        except BaseException:
            # No task gets this grant: the task was marked or cleared, the triggerer ends, or the store fails. Exactly
            # this lease is released, not any lease of the owner: the task's next trigger may already hold one.
            await give_back(lease, self.log)
            raise
        grant = grants.granted(ticket, token, time.time() - self.asked_at, told)
        if self.waiter is not None:
            unbegun.watch(lock, grant, self.waiter, self.log)
        if told is not None and spec.on_unclean == "fail":
            await self._mark(lock, grant)
        return grant

    async def _mark(self, lock: AsyncLock, grant: grants.Grant) -> None:
        """Write into the lease why its task must fail: Airflow may fail the task before it handles the event."""
        try:
            await lock.renew(grant.ticket, progress=f"{grants.MARK}{grant.unclean}")
        except Exception as error:  # noqa: BLE001 - the lock is granted, and the event has the reason too
            self.log.warning("could not note in the lease that %s: %s", grant.unclean, error)


class KeepTrigger(compat.BaseTrigger):  # type: ignore[misc]  # the base class is found at run time
    """Renews a lease until it ends, then fires. If the store does not answer, it retries without limit.

    Between two renewals it checks whether the lease still exists, since its DAG run lasts until it has fired. release:
    dag_id, run_id, task_id and map_index of the task that releases the lease, if there is one; once that has failed
    without further retries, the lease is left to expire.
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
        """Fire once, with the reason why the lease ended; if this Airflow supports it, end the task from the trigger.

        The DAG run lasts until the keeper has ended, and a resumed task would have to wait for a slot and a process.
        """
        try:
            event = await self._kept()
        except (lockstead.StoreRefused, ValueError, TypeError) as error:
            event = grants.failure(error)
        if event["state"] != ENDED or not compat.HAS_TASK_SDK:
            # Airflow 2.10 would not set an end date
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
                    f"{self.release['task_id']} is {state}, so the lease is not released: it expires"
                    if self.release
                    else ""
                )
                return {"state": ENDED, "reason": "not released", "message": told}

    async def _state_of_the_release(self) -> str | None:
        if self.release is None:
            return None
        try:
            return await compat.state_of(**self.release)
        except Exception as error:  # noqa: BLE001 - an error of Airflow must not end the renewals
            self.log.warning("could not read the state of %s: %s", self.release["task_id"], error)
            return None

    async def _ended_or_due(self, lock: AsyncLock, holder: str, due_at: float) -> None:
        """Wait until the next renewal is due, or the lease has ended, which the renewal then finds."""
        while (left := due_at - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK_EVERY, left))
            try:
                held = await lock.inspect()
            except Exception:  # noqa: BLE001, S112 - an unreadable record must not end the renewals
                continue  # the next renewal reports it
            # not only if it is free: the next waiter may hold it already
            if all(one.holder != holder for one in leases_of(held)):
                return


class FreeTrigger(compat.BaseTrigger):  # type: ignore[misc]  # the base class is found at run time
    """Waits until nobody holds a lock, without acquiring it, and fires: {"state": "free" or "held", ...}."""

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
        if keeps_out(lock, held):
            self.log.info("%s", waiting_for(lock.key, held))
        # even if no time is left, one read needs some
        left = None if self.gives_up_at is None else max(LOOK_MIN, self.gives_up_at - time.time())
        try:
            async with asyncio.timeout(left):
                await _FREE.get(_which(spec), lock.wait_until_free)
        except TimeoutError:
            held = await _look(spec, lock)
            return {"state": "held", "message": is_held(lock.key, held)}
        return {"state": "free"}


def tell_ended(event: Mapping[str, Any], log: logging.Logger) -> None:
    """Log how a kept lease ended; as a warning if it was neither released nor taken by the next holder."""
    say = log.info if event.get("reason") in ("GONE", "TAKEN") else log.warning
    say("the lease has ended: %s", event.get("message"))


def plain(spec: LockSpec) -> dict[str, Any]:
    """Return a spec as plain values that a trigger can serialize: text, numbers, mappings."""
    return {**asdict(spec), "labels": dict(spec.labels)}


async def _look(spec: LockSpec, lock: AsyncLock, *, afresh: bool = False) -> LockInfo | None:
    """Return who holds the lock, read at most `SHARED_READ_TTL` seconds ago, or now if afresh; None also on errors."""
    try:
        return await (lock.inspect() if afresh else _LOOKS.get(_which(spec), lock.inspect))
    except Exception:  # noqa: BLE001 - an unreadable record must not end the wait
        return None  # the result is for the log, or saves a wait; the acquisition reports the error


async def _detached(lock: AsyncLock, lease: AsyncLease, told: str | None) -> LeaseTicket:
    """Detach a lease, to the end even if cancelled; then release it, or leave it to expire after an unclean end."""
    leaving = asyncio.ensure_future(lease.detach())
    try:
        return await asyncio.shield(leaving)
    except asyncio.CancelledError:
        ticket = await leaving
        if told is None:
            with suppress(lockstead.StoreError):
                await lock.release(ticket)
        raise


def _which(spec: LockSpec) -> tuple[str | int | None, ...]:
    return spec.lock, spec.key, spec.conn_id, spec.mode, spec.permits
