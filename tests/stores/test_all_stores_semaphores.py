"""What holds of semaphores on every store with a server."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from lockstead import LeaseTicket, NotAcquired, StoreRefused
from tests.runtime.faulty import until
from tests.servers.bench import ENOUGH, LONG_TTL, SHORT_TTL, Bench, at, bench, in_background

__all__ = ["at", "bench"]

ASLEEP: dict[str, Any] = {"ttl": 60, "backoff_min": 50, "backoff_max": 50}
"""A waiter that is not woken is late."""


def test_never_more_clients_than_permits(bench: Bench) -> None:
    inside: list[int | None] = []
    full = threading.Event()
    clients = [bench.client() for _ in range(4)]

    def work(number: int) -> None:
        semaphore = clients[number].semaphore("api", 2, **LONG_TTL)
        for _ in range(4):
            with semaphore.hold(timeout=ENOUGH) as lease:
                assert lease.slot not in inside
                inside.append(lease.slot)
                assert len(inside) <= 2
                if len(inside) == 2:
                    full.set()
                assert full.wait(ENOUGH)
                inside.remove(lease.slot)

    for one in [in_background(lambda number=number: work(number)) for number in range(4)]:
        one.result()


def test_a_waiter_is_woken_by_any_permit(bench: Bench) -> None:
    if not bench.place.wakes:
        pytest.skip("this store wakes nobody, and says so")
    holder = bench.client().semaphore("api", 3, **LONG_TTL)
    leases = [holder.acquire() for _ in range(3)]
    client = bench.client()
    for lease in leases:
        waiting = in_background(lambda: client.semaphore("api", 3, **ASLEEP).acquire(ENOUGH))
        until(lambda: (shown := holder.inspect()) is not None and shown.next_waiter is not None, ENOUGH)
        slot = lease.slot
        assert lease.release() is True
        granted = waiting.result()
        assert granted.slot == slot
        assert granted.release() is True
        lease = holder.acquire(ENOUGH)  # so that all are held again  # noqa: PLW2901
        leases[slot if slot is not None else 0] = lease


def test_waiters_are_served_in_turn_where_that_is_promised(bench: Bench) -> None:
    if not bench.place.is_fifo:
        pytest.skip("waiting is not in order on this store, and it says so")
    holder = bench.client().semaphore("api", 1, **ASLEEP)
    held = holder.acquire()
    order: list[int] = []
    clients = [bench.client() for _ in range(4)]

    def wait(number: int) -> None:
        with clients[number].semaphore("api", 1, **ASLEEP).hold(timeout=ENOUGH):
            order.append(number)

    first = in_background(lambda: wait(0))
    until(lambda: (shown := holder.inspect()) is not None and shown.next_waiter is not None, ENOUGH)
    waiting = [first]
    for number in range(1, 4):
        standing = len(bench.place.left(bench.space))
        waiting.append(in_background(lambda number=number: wait(number)))
        until(lambda standing=standing: len(bench.place.left(bench.space)) > standing, ENOUGH)
    assert holder.try_acquire() is None
    held.release()
    for one in waiting:
        one.result()
    assert order == [0, 1, 2, 3]


def test_a_dead_holders_permit_is_had_after_its_ttl_and_the_limit_stays(bench: Bench) -> None:
    dying = bench.client()
    semaphore = dying.semaphore("api", 2, **SHORT_TTL)
    leases = [semaphore.acquire() for _ in range(2)]
    dying.close()
    client = bench.client()
    successor = client.semaphore("api", 2, **SHORT_TTL)
    again = [successor.acquire(ENOUGH) for _ in range(2)]
    assert {one.slot for one in again} == {one.slot for one in leases} == {0, 1}
    with pytest.raises(NotAcquired):
        successor.acquire(timeout=0)
    for one in again:
        one.release()
    with pytest.raises(StoreRefused, match="has 2 permits, this process expects 3"):
        client.semaphore("api", 3).acquire(timeout=0)


def test_a_semaphore_is_resized_and_removed(bench: Bench) -> None:
    client = bench.client()
    semaphore = client.semaphore("api", 2, **LONG_TTL)
    leases = [semaphore.acquire() for _ in range(2)]
    line = (
        "'api' is a semaphore with 2 permits; use lockstead.Semaphore (at the command line run -n, "
        "break --slot, permits), or another key"
    )
    with pytest.raises(StoreRefused, match=re.escape(line)):
        client.lock("api").acquire(timeout=0)
    shown = {one.key: one for one in client.list()}
    assert shown["api"].permits is not None
    assert [one.slot for one in shown["api"].permits.held] == [0, 1]
    assert semaphore.resize(3) is True
    third = semaphore.acquire(timeout=0)
    assert third.slot == 2
    assert semaphore.resize(1) is False
    for lease in (*leases, third):
        if lease.slot:
            lease.release()
    assert semaphore.resize(1) is True
    assert semaphore.remove() is False
    next(lease for lease in leases if lease.slot == 0).release()
    assert semaphore.remove() is True
    assert semaphore.inspect() is None
    client.lock("api").acquire(timeout=0).release()


def test_each_permit_has_its_own_members_and_tokens(bench: Bench) -> None:
    client = bench.client()
    semaphore = client.semaphore("api", 2, **LONG_TTL)
    one, two = semaphore.acquire(), semaphore.acquire()
    ticket = LeaseTicket.parse(str(one.share()))
    member, other = semaphore.attach(ticket), semaphore.attach(two.share())
    assert len(semaphore.members(ticket)) == 2
    if bench.has_tokens:
        assert one.sequencer() == member.sequencer() != two.sequencer()
        assert client.verify(one.sequencer())
        assert client.verify(two.sequencer())
    earlier = one.sequencer().token if bench.has_tokens else 0
    member.release()
    assert one.release(drain=1) is True
    assert other.is_held
    again = semaphore.acquire(timeout=ENOUGH)
    assert again.slot == ticket.slot
    if bench.has_tokens:
        assert again.sequencer().token > earlier
    other.release()
    two.release()
    again.release()
