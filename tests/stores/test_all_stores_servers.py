"""What holds on every store with a server when that server is killed, comes back, or is stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lockstead import LossReason
from lockstead.errors import StoreError
from tests.runtime.faulty import until
from tests.servers.bench import ENOUGH, LONG_TTL, OUTLASTS, SHORT_TTL, Bench, at, bench, held_by, in_background, renewed
from tests.servers.places import Place

__all__ = ["at", "bench"]

LONG = 90.0
"""Seconds in which a server that was killed serves again, and all that waited for it has come back."""


@pytest.fixture(autouse=True)
def put_right(at: Place) -> Iterator[None]:
    """Whatever a test did to the server, the next one finds it running."""
    yield
    at.resume()


def restart(place: Place) -> None:
    place.kill()
    time.sleep(0.2)
    place.start()


def test_a_restarted_server_keeps_remembered_leases(bench: Bench) -> None:
    told = bench.told()
    lease = told.client.lock("apt", **OUTLASTS).acquire(ENOUGH)
    first = lease.sequencer().token if bench.has_tokens else 0
    restart(bench.place)
    if bench.place.is_durable:
        renewed(lease)
        assert told.losses() == []
        assert held_by(bench.client(), "apt") == lease.holder
        assert lease.release() is True
    else:
        # it has forgotten the lease: whoever had it is told, and nothing of it comes back
        until(lambda: not lease.is_held, LONG)
        assert lease.lost_reason in (LossReason.GONE, LossReason.TAKEN)
        with suppress(StoreError):
            lease.release()
    following = told.client.lock("apt", **LONG_TTL).acquire(LONG)
    renewed(following)
    if bench.has_tokens:
        assert following.sequencer().token > first
    assert following.release() is True


def test_h16_a_waiter_survives_a_restart_of_the_server(bench: Bench) -> None:
    holder, client = bench.client(), bench.client()
    lease = holder.lock("apt", **OUTLASTS).acquire(ENOUGH)
    waiting = in_background(lambda: client.lock("apt", **LONG_TTL).acquire(LONG))
    time.sleep(0.3)
    restart(bench.place)
    if bench.place.is_durable:
        renewed(lease)
        assert not waiting.is_over
        assert lease.release() is True
    following = waiting.result(LONG)
    renewed(following)
    assert following.release() is True


def test_h09_a_stopped_server_is_a_loss_before_the_deadline(
    bench: Bench,
) -> None:
    told, other = bench.told(), bench.client()
    lease = told.client.lock("apt", **SHORT_TTL).acquire(ENOUGH)
    left: list[float] = []
    lease.on_lost(lambda: left.append(lease._lease_state.deadline - told.client._engine.clock.now()))
    bench.place.pause()
    until(lambda: left, ENOUGH)
    assert lease.lost_reason in (LossReason.UNREACHABLE, LossReason.EXPIRED)
    assert left[0] > 0, "the loss was told after the deadline"
    until(lambda: len(told.losses()) == 1, ENOUGH)
    bench.place.resume()
    for client in (other, told.client):
        following = client.lock("apt", **LONG_TTL).acquire(LONG)
        renewed(following)
        assert following.release() is True
    assert not lease.is_held


def test_h16_who_waits_waits_out_a_server_that_stands_still(bench: Bench) -> None:
    holder, client = bench.client(), bench.client()
    lease = holder.lock("apt", **LONG_TTL).acquire(ENOUGH)
    waiting = in_background(lambda: client.lock("apt", **LONG_TTL).acquire(LONG))
    time.sleep(0.3)
    bench.place.pause()
    time.sleep(2.0)
    assert not waiting.is_over
    bench.place.resume()
    renewed(lease)
    assert lease.release() is True
    following = waiting.result(LONG)
    renewed(following)
    assert following.release() is True
