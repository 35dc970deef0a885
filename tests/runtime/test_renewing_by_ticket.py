"""A lease without a keeper, renewed by its ticket: exactly that incarnation, or a loss with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lockstead import (
    AsyncClient,
    Client,
    LeaseLost,
    LeaseTicket,
    LossReason,
    OutcomeUnknown,
    Settings,
    StoreUnavailable,
)
from lockstead.protocol.commands import Command, Extend, Read, Remove
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name
from tests.runtime.faulty import Faulty, SetClock, client_with, lose_answer, quiet, refuse


@pytest.fixture
def clock() -> SetClock:
    """One clock, set by hand, for store and clients."""
    return SetClock()


@pytest.fixture
def store(clock: SetClock) -> Faulty:
    return Faulty(MemoryStore(clock=clock.now))


@pytest.fixture
def client(store: Faulty, clock: SetClock) -> Iterator[Client]:
    with client_with(store, clock) as client:
        yield client


def writes(store: Faulty) -> int:
    return sum(not isinstance(command, Read) for command in store.seen)


def test_each_renewal_gives_another_ttl_and_the_last_one_ends_it(client: Client, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    for _ in range(3):
        clock.at += 50
        assert client.renew(str(ticket)) == pytest.approx(60 * (1 - Settings().drift))
        assert client.lock("apt").try_acquire() is None
    clock.at += 50
    assert client.lock("apt").try_acquire() is None
    clock.at += 11
    assert client.lock("apt").try_acquire() is not None


def test_what_may_be_believed_counts_from_the_send(client: Client, store: Faulty, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()

    def takes_ten_seconds(command: Command[object]) -> None:
        if isinstance(command, Extend):
            clock.at += 10

    store.after = takes_ten_seconds
    assert client.renew(ticket) == pytest.approx(60 * (1 - Settings().drift) - 10)


def test_an_answer_that_comes_after_the_deadline_is_no_renewal(client: Client, store: Faulty, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()

    def takes_an_hour(command: Command[object]) -> None:
        if isinstance(command, Extend):
            clock.at += 3600

    store.after = takes_an_hour
    with pytest.raises(LeaseLost, match="EXPIRED: it was not renewed in time") as caught:
        client.renew(ticket)
    assert caught.value.reason is LossReason.EXPIRED


def test_it_is_one_read_and_one_extend_of_the_incarnation(client: Client, store: Faulty) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    store.seen.clear()
    client.renew(ticket)
    read, extend = store.seen
    assert isinstance(read, Read)
    assert isinstance(extend, Extend)
    assert (extend.name, extend.incarnation, extend.revision) == (Name("apt"), ticket.incarnation, None)


def test_an_overdue_lease_that_nobody_took_is_carried_on(client: Client, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    clock.at += 600
    assert client.renew(ticket) > 0
    assert client.lock("apt").try_acquire() is None


def test_progress_is_stored_and_moves_the_alert(client: Client, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60, expected=300, auto_unlock_after=900).acquire().detach()
    clock.at += 40
    client.renew(ticket, progress="3 of 5" + "x" * 2000)
    seen = client.lock("apt").inspect()
    assert seen is not None
    assert seen.progress is not None
    assert seen.progress.startswith("3 of 5x")
    assert len(seen.progress) == 1000
    assert seen.alert_epoch == pytest.approx(clock.wall() + 300, rel=0, abs=0.01)
    assert seen.auto_unlock_epoch == pytest.approx(clock.wall() + 900, rel=0, abs=0.01)
    clock.at += 40
    client.renew(ticket)
    shown = client.lock("apt").inspect()
    assert shown is not None
    assert (shown.alert_epoch, shown.auto_unlock_epoch) == (seen.alert_epoch, seen.auto_unlock_epoch)


def test_progress_by_ticket_never_brings_an_unlock_nearer(client: Client, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60, expected=100, alert_after=500, auto_unlock_after=900).acquire().detach()
    began = clock.wall()
    clock.at += 40
    client.renew(ticket, progress="3 of 5")
    seen = client.lock("apt").inspect()
    assert seen is not None
    assert seen.auto_unlock_epoch == pytest.approx(began + 900, rel=0, abs=0.01)


def test_h12_a_lease_that_was_removed_is_gone(client: Client, store: Faulty) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    store.inner.perform(Remove(Name("apt"), ticket.incarnation), 1)
    store.seen.clear()
    with pytest.raises(LeaseLost, match=r"cannot renew the lease of .* on 'apt', GONE: its record is gone") as caught:
        client.renew(ticket)
    assert caught.value.reason is LossReason.GONE
    assert writes(store) == 0


def test_h02_a_late_renewal_does_not_touch_the_successor(client: Client, store: Faulty, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    clock.at += 600
    successor = client.lock("apt", ttl=60, owner="next").acquire()
    store.seen.clear()
    with pytest.raises(LeaseLost, match=r"TAKEN: another holder has it now \(next\)") as caught:
        client.renew(ticket)
    assert caught.value.reason is LossReason.TAKEN
    assert writes(store) == 0
    assert successor.release() is True


def test_h02_a_successor_after_the_read_is_not_extended(client: Client, store: Faulty) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    next_tickets: list[LeaseTicket] = []

    def is_succeeded(command: Command[object]) -> None:
        if isinstance(command, Extend) and not next_tickets:
            store.before = lambda _command: None
            client.lock("apt").break_lease(reason="a test", now=True)
            next_tickets.append(client.lock("apt", ttl=60, owner="next").acquire().detach())

    store.before = is_succeeded
    with pytest.raises(LeaseLost, match=r"TAKEN: another holder has it now \(next\)"):
        client.renew(ticket)
    seen = client.lock("apt").inspect()
    assert seen is not None
    assert seen.incarnation == next_tickets[0].incarnation


def test_h12_a_revoked_lease_cannot_be_renewed(client: Client, store: Faulty, clock: SetClock) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    client.lock("apt").break_lease(reason="stuck", by="anna")
    store.seen.clear()
    for _ in range(4):
        with pytest.raises(LeaseLost, match=r"REVOKED: it was revoked \(by anna: stuck\)"):
            client.renew(ticket)
        clock.at += 20
    assert writes(store) == 0
    assert client.lock("apt").try_acquire() is not None


@pytest.mark.parametrize("between", [False, True], ids=["before the look", "after it"])
def test_h10_a_lease_that_is_being_released_is_not_renewed(client: Client, store: Faulty, between: bool) -> None:
    lease = client.lock("apt", ttl=60).acquire()
    ticket = lease.detach()
    close = Extend(Name("apt"), {"closing": "1"}, ticket.incarnation)

    def closes(command: Command[object]) -> None:
        if isinstance(command, Extend):
            store.inner.perform(close, 1.0)

    if between:
        store.before = closes
    else:
        store.inner.perform(close, 1.0)
    store.seen.clear()
    with pytest.raises(LeaseLost, match=r"GONE: its record is gone \(it is being released\)") as caught:
        client.renew(ticket)
    assert caught.value.reason is LossReason.GONE
    assert writes(store) == between


def test_h04_a_renewal_whose_answer_was_lost_is_no_loss(client: Client, store: Faulty) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()

    def once(command: Command[object]) -> None:
        if isinstance(command, Extend):
            store.after = lambda _command: None
            lose_answer(command)

    store.after = once
    assert client.renew(ticket) > 0
    lock = client.lock("apt", ttl=60, backoff_min=0.001, backoff_max=0.002)
    store.after = lambda command: lose_answer(command) if isinstance(command, Extend) else None
    with pytest.raises(OutcomeUnknown, match="the answer was lost"):
        lock.renew(ticket)
    store.after = lambda _command: None
    store.before = refuse
    with pytest.raises(StoreUnavailable):
        lock.renew(ticket)
    store.before = lambda _command: None
    assert client.release(ticket) is True
    assert store.count(Remove) == 1


def test_a_ticket_of_another_lock_is_refused(client: Client) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    with pytest.raises(ValueError, match="the ticket is for 'apt'"):
        client.lock("deb").renew(ticket)
    with pytest.raises(ValueError, match="not a lease ticket"):
        client.renew("lockstead1.x")


def test_the_awaiting_side_renews_alike(store: Faulty) -> None:
    async def use() -> None:
        async with AsyncClient(MemoryStore(), listener=quiet) as client:
            ticket = await (await client.lock("apt", ttl=60).acquire()).detach()
            assert 0 < await client.renew(ticket, progress="half") <= 60
            seen = await client.lock("apt").inspect()
            assert seen is not None
            assert seen.progress == "half"
            assert await client.release(ticket) is True
            with pytest.raises(LeaseLost, match="GONE"):
                await client.lock("apt").renew(ticket)

    asyncio.run(use())
