"""A lease that its holder renews explicitly, before something that cannot be interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstead import AsyncClient, LeaseLost, LossReason, StoreRefused, StoreUnavailable
from lockstead.events import Detached, LockEvent, Released
from lockstead.protocol.commands import Command, Extend
from tests.runtime.faulty import Faulty, Ticking, quiet, refuse, until

TTL = 80.0
BELIEVED = TTL * 0.99


def test_a_renewal_at_ones_own_word_begins_a_whole_ttl() -> None:
    store = Faulty()
    ticking = Ticking(store)
    with ticking.client as client, client.lock("apt", ttl=TTL).acquire() as lease:
        ticking.clock.at += 5.0
        assert lease.time_left == pytest.approx(BELIEVED - 5.0)
        assert lease.renew() == pytest.approx(BELIEVED) == lease.time_left
        assert store.count(Extend) == 1
        # one that the keeper has under way is waited for by the release as before
        lease._lease_state.in_flight = True
        lease.renew()
        assert lease._lease_state.in_flight is True
        lease._lease_state.in_flight = False


def test_a_renewal_that_finds_the_lease_broken_tells_the_loss() -> None:
    with Ticking(Faulty()).client as client:
        lease = client.lock("apt", ttl=TTL).acquire()
        told: list[object] = []
        lease.on_lost(lambda: told.append(lease.lost_reason))
        client.lock("apt").break_lease(reason="test")
        with pytest.raises(LeaseLost) as caught:
            lease.renew()
        assert caught.value.reason is LossReason.REVOKED
        until(lambda: told == [LossReason.REVOKED])
        with pytest.raises(LeaseLost):
            lease.renew()


def test_a_silent_store_costs_a_renewal_and_not_the_lease() -> None:
    store = Faulty()
    with Ticking(store).client as client:
        with client.lock("apt", ttl=TTL, backoff_min=0.001, backoff_max=0.002).acquire() as lease:
            store.before = refuse
            with pytest.raises(StoreUnavailable):
                lease.renew()
            store.before = lambda _command: None
            assert lease.time_left == pytest.approx(BELIEVED)


def test_an_explicit_renewal_stores_progress_or_leaves_it_pending() -> None:
    store = Faulty()
    with Ticking(store).client as client:
        lock = client.lock("apt", ttl=TTL, expected=60, backoff_min=0.001, backoff_max=0.002)

        def shown() -> str | None:
            held = lock.inspect()
            return None if held is None else held.progress

        with lock.acquire() as lease:
            lease.progress("3 of 5")
            store.before = refuse
            with pytest.raises(StoreUnavailable):
                lease.renew()
            store.before = lambda _command: None
            lease.renew()
            assert shown() == "3 of 5"
            store.before = refuse
            lease.progress("4 of 5")
            with pytest.raises(StoreUnavailable):
                lease.renew()
            lease.progress("5 of 5")
            store.before = lambda _command: None
            lease.renew()
            assert shown() == "5 of 5"
            assert lease._kept.progress is None


def test_a_refused_progress_text_does_not_lose_the_lease() -> None:
    store = Faulty()

    def refuses_progress(command: Command[Any]) -> None:
        if isinstance(command, Extend) and "progress" in command.fields:
            raise StoreRefused("too long")

    store.before = refuses_progress
    with Ticking(store).client as client:
        with client.lock("apt", ttl=TTL).acquire() as lease:
            lease.progress("1 of 3")
            with pytest.raises(StoreRefused):
                lease.renew()
            assert lease.renew() == pytest.approx(BELIEVED)


def test_a_task_renews_likewise_and_so_does_a_member() -> None:
    store = Faulty()

    async def renew() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            async with client.lock("apt", ttl=TTL).hold() as lease:
                assert TTL * 0.9 < await lease.renew() <= BELIEVED
                member = await client.lock("apt").attach(await lease.share())
                assert TTL * 0.9 < await member.renew() <= BELIEVED
                await member.release()

    asyncio.run(renew())


def test_who_leaves_a_lease_is_not_told_to_have_released_it() -> None:
    told: list[LockEvent] = []
    with Ticking(Faulty(), told.append).client as client:
        lease = client.lock("apt", ttl=TTL).acquire()
        assert client.lock("apt").attach(lease.share()).release() is True
        assert [type(event) for event in told if isinstance(event, Released | Detached)] == [Detached]
        lease.release()
        assert [type(event) for event in told if isinstance(event, Released | Detached)] == [Detached, Released]
