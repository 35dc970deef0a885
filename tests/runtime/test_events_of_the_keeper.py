"""What the keeper and an interrupted acquisition tell and leave behind."""

from __future__ import annotations

import time

import pytest

from lockstead.errors import LossReason
from lockstead.events import Acquired, LockEvent, Renewed
from lockstead.lock import Client
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.stores.memory import MemoryStore


def until(condition, seconds: float = 10.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def test_every_renewal_tells_the_new_deadline_on_the_boot_clock() -> None:
    told: list[LockEvent] = []
    with Client(MemoryStore(), listener=told.append) as client, client.lock("apt", ttl=3).acquire(0) as lease:
        first = SYSTEM_CLOCK.now() + lease.time_left

        def renewals() -> list[Renewed]:
            return [event for event in told if isinstance(event, Renewed)]

        until(lambda: len(renewals()) >= 2)
        deadlines = [event.deadline for event in renewals()]
        assert [first, *deadlines] == sorted([first, *deadlines])
        assert deadlines[-1] <= SYSTEM_CLOCK.now() + lease.ttl
        assert {(event.key, event.holder) for event in renewals()} == {("apt", lease.holder)}


def test_h18_an_interrupt_after_the_grant_leaves_nothing_behind() -> None:
    def interrupt(event: LockEvent) -> None:
        if isinstance(event, Acquired):
            raise KeyboardInterrupt

    store = MemoryStore()
    interrupted, other = Client(store, listener=interrupt), Client(store)
    with pytest.raises(KeyboardInterrupt):
        interrupted.lock("apt", ttl=60).acquire()
    until(lambda: other.lock("apt").inspect() is None)
    interrupted.close()
    other.close()


@pytest.mark.parametrize("shares", [False, True])
def test_h12_a_loss_names_who_is_behind_it_and_why(shares: bool) -> None:
    store = MemoryStore()
    with Client(store) as client, Client(store) as operator:
        lease = client.lock("apt", ttl=3).acquire(0)
        if shares:
            lease.share()
        operator.lock("apt").break_lease(reason="drill", by="ops")
        until(lambda: not lease.is_held)
        assert lease.lost_error().reason is LossReason.REVOKED
        assert "(by ops: drill)" in str(lease.lost_error())


def test_h12_a_lease_that_was_taken_names_the_new_owner() -> None:
    store = MemoryStore()
    with Client(store) as client, Client(store) as other:
        lease = client.lock("apt", ttl=4).acquire(0)
        other.lock("apt").break_lease(reason="drill", now=True)
        other.lock("apt", owner="ci").acquire(0)
        until(lambda: not lease.is_held)
        assert lease.lost_error().reason is LossReason.TAKEN
        assert "(ci)" in str(lease.lost_error())
