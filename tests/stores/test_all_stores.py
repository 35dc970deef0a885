"""What holds on every store that has a server, amid a network that loses, delays and cuts: the hazards of requests.

Each store is a `Place` (tests/servers/places.py); `-k redis` runs the tests of one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

import lockstead
from lockstead import LeaseOutcome, LossReason, NotAcquired, PreviousLease
from lockstead.errors import StoreError
from tests.runtime.faulty import quiet, until
from tests.servers.bench import (
    ENOUGH,
    LONG_TTL,
    LOST_AND_CUT,
    SHORT_TTL,
    WELL_BELOW_TTL,
    Bench,
    Told,
    at,
    bench,
    elapsed_since,
    held_by,
    in_background,
    renewed,
)
from tests.servers.proxy import Fault, Proxy

__all__ = ["at", "bench"]

# --- one request that goes wrong --------------------------------------------------------------------------------------


def test_h03_no_fault_of_acquiring_makes_a_client_wait_for_itself(bench: Bench) -> None:
    watcher = bench.client()

    def check(fault: Fault, proxy: Proxy, told: Told) -> None:
        key = fault.name
        armed = proxy.arm(fault, bench.place.is_write, seconds=1.0)
        lease = told.client.lock(key, **LONG_TTL).acquire(WELL_BELOW_TTL)
        assert armed.hits >= 1, "the fault befell nothing"
        assert held_by(watcher, key) == lease.holder
        renewed(lease)
        assert lease.release() is True
        watcher.lock(key, **LONG_TTL).acquire(WELL_BELOW_TTL).release()
        assert told.losses() == []

    bench.for_each(LOST_AND_CUT, check)


def test_h04_whatever_befalls_a_renewal_there_is_no_false_loss(bench: Bench) -> None:
    watcher = bench.client()

    def check(fault: Fault, proxy: Proxy, told: Told) -> None:
        key = fault.name
        lease = told.client.lock(key, **LONG_TTL).acquire(WELL_BELOW_TTL)
        armed = proxy.arm(fault, bench.place.is_write, seconds=1.0)
        armed.wait()
        renewed(lease)
        assert told.losses() == []
        assert held_by(watcher, key) == lease.holder
        assert lease.release() is True

    bench.for_each(LOST_AND_CUT, check)


def test_h05_any_fault_of_a_release_leaves_the_lock_free(bench: Bench) -> None:
    watcher = bench.client()

    def check(fault: Fault, proxy: Proxy, told: Told) -> None:
        key = fault.name
        lease = told.client.lock(key, **SHORT_TTL).acquire(ENOUGH)
        armed = proxy.arm(fault, bench.place.is_write, seconds=1.0)
        with suppress(StoreError):
            lease.release()
        assert not lease.is_held
        armed.wait()
        following = watcher.lock(key, **LONG_TTL).acquire(ENOUGH)
        renewed(following)
        assert held_by(watcher, key) == following.holder
        assert following.release() is True

    bench.for_each(LOST_AND_CUT, check)


# --- text of one's own -----------------------------------------------------------------------------------------------


def test_half_a_character_in_a_text_of_ones_own_costs_no_lease(bench: Bench) -> None:
    """As of a file name that is not UTF-8, which Python reads with lone surrogates."""
    watcher = bench.client()
    lease = bench.client().lock("apt", labels={"file\udcff": "a\udcff"}, **LONG_TTL).acquire(ENOUGH)
    lease.progress("packed b\udcff")
    until(lambda: (held := watcher.lock("apt").inspect()) is not None and held.progress == "packed b\ufffd", ENOUGH)
    held = watcher.lock("apt").inspect()
    assert held is not None
    assert held.labels == {"file\ufffd": "a\ufffd"}
    assert watcher.renew(lease.share(), progress="\udcff") > 0
    assert lease.is_held
    assert watcher.lock("apt").break_lease(reason="no \udcff", by="me \udcff", now=True) is not None
    entry = watcher.history()[-1]
    assert (entry.reason, entry.by) == ("no \ufffd", "me \ufffd")


# --- giving up --------------------------------------------------------------------------------------------------------


def test_h18_giving_up_without_answers_leaves_nothing_after_a_ttl(bench: Bench) -> None:
    watcher = bench.client()

    def check(fault: Fault, proxy: Proxy, told: Told) -> None:
        armed = proxy.arm(fault, bench.place.is_write, times=10_000, seconds=1.0)
        with pytest.raises((StoreError, NotAcquired)):
            told.client.lock(fault.name, **SHORT_TTL).acquire(1.0)
        armed.wait()
        armed.disarm()
        assert armed.hits < 100, "who has no answer asks without a pause"
        watcher.lock(fault.name, **LONG_TTL).acquire(ENOUGH).release()

    bench.for_each((Fault.ANSWER_LOST, Fault.CUT_AFTER, Fault.CUT_BEFORE), check)


def test_h18_a_cancelled_acquire_leaves_nothing_after_a_ttl(bench: Bench) -> None:
    proxy, watcher = bench.proxy(), bench.client()

    async def use() -> None:
        async with await lockstead.connect_async(bench.url(proxy), listener=quiet) as client:
            await (await client.lock("warm", **SHORT_TTL).acquire(ENOUGH)).release()
            armed = proxy.arm(Fault.ANSWER_LOST, bench.place.is_write)
            asking = asyncio.create_task(client.lock("apt", **SHORT_TTL).acquire(ENOUGH))
            await asyncio.to_thread(armed.wait)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            lease = await asyncio.to_thread(watcher.lock("apt", **LONG_TTL).acquire, ENOUGH)
            await asyncio.to_thread(renewed, lease)
            await asyncio.to_thread(lease.release)

    asyncio.run(use())


@pytest.mark.parametrize("how", ["timed out", "cancelled", "timed out in silence"])
def test_h18_a_waiter_that_gave_up_keeps_nobody_out(how: str, bench: Bench) -> None:
    proxy, holder = bench.proxy(), bench.client()
    waiting = bench.client(proxy)
    lease = holder.lock("apt", **LONG_TTL).acquire(ENOUGH)
    if how == "cancelled":
        asyncio.run(_cancelled_while_waiting(bench, proxy))
    elif how == "timed out":
        with pytest.raises(NotAcquired):
            waiting.lock("apt", **SHORT_TTL).acquire(1.0)
    else:
        going = in_background(lambda: waiting.lock("apt", **SHORT_TTL).acquire(2.0))
        time.sleep(1.0)
        with proxy.silent():
            with pytest.raises((StoreError, NotAcquired)):
                going.result()
    assert lease.release() is True
    bench.client().lock("apt", **LONG_TTL).acquire(ENOUGH).release()


async def _cancelled_while_waiting(bench: Bench, proxy: Proxy) -> None:
    async with await lockstead.connect_async(bench.url(proxy), listener=quiet) as client:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.lock("apt", **LONG_TTL).acquire(), 0.3)
        await asyncio.sleep(0.2)


# --- late requests ----------------------------------------------------------------------------------------------------


def test_h20_a_release_after_the_next_grant_changes_nothing(bench: Bench) -> None:
    proxy, watcher = bench.proxy(), bench.client()
    lease = bench.client(proxy).lock("apt", **SHORT_TTL).acquire(ENOUGH)
    armed = proxy.arm(Fault.REQUEST_LATE, bench.place.is_write, seconds=3.0)
    with suppress(StoreError):
        lease.release()
    following = watcher.lock("apt", **LONG_TTL).acquire(ENOUGH)
    armed.wait_arrived()
    renewed(following)
    assert held_by(watcher, "apt") == following.holder
    assert following.release() is True


def test_h20_a_renewal_after_the_next_grant_changes_nothing(bench: Bench) -> None:
    proxy, watcher = bench.proxy(), bench.client()
    lease = bench.client(proxy).lock("apt", **LONG_TTL).acquire(ENOUGH)
    armed = proxy.arm(Fault.REQUEST_LATE, bench.place.is_write, seconds=4.0)
    armed.wait()
    # the lock is given back behind the back of the renewal that is under way
    with suppress(StoreError):
        lease.release()
    assert watcher.lock("apt").break_lease(reason="a test", now=True) is None or armed.arrived == 0
    following = watcher.lock("apt", **LONG_TTL).acquire(ENOUGH)
    armed.wait_arrived()
    renewed(following)
    assert held_by(watcher, "apt") == following.holder
    assert following.release() is True


def test_h28_a_late_acquire_blocks_others_for_at_most_a_ttl(bench: Bench) -> None:
    proxy, watcher = bench.proxy(), bench.client()
    client = bench.client(proxy)
    armed = proxy.arm(Fault.REQUEST_LATE, bench.place.is_write, times=10_000, seconds=2.5)
    with pytest.raises((StoreError, NotAcquired)):
        client.lock("apt", **SHORT_TTL).acquire(0.8)
    armed.wait_arrived()
    armed.disarm()
    following = watcher.lock("apt", **LONG_TTL).acquire(ENOUGH)
    armed.wait_arrived(armed.hits)
    renewed(following)
    assert held_by(watcher, "apt") == following.holder
    assert following.release() is True


def test_h28_a_late_acquire_is_adopted_while_its_sender_tries(bench: Bench) -> None:
    proxy, watcher = bench.proxy(), bench.client()
    client = bench.client(proxy)
    armed = proxy.arm(Fault.REQUEST_LATE, bench.place.is_write, seconds=1.5)
    lease = client.lock("apt", **LONG_TTL).acquire(WELL_BELOW_TTL)
    armed.wait_arrived()
    renewed(lease)
    assert held_by(watcher, "apt") == lease.holder
    assert lease.release() is True
    watcher.lock("apt", **LONG_TTL).acquire(WELL_BELOW_TTL).release()


# --- a lease that is broken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [False, True])
def test_h12_a_lease_broken_under_a_member_is_reported(bench: Bench, now: bool) -> None:
    owner, worker, watcher = bench.client(), bench.client(), bench.client()
    ticket = owner.lock("apt", **LONG_TTL).acquire(ENOUGH).detach()
    member = worker.lock("apt", **LONG_TTL).attach(ticket)
    assert watcher.lock("apt").break_lease(reason="a test", now=now) is not None
    until(lambda: not member.is_held, ENOUGH)
    assert member.lost_reason is LossReason.REVOKED
    assert member.release() is True
    # what was broken at once was over before, and is not given back
    assert owner.release(ticket) is not now
    with watcher.lock("apt", **LONG_TTL).hold(timeout=ENOUGH) as following:
        assert following.previous_lease == PreviousLease(
            LeaseOutcome.REVOKED, following.previous_lease.owner, ticket.holder
        )


def test_h32_an_unused_grant_does_not_hide_an_unclean_end(bench: Bench) -> None:
    first, other, waiter_id = bench.client(), bench.client(), bench.client()
    cut_off = first.lock("apt", **LONG_TTL).acquire(ENOUGH)
    assert other.lock("apt").break_lease(reason="a test", now=True) is not None
    with other.lock("beside", **LONG_TTL).hold(timeout=ENOUGH):
        with pytest.raises(NotAcquired):
            waiter_id.acquire_all(["apt", "beside"], timeout=0, **LONG_TTL)
    with other.lock("apt", **LONG_TTL).hold(timeout=ENOUGH) as following:
        assert following.previous_lease == PreviousLease(
            LeaseOutcome.REVOKED, following.previous_lease.owner, cut_off.holder
        )


# --- a network that is silent or refuses ------------------------------------------------------------------------------


def test_h18_a_wait_ends_in_time_in_a_silent_network(bench: Bench) -> None:
    proxy = bench.proxy()
    client = bench.client(proxy)
    with proxy.silent():
        began = time.monotonic()
        with pytest.raises((StoreError, NotAcquired)):
            client.lock("apt", **LONG_TTL).acquire(1.0)
        # a second is promised; the rest is for a machine that is busy
        assert elapsed_since(began) < 8.0
    client.lock("apt", **LONG_TTL).acquire(WELL_BELOW_TTL).release()


def test_h09_a_silent_network_is_a_loss_before_the_deadline(bench: Bench) -> None:
    proxy, watcher = bench.proxy(), bench.client()
    told = bench.told(proxy)
    lease = told.client.lock("apt", **SHORT_TTL).acquire(ENOUGH)
    was_held: list[float] = []
    lease.on_lost(lambda: was_held.append(lease._lease_state.deadline - told.client._engine.clock.now()))
    with proxy.silent():
        until(lambda: was_held, ENOUGH)
    assert lease.lost_reason in (LossReason.UNREACHABLE, LossReason.EXPIRED)
    assert was_held[0] > 0, "the loss was told after the deadline"
    watcher.lock("apt", **LONG_TTL).acquire(ENOUGH).release()
    told.client.lock("apt", **LONG_TTL).acquire(ENOUGH).release()


def test_h16_who_waits_waits_out_a_network_that_refuses(bench: Bench) -> None:
    proxy, holder = bench.proxy(), bench.client()
    client = bench.client(proxy)
    lease = holder.lock("apt", **LONG_TTL).acquire(ENOUGH)
    waiting = in_background(lambda: client.lock("apt", **LONG_TTL).acquire(ENOUGH))
    time.sleep(0.3)
    with proxy.refusing():
        time.sleep(1.0)
        assert not waiting.is_over
    assert lease.release() is True
    waiting.result().release()
