"""The reaper of some stores: of all reapers that watch a store, the one that leads its election acts.

The election only saves work and repeated alerts. That a lease is revoked once, and audited once, does not depend on it:
a revocation expects exactly the lease, and the state, that it was decided on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lockstead.aio_election import AsyncElection
from lockstead.aio_lease import converse
from lockstead.aio_lock import AsyncClient
from lockstead.errors import LocksteadError, StoreError
from lockstead.monitor.names import LockNames
from lockstead.monitor.openmetrics import Metrics
from lockstead.monitor.rounds import Round, Rounds
from lockstead.operations import PLAIN, LockOperations
from lockstead.reading import clean, date_text
from lockstead.reaper.alerts import Alert, Outlet, instant
from lockstead.reaper.rules import BY, Act
from lockstead.reaper.watch import Task, Watch
from lockstead.values import SHARED

if TYPE_CHECKING:
    from lockstead.aio_term import AsyncTerm
    from lockstead.views import BreakResult

log = logging.getLogger("lockstead.reaper")

KEY: Final = "lockstead-reaper"
"""The key of the election of a store's reapers; a lock of this name is seen in every listing."""

TTL: Final = 20.0
"""The ttl of a term: for how long nobody acts after a reaper was killed."""

REVOKED_MAX: Final = 1000
"""Revocations of one round; the next goes on."""

CAMPAIGN_AGAIN: Final = 30.0
"""Seconds until the next campaign on a store that refused one."""

FLUSH: Final = 5.0
"""Seconds for the delivery of alerts at the end."""

PRUNE_FIRST: Final = 300.0
PRUNE_EVERY: Final = 3600.0
PRUNED_PER_SECOND: Final = 2.0
PRUNED_MAX: Final = 500
"""Records that are removed each hour at most: nobody is in a hurry."""

STALE: Final = 3.0
"""Rounds without an end after which a store counts as not watched; at least 30 s."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all stores have in common. owner: of this reaper; value: what it advertises as leader."""

    every: float = 30.0
    repeat: float = 600.0
    is_dry: bool = False
    prunes: bool = True
    owner: str | None = None
    value: str | None = None
    names: LockNames = field(default_factory=LockNames)
    outlets: Sequence[Outlet] = ()


class StoreReaper:
    """The reaper of one store. Its election, its rounds and its acts each go on while another one waits."""

    def __init__(
        self,
        client: AsyncClient,
        plan: Plan,
        metrics: Metrics,
        *,
        ticks: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.client = client
        self.store = client._engine.store.url
        self.term: AsyncTerm | None = None
        self._plan = plan
        self._metrics = metrics.of(self.store)
        self._metrics.leads = lambda: self.leads
        self.watch = Watch(plan.repeat, self._ended, ticks)
        self.rounds = Rounds(client, [self._metrics, self.watch], plan.every, wall=wall)
        settings: Any = {"ttl": TTL, "purpose": "watches this store's locks"}
        if plan.owner is not None:
            settings["owner"] = plan.owner
        # a deposed reaper does no harm, so the store needs no fencing tokens
        self.election = AsyncElection._at(client._engine, KEY, settings, value=plan.value, fenced=False)
        self._wall = wall
        self._is_due = asyncio.Event()
        self._is_down = False
        self._is_refused = False

    @property
    def leads(self) -> bool:
        """Whether this reaper acts."""
        return self.term is not None and self.term.is_held

    @property
    def by(self) -> str:
        """Who revokes, for the holder and the history."""
        from lockstead.runtime.engine import default_owner

        return f"{BY} {self._plan.owner or default_owner()}"

    # --- leading -------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the store, and act while this reaper leads, until `stop` is set. Then resign."""
        jobs = [self.rounds.run(stop), self._act_when_due(stop)]
        if self._plan.is_dry:
            self.watch.is_acting = True
        else:
            jobs.append(self._campaign(stop))
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
            group.create_task(self._close(stop))

    async def _close(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.election.close()
        self._is_due.set()

    async def _campaign(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.election.run(lambda term: self._lead(term, stop))
            except LocksteadError as error:
                if not self._is_refused:
                    log.warning("%s: cannot campaign: %s", self.store, clean(str(error)))
                self._is_refused = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(CAMPAIGN_AGAIN):
                        await stop.wait()

    async def _lead(self, term: AsyncTerm, stop: asyncio.Event) -> None:
        """Act until the term ends. Alerts begin anew: what an earlier leader told is not known."""
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()

        def lost(*_: object) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(is_over.set)

        term.on_lost(lost)
        self._is_refused = False
        log.info("%s: this reaper acts, term %s", self.store, term.token)
        self.watch.forget()
        self.term, self.watch.is_acting = term, True
        self.rounds.wake()
        waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(is_over.wait())]
        beside = [asyncio.ensure_future(self._prune())] if self._plan.prunes else []
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (*waits, *beside):
                one.cancel()
            self.term, self.watch.is_acting = None, False
            self.watch.forget()
            log.info("%s: this reaper no longer acts", self.store)

    async def _prune(self) -> None:
        """Remove what nobody else removes, slowly, while this reaper leads."""
        await asyncio.sleep(PRUNE_FIRST)
        while True:
            try:
                pruned = await self.client.prune(per_second=PRUNED_PER_SECOND, at_most=PRUNED_MAX)
            except StoreError as error:
                log.warning("%s: not pruned: %s", self.store, clean(str(error)))
            else:
                if count := sum(pruned.removed.values()):
                    log.info("%s: removed %d records of dead processes and old history", self.store, count)
            await asyncio.sleep(PRUNE_EVERY)

    async def once(self, patience: float) -> str | None:
        """Do what one round asks for; return why the store did not answer. NotAcquired if another reaper acts."""
        if self._plan.is_dry:
            self.watch.is_acting = True
            return await self._round_of_once()
        for outlet in self._plan.outlets:
            outlet.start()
        async with self.election.lead(timeout=patience) as term:
            self.term, self.watch.is_acting = term, True
            return await self._round_of_once()

    async def _round_of_once(self) -> str | None:
        """Alert in one round, and revoke in the next."""
        for _ in range(2):
            done = await self.rounds.once()
            if done.error is not None:
                return done.error
            await self.act()
            await asyncio.gather(*(outlet.tried() for outlet in self._plan.outlets))
        return None

    # --- acting --------------------------------------------------------------------------------------------------

    def _ended(self, done: Round) -> None:
        if done.error is not None and not self._is_down:
            log.error("%s: the store does not answer: %s", self.store, done.error)
        elif done.error is None and self._is_down:
            log.warning("%s: the store answers again", self.store)
        self._is_down = done.error is not None
        if self.watch.unnoted:
            log.error("%s: %d more locks are overdue and not followed", self.store, self.watch.unnoted)
        self._is_due.set()

    async def _act_when_due(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._is_due.wait()
            self._is_due.clear()
            await self.act()

    async def act(self) -> None:
        """Carry out the tasks of the last round, as long as this reaper leads."""
        tasks, self.watch.tasks = self.watch.tasks, []
        revoked = 0
        for task in tasks:
            if not (self._plan.is_dry or self.leads):
                return
            if task.act is Act.ALERT:
                self._alert(task)
            elif self._plan.is_dry:
                self._would(task)
            elif revoked < REVOKED_MAX:
                revoked += 1
                try:
                    await self._revoke(task)
                except (StoreError, ValueError) as error:
                    # the lease is as it was, or the next round shows it revoked and completes that
                    log.warning("%s: %r may not be revoked: %s", self.store, task.lease.key, clean(str(error)))
                    if isinstance(error, StoreError):
                        return

    def _alert(self, task: Task) -> None:
        lease = task.lease
        self.watch.alerted(task.noted)
        at = lease.alert_epoch if lease.alert_epoch is not None else lease.auto_unlock_epoch
        still = " still" if task.noted.alerts > 1 else ""
        unlock = "" if lease.auto_unlock_epoch is None else f", to be unlocked at {date_text(lease.auto_unlock_epoch)}"
        log.warning(
            "%s: %s is%s overdue since %s: held by %s%s%s",
            self.store,
            _what(lease.key, lease.slot, lease.mode),
            still,
            date_text(at),
            clean(lease.owner or lease.holder),
            f" ({clean(lease.purpose)})" if lease.purpose else "",
            unlock,
        )
        if self._plan.is_dry:
            task.noted.is_told = True
            return
        self._submit("overdue", task)

    def _submit(self, event: str, task: Task) -> None:
        waits_for = len(self._plan.outlets)
        noted = task.noted

        def tried() -> None:
            nonlocal waits_for
            waits_for -= 1
            noted.is_told = noted.is_told or waits_for <= 0

        name = self._plan.names.name(task.lease.key)
        alert = Alert(event, self.store, task.lease, name, max(1, noted.alerts), self._wall(), self.by)
        noted.is_told = noted.is_told or not waits_for
        for outlet in self._plan.outlets:
            outlet.submit(alert, tried)

    def _would(self, task: Task) -> None:
        if task.act is Act.REVOKE and not task.noted.is_done:
            what = _what(task.lease.key, task.lease.slot, task.lease.mode)
            log.warning("%s: %s would be unlocked: %s", self.store, what, _reason(task))
            task.noted.is_done = True

    async def _revoke(self, task: Task) -> None:
        """Revoke exactly this lease; another one is left alone."""
        lease = task.lease
        done = await self._broken(task)
        what = _what(lease.key, lease.slot, lease.mode)
        is_ours = done is not None and (done.was.revoked_by is None or done.removed)
        if is_ours:
            self._metrics.reap(lease.key)
            log.warning("%s: %s is unlocked: %s", self.store, what, _reason(task))
        elif task.act is Act.REVOKE:
            log.info("%s: %s was not unlocked: it has changed since it was listed", self.store, what)
        # whoever revoked it may have failed before it told anybody
        task.noted.is_done = is_ours or task.act is Act.COMPLETE
        if is_ours or (task.act is Act.COMPLETE and done is not None):
            self._submit("unlocked", task)

    async def _broken(self, task: Task) -> BreakResult | None:
        lease, engine = task.lease, self.client._engine
        lock = LockOperations(engine, lease.key, PLAIN, "" if lease.slot is None else str(lease.slot))
        script = lock.broken(
            reason=_reason(task),
            by=self.by,
            now=False,
            incarnation=lease.incarnation,
            reader=lease if lease.mode == SHARED else None,
            # progress in between moves it; a lease that was downgraded is that of all readers
            judges=lambda record: record.auto_unlock_at == lease.auto_unlock_epoch and record.is_exclusive,
            insists=True,
        )
        return await converse(engine, PLAIN, script)

    # --- for /healthz --------------------------------------------------------------------------------------------

    def is_watched(self, now: float) -> bool:
        """Whether the last round succeeded, and not too long ago. now: seconds since the epoch."""
        last = self.watch.last
        return last is not None and last.error is None and now - last.began_at < max(30.0, STALE * self._plan.every)

    def facts(self, now: float) -> dict[str, Any]:
        """Return the state for /healthz."""
        last, whole = self.watch.last, self.watch.last_whole
        return {
            "store": self.store,
            "ok": self.is_watched(now),
            "leads": self.leads,
            "error": None if last is None else last.error,
            "last_round_at": None if whole is None else instant(whole.began_at),
            "last_round_age": None if whole is None else round(max(0.0, now - whole.began_at), 3),
            "last_round_took": None if whole is None else round(whole.took, 3),
            "locks": None if whole is None else whole.locks,
            "overdue": None if whole is None else self.watch.overdue,
        }


def _what(key: str, slot: int | None, mode: str) -> str:
    if slot is not None:
        return f"permit {slot} of {key!r}"
    return f"a reader of {key!r}" if mode == SHARED else repr(key)


def _reason(task: Task) -> str:
    return f"its holder asked to be unlocked at {date_text(task.lease.auto_unlock_epoch)}"


async def run_all(reapers: Sequence[StoreReaper], plan: Plan, stop: asyncio.Event) -> None:
    """Run the reapers of all stores until `stop` is set; then resign, deliver what is queued, and close the stores."""
    for outlet in plan.outlets:
        outlet.start()
    try:
        async with asyncio.TaskGroup() as group:
            for reaper in reapers:
                group.create_task(reaper.run(stop))
    finally:
        await flushed(plan.outlets)
        for reaper in reapers:
            await reaper.client.close()


async def flushed(outlets: Sequence[Outlet]) -> None:
    """Deliver what is queued, for at most some seconds, and end the deliveries."""
    await asyncio.gather(*(outlet.flush(FLUSH) for outlet in outlets))
