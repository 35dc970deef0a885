"""The reaper of a store: what it revokes, what it leaves alone, and what a change of store or leader does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstead import AsyncClient, LeaseLost, LossReason, StoreUnavailable
from lockstead.monitor.leases import leases
from lockstead.monitor.openmetrics import Metrics
from lockstead.monitor.rounds import Round
from lockstead.protocol.commands import Command, Create, Extend, List, Read
from lockstead.reaper import watch as watches
from lockstead.reaper.alerts import Alert, Outlet
from lockstead.reaper.rules import PATIENCE
from lockstead.reaper.service import KEY, Plan, StoreReaper
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.values import Space
from tests.reaper.test_rules import lease
from tests.runtime.faulty import Faulty, quiet

DUE: dict[str, Any] = {"ttl": 60, "alert_after": 0, "auto_unlock_after": 0}


class Ticks:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


class World:
    """A store in memory, a client of holders, and reapers of it. told: the alerts that were delivered."""

    def __init__(self) -> None:
        self.store = Faulty()
        self.holders = AsyncClient(self.store.beside(), listener=quiet)
        self.told: list[Alert] = []
        self.ticks = Ticks()
        self.made: list[AsyncClient] = []
        self.metrics = Metrics()

    async def deliver(self, alert: Alert) -> None:
        self.told.append(alert)

    def reaper(self, store: Any = None, **plan: Any) -> StoreReaper:
        client = AsyncClient(store or self.store, listener=quiet)
        self.made.append(client)
        given: dict[str, Any] = {"every": 3600.0, "owner": "r1", "prunes": False}
        return StoreReaper(client, Plan(**{**given, **plan}), self.metrics, ticks=self.ticks)

    @asynccontextmanager
    async def acting(self, **plan: Any):
        """A reaper that leads, whose rounds are run by hand, and its outlet."""
        outlet = Outlet("test", self.deliver, 1)
        outlet.start()
        reaper = self.reaper(outlets=[outlet], **plan)
        async with reaper.election.lead() as term:
            reaper.term, reaper.watch.is_acting = term, True
            yield reaper
        await outlet.flush(5)

    async def round(self, reaper: StoreReaper) -> None:
        await reaper.rounds.once()
        await reaper.act()
        await asyncio.gather(*(outlet.tried() for outlet in reaper._plan.outlets))

    def events(self) -> list[tuple[str, str, int]]:
        return [(alert.event, alert.lease.key, alert.number) for alert in self.told]

    async def broken(self) -> list[tuple[str, str | None, str]]:
        return [(entry.key, entry.mode, entry.by) for entry in await self.holders.history()]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the world has a limit
        await asyncio.sleep(0.005)


def in_world(body: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        try:
            async with asyncio.timeout(60):
                await body(world)
        finally:
            for client in (world.holders, *world.made):
                await client.close()

    asyncio.run(run())


def test_a_lock_is_alerted_on_and_then_revoked_once_with_an_audit_entry() -> None:
    async def body(world: World) -> None:
        held = await world.holders.lock("apt", **DUE).acquire()
        async with world.acting() as reaper:
            await world.round(reaper)
            assert world.events() == [("overdue", "apt", 1)]
            assert await world.broken() == []
            for _ in range(3):
                await world.round(reaper)
        assert world.events() == [("overdue", "apt", 1), ("unlocked", "apt", 1)]
        assert await world.broken() == [("apt", "exclusive", "lockstead reap r1")]
        (entry,) = await world.holders.history()
        assert entry.reason.startswith("its holder asked to be unlocked at 20")
        with pytest.raises(LeaseLost) as lost:
            await held.renew()
        assert lost.value.reason is LossReason.REVOKED
        assert b'lockstead_reaped_total{lock="other",store="memory:"} 1.0' in world.metrics.text()

    in_world(body)


def test_of_readers_permits_and_locks_only_what_is_due_is_revoked() -> None:
    async def body(world: World) -> None:
        holders = world.holders
        fine: dict[str, Any] = {"ttl": 60, "expected": 3600, "auto_unlock_after": 7200}
        asked = [
            *(holders.lock("index", mode="shared", **more) for more in (DUE, fine)),
            *(holders.semaphore("pool", 3, **more) for more in (fine, DUE)),
            holders.lock("apt", **fine),
            holders.lock("slow", ttl=60, alert_after=0),
            holders.lock("yum", **DUE),
        ]
        all_held = [await one.try_acquire() for one in asked]
        async with world.acting() as reaper:
            for _ in range(3):
                await world.round(reaper)
        lost = []
        for held in all_held:
            try:
                await held.renew()
            except LeaseLost:
                lost.append(held)
        assert lost == [all_held[0], all_held[3], all_held[6]]
        assert sorted(await world.broken()) == [
            ("index", "shared", "lockstead reap r1"),
            ("pool", f"permit/{all_held[3].slot}", "lockstead reap r1"),
            ("yum", "exclusive", "lockstead reap r1"),
        ]
        assert ("overdue", "slow", 1) in world.events()

    in_world(body)


def at_revocation(store: Faulty, job: Callable[[], Awaitable[object]], *, kind: type = Read) -> None:
    """Do something just before the next command of a kind: between the listing and the revocation."""
    loop = asyncio.get_running_loop()

    def before(command: Command[Any]) -> None:
        is_it = isinstance(command, kind) and command.name.key == "apt"
        if is_it and (kind is Read or "revoked" in getattr(command, "fields", {})):
            store.before = lambda _command: None
            asyncio.run_coroutine_threadsafe(job(), loop).result(30)

    store.before = before


@pytest.mark.parametrize("kind", [Read, Extend], ids=["before it is read", "before it is revoked"])
def test_h37_progress_between_listing_and_revoking_saves_the_lock(kind: type) -> None:
    async def body(world: World) -> None:
        held = await world.holders.lock("apt", **DUE).acquire()
        told: list[str] = []

        async def progress() -> None:
            held.progress("4 of 5")
            await held.renew()
            told.append("4 of 5")

        async with world.acting() as reaper:
            await world.round(reaper)
            at_revocation(world.store, progress, kind=kind)
            await world.round(reaper)
        assert told == ["4 of 5"]
        await held.renew()
        assert await world.broken() == []

    in_world(body)


def test_h37_a_lock_that_changed_hands_between_listing_and_revoking_is_left_alone() -> None:
    async def body(world: World) -> None:
        lock = world.holders.lock("apt", **DUE)
        held = await lock.acquire()
        successors = []

        async def passes_on() -> None:
            await held.release()
            successors.append(await lock.acquire())

        async with world.acting() as reaper:
            await world.round(reaper)
            at_revocation(world.store, passes_on)
            await world.round(reaper)
        await successors[0].renew()
        assert await world.broken() == []

    in_world(body)


def test_h37_a_reaper_that_was_killed_before_its_audit_entry_is_completed_by_the_next() -> None:
    async def body(world: World) -> None:
        await world.holders.lock("apt", **DUE).acquire()

        def no_audit(command: Command[Any]) -> None:
            if isinstance(command, Create) and command.name.space is Space.AUDIT:
                raise StoreUnavailable("killed")

        async with world.acting() as reaper:
            await world.round(reaper)
            world.store.before = no_audit
            await world.round(reaper)
        world.store.before = lambda _command: None
        assert await world.broken() == []
        async with world.acting(owner="r2") as reaper:
            for _ in range(3):
                await world.round(reaper)
        assert await world.broken() == [("apt", "exclusive", "lockstead reap r1")]
        assert world.events() == [("overdue", "apt", 1), ("unlocked", "apt", 1)]

    in_world(body)


def test_h37_an_unlock_is_told_although_its_audit_entry_was_written_late() -> None:
    async def body(world: World) -> None:
        await world.holders.lock("apt", **DUE).acquire()

        def no_audit(command: Command[Any]) -> None:
            if isinstance(command, Create) and command.name.space is Space.AUDIT:
                raise StoreUnavailable("it restarts")

        async with world.acting() as reaper:
            await world.round(reaper)
            world.store.before = no_audit
            await world.round(reaper)
            world.store.before = lambda _command: None
            for _ in range(3):
                await world.round(reaper)
        assert await world.broken() == [("apt", "exclusive", "lockstead reap r1")]
        assert world.events() == [("overdue", "apt", 1), ("unlocked", "apt", 1)]

    in_world(body)


def test_a_lease_that_reported_progress_is_alerted_on_anew_before_it_is_revoked() -> None:
    async def body(world: World) -> None:
        clock = world.holders._engine.clock = world.holders._engine.keeper._clock = Skewed(0.0)
        soon: dict[str, Any] = {"ttl": 60, "alert_after": 100, "auto_unlock_after": 100}
        held = await world.holders.lock("apt", **soon).acquire()

        async def passes(seconds: float, *, is_progress: bool = False) -> None:
            clock.by = seconds
            if is_progress:
                held.progress("4 of 5")
            await held.renew()

        async with world.acting() as reaper:
            reaper.rounds._wall = clock.wall
            await passes(150)
            await world.round(reaper)
            at_revocation(world.store, lambda: passes(160, is_progress=True))
            await world.round(reaper)
            await world.round(reaper)
            assert world.events() == [("overdue", "apt", 1)]
            await passes(300)
            await world.round(reaper)
            assert world.events() == [("overdue", "apt", 1)] * 2
            assert await world.broken() == []
            await world.round(reaper)
            assert len(await world.broken()) == 1

    in_world(body)


def test_a_reaper_that_lost_its_term_does_nothing_more() -> None:
    async def body(world: World) -> None:
        held = await world.holders.lock("apt", **DUE).acquire()
        async with world.acting() as reaper:
            await world.round(reaper)
            await reaper.rounds.once()
            assert [task.act.value for task in reaper.watch.tasks] == ["revoke"]
            assert reaper.term is not None
            reaper.term.resign()
            await reaper.act()
        await held.renew()
        assert await world.broken() == []

    in_world(body)


def test_alerts_are_repeated_and_begin_anew_under_a_new_leader() -> None:
    async def body(world: World) -> None:
        held = await world.holders.lock("apt", ttl=60, alert_after=0).acquire()
        async with world.acting(repeat=600.0) as reaper:
            for at in (0, 599, 600, 601, 1200):
                world.ticks.at = at
                await world.round(reaper)
            assert [alert.number for alert in world.told] == [1, 2, 3]
            reaper.watch.forget()
            await world.round(reaper)
            assert [alert.number for alert in world.told] == [1, 2, 3, 1]
        assert len({alert.facts()["id"] for alert in world.told}) == 3, "a repeated alert is the same one"
        await held.release()

    in_world(body)


def test_a_receiver_that_hangs_delays_no_round_and_an_unlock_by_a_bounded_time() -> None:
    async def body(world: World) -> None:
        hangs = asyncio.Event()

        async def hang(_alert: Alert) -> None:
            await hangs.wait()

        await world.holders.lock("apt", **DUE).acquire()
        outlet = Outlet("hangs", hang, 1)
        outlet.start()
        reaper = world.reaper(outlets=[outlet])
        async with reaper.election.lead() as term:
            reaper.term, reaper.watch.is_acting = term, True
            for at in (0.0, PATIENCE - 1):
                world.ticks.at = at
                await reaper.rounds.once()
                await reaper.act()
                assert await world.broken() == []
            world.ticks.at = PATIENCE
            await reaper.rounds.once()
            await reaper.act()
            assert len(await world.broken()) == 1
        hangs.set()
        await outlet.flush(5)

    in_world(body)


def test_a_store_that_is_down_is_logged_once_and_watched_again_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockstead.reaper")

    def down(_command: Command[Any]) -> None:
        raise StoreUnavailable("it is down")

    async def body(world: World) -> None:
        reaper = world.reaper()
        await world.round(reaper)
        assert reaper.facts(reaper.watch.last.began_at)["ok"]
        world.store.before = down
        for _ in range(3):
            await world.round(reaper)
        facts = reaper.facts(reaper.watch.last.began_at)
        assert (facts["ok"], facts["error"], facts["locks"]) == (False, "it is down", 0)
        world.store.before = lambda _command: None
        await world.round(reaper)
        assert reaper.facts(reaper.watch.last.began_at)["ok"]
        assert not reaper.facts(reaper.watch.last.began_at + 1e6)["ok"], "a round that hangs is no good sign"

    in_world(body)
    assert [record.message for record in caplog.records] == [
        "memory:: the store does not answer: it is down",
        "memory:: the store answers again",
    ]


def test_a_dry_run_says_what_it_would_do_and_only_reads(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        await world.holders.lock("apt", **DUE).acquire()
        outlet = Outlet("test", world.deliver, 1)
        assert await world.reaper(is_dry=True, outlets=[outlet]).once(1.0) is None
        assert {type(command) for command in world.store.seen} == {List}
        assert world.told == []

    in_world(body)
    said = [record.message for record in caplog.records if record.name == "lockstead.reaper"]
    assert len(said) == 2
    assert "'apt' is overdue since" in said[0]
    assert "'apt' would be unlocked: its holder asked" in said[1]


def test_once_alerts_and_then_unlocks() -> None:
    async def body(world: World) -> None:
        await world.holders.lock("apt", **DUE).acquire()
        outlet = Outlet("test", world.deliver, 1)
        assert await world.reaper(outlets=[outlet]).once(5.0) is None
        assert world.events() == [("overdue", "apt", 1), ("unlocked", "apt", 1)]
        assert await world.holders.lock(KEY).inspect() is None
        await outlet.flush(5)

    in_world(body)


def test_of_two_reapers_one_acts_and_the_other_takes_over_when_it_is_stopped() -> None:
    async def body(world: World) -> None:
        stops = [asyncio.Event(), asyncio.Event()]
        reapers = [world.reaper(owner="r1"), world.reaper(world.store.beside(), owner="r2")]
        tasks = [asyncio.create_task(one.run(stop)) for one, stop in zip(reapers, stops, strict=True)]

        await until(lambda: any(one.leads for one in reapers))
        first = reapers.index(next(one for one in reapers if one.leads))
        other = reapers[1 - first]
        await until(lambda: all(one.watch.last is not None for one in reapers))
        assert not other.leads
        stops[first].set()
        await tasks[first]
        await until(lambda: other.leads)
        stops[1 - first].set()
        await tasks[1 - first]
        assert await world.holders.lock(KEY).inspect() is None

    in_world(body)


def test_however_many_locks_are_overdue_a_bounded_number_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "NOTED_MAX", 3)

    async def body(world: World) -> None:
        for number in range(5):
            await world.holders.lock(f"k{number}", ttl=60, alert_after=0).acquire()
        async with world.acting() as reaper:
            await world.round(reaper)
            assert len(world.told) == 3
            assert (reaper.watch.unnoted, reaper.watch.overdue) == (2, 5)

    in_world(body)


def test_what_a_listing_shows_twice_is_alerted_on_once() -> None:
    async def body(world: World) -> None:
        await world.holders.lock("apt", **DUE).acquire()
        (info,) = await world.holders.list()
        async with world.acting() as reaper:
            for _ in range(2):
                reaper.watch.began(info.acquired_epoch + 1)
                reaper.watch.saw(info)
                reaper.watch.saw(info)
                assert len(reaper.watch.tasks) == 1
                for task in reaper.watch.tasks:
                    reaper.watch.alerted(task.noted)
                    task.noted.is_told = True

    in_world(body)


def test_after_progress_the_next_crossing_is_a_first_one_and_a_failed_round_forgets_nothing() -> None:
    async def body(world: World) -> None:
        async with world.acting() as reaper:
            began, numbers = 1_800_000_000.0, []
            shown: list[tuple[float | None, float, str | None]] = [
                (0.0, 1.0, None), (None, 2.0, "down"), (0.0, 3.0, None), (9.0, 4.0, None), (9.0, 9.0, None)
            ]  # fmt: skip
            for alert_at, now, error in shown:
                reaper.watch.began(began + now)
                if alert_at is not None:
                    reaper.watch.saw(lease(acquired_epoch=began, alert_epoch=began + alert_at, age=None))
                for task in reaper.watch.tasks:
                    reaper.watch.alerted(task.noted)
                    numbers.append((now, task.noted.alerts))
                reaper.watch.ended(Round("memory:", 1, began + now, 0.0, 1, error))
            assert numbers == [(1.0, 1), (9.0, 1)]

    in_world(body)


class Skewed:
    """The clocks of a machine whose wall clock is wrong."""

    now = staticmethod(SYSTEM_CLOCK.now)

    def __init__(self, by: float) -> None:
        self.by = by

    def wall(self) -> float:
        return SYSTEM_CLOCK.wall() + self.by


@pytest.mark.parametrize("kind", ["lock", "reader", "permit"])
def test_h38_a_holder_whose_clock_is_a_day_behind_is_not_unlocked_early(kind: str) -> None:
    async def body(world: World) -> None:
        world.holders._engine.clock = Skewed(-86400.0)
        soon: dict[str, Any] = {"ttl": 60, "expected": 600, "auto_unlock_after": 3600}
        lock = world.holders.lock("apt", mode="shared" if kind == "reader" else "exclusive", **soon)
        held = await (world.holders.semaphore("apt", 2, **soon) if kind == "permit" else lock).acquire()
        async with world.acting() as reaper:
            (info,) = [one for one in await reaper.client.list() if one.key == "apt"]
            (shown,) = leases(info)
            assert shown.auto_unlock_epoch is not None
            assert shown.auto_unlock_epoch < SYSTEM_CLOCK.wall() - 80_000
            for renewed in (False, True):
                if renewed:
                    await held.renew()
                for _ in range(3):
                    await world.round(reaper)
        assert world.told == []
        await held.renew()

    in_world(body)


def test_leftovers_are_pruned_while_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        called = asyncio.Event()

        async def prune(**pace: float) -> Any:
            assert pace == {"per_second": 2.0, "at_most": 500}
            called.set()
            raise StoreUnavailable("it is down")

        for prunes in (True, False):
            called.clear()
            reaper, stop = world.reaper(prunes=prunes), asyncio.Event()
            monkeypatch.setattr(reaper.client, "prune", prune)
            monkeypatch.setattr("lockstead.reaper.service.PRUNE_FIRST", 0.0)
            running = asyncio.create_task(reaper.run(stop))
            if prunes:
                await called.wait()
            await until(lambda reaper=reaper: reaper.leads)
            assert called.is_set() is prunes
            stop.set()
            await running

    in_world(body)
