"""Several processes under one lease: tickets, members, and a release that waits for them (H27)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pytest

import lockstead
from lockstead import AsyncClient, Client, LeaseLost, LeaseTicket, LossReason
from lockstead.errors import StoreError
from lockstead.protocol.commands import Command, Extend
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name, Space
from tests.runtime.faulty import Faulty, quiet, until
from tests.runtime.processes import Child


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def client(store: Faulty) -> Iterator[Client]:
    with Client(store, listener=quiet) as client:
        yield client


@pytest.fixture
def worker(store: Faulty) -> Iterator[Client]:
    with Client(store.beside(), listener=quiet) as worker:
        yield worker


def extends_of_the_lock(commands: list[Command[object]]) -> int:
    return sum(isinstance(command, Extend) and command.name == Name("apt") for command in commands)


def test_a_detached_lease_is_carried_on_by_who_attaches(client: Client, worker: Client) -> None:
    lease = client.lock("apt", ttl=60).acquire()
    ticket = lease.detach()
    assert not lease.is_held
    assert lease.release() is False
    with worker.lock("apt", ttl=300).attach(str(ticket)) as member:
        assert member.is_member
        assert (member.ttl, member.holder) == (60, lease.holder)
        assert member.sequencer() == lockstead.Sequencer("apt", 1)
        assert client.lock("apt").try_acquire() is None
    # a member's release withdraws its registration and nothing else
    assert client.lock("apt").inspect() is not None
    assert worker.lock("apt").release(ticket) is True
    assert client.lock("apt").inspect() is None


def test_a_lease_that_was_lost_cannot_be_detached_or_shared(client: Client) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    client.lock("apt").break_lease(reason="a test", by="tester")
    until(lambda: not lease.is_held)
    with pytest.raises(LeaseLost, match="REVOKED"):
        lease.detach()
    with pytest.raises(LeaseLost, match="REVOKED"):
        lease.share()


def test_attaching_after_the_release_is_lease_lost(client: Client, worker: Client, store: Faulty) -> None:
    lease = client.lock("apt").acquire()
    ticket = lease.share()
    assert lease.release() is True
    with pytest.raises(LeaseLost) as caught:
        worker.lock("apt").attach(ticket)
    assert caught.value.reason is LossReason.GONE
    # nor does the attempt leave a registration behind
    assert not [name for name in store.inner._memory.entries if name.space is Space.MEMBER]


def test_attaching_under_a_successor_is_lease_lost(client: Client, worker: Client) -> None:
    ticket = client.lock("apt").acquire().detach()
    client.lock("apt").break_lease(reason="a test", by="tester", now=True)
    with client.lock("apt").hold(), pytest.raises(LeaseLost) as caught:
        worker.lock("apt").attach(ticket)
    assert caught.value.reason is LossReason.TAKEN


def test_a_ticket_of_another_key_store_or_kind_is_refused(client: Client) -> None:
    ticket = client.lock("apt").acquire().detach()
    with pytest.raises(ValueError, match="the ticket is for 'apt'"):
        client.lock("deb").attach(ticket)
    elsewhere = LeaseTicket("sqlite:////elsewhere.db", "apt", ticket.holder, ticket.incarnation, ticket.ttl)
    with pytest.raises(ValueError, match=r"elsewhere\.db"):
        client.lock("apt").attach(elsewhere)
    with pytest.raises(ValueError, match="not a lease ticket"):
        client.lock("apt").attach("lockstead1.x")
    client.lock("apt").release(ticket)


def test_h27_a_release_waits_until_the_last_member_has_left(client: Client, worker: Client) -> None:
    lease = client.lock("apt", ttl=60, backoff_min=0.01, backoff_max=0.05).acquire()
    member = worker.lock("apt").attach(lease.share())
    released: list[bool] = []
    thread = threading.Thread(target=lambda: released.append(lease.release(drain=60)))
    thread.start()
    until(lambda: (seen := worker.lock("apt").inspect()) is not None and seen.closing)
    time.sleep(0.1)
    assert released == []
    assert member.is_held
    with pytest.raises(LeaseLost, match="being released"):
        worker.lock("apt").attach(lease._ticket())
    assert member.release() is True
    thread.join(60)
    assert released == [True]


def test_h27_a_live_member_at_the_limit_lets_the_lease_expire(client: Client, worker: Client) -> None:
    lease = client.lock("apt", ttl=60).acquire()
    member = worker.lock("apt").attach(lease.share())
    assert lease.release(drain=0.2) is False
    assert member.is_held
    seen = worker.lock("apt").inspect()
    assert seen is not None
    assert seen.closing
    assert client.lock("apt").try_acquire() is None
    member.release()


def test_h27_a_dead_members_registration_expires_within_the_drain(client: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    dead = Client(store.beside(), listener=quiet)
    dead.lock("apt").attach(lease.share())
    dead.close()
    assert lease.release() is True


def test_who_works_under_a_lease_is_shown_the_oldest_first(client: Client, worker: Client) -> None:
    lease = client.lock("apt").acquire()
    ticket = lease.detach()
    assert client.lock("apt").members(ticket) == []
    first = worker.lock("apt", owner="build").attach(ticket)
    second = worker.lock("apt", owner="sign").attach(ticket)
    shown = client.lock("apt").members(ticket)
    assert [(one.key, one.owner, one.is_expired) for one in shown] == [("apt", "build", False), ("apt", "sign", False)]
    assert {one.pid for one in shown} == {os.getpid()}
    first.release()
    assert [one.owner for one in client.lock("apt").members(ticket)] == ["sign"]
    second.release()


def test_a_wait_for_some_members_ends_when_they_have_left(client: Client, worker: Client) -> None:
    quick = client.lock("apt", ttl=60, backoff_min=0.01, backoff_max=0.05)
    ticket = quick.acquire().detach()
    build = worker.lock("apt", owner="build").attach(ticket)
    sign = worker.lock("apt", owner="sign").attach(ticket)
    assert quick.wait_for_members(ticket, owner_filter=lambda owner: owner == "sign", timeout=0.1) is False
    sign.release()
    assert quick.wait_for_members(ticket, owner_filter=lambda owner: owner == "sign", timeout=60) is True
    assert quick.wait_for_members(ticket, timeout=0.1) is False
    leaving = threading.Timer(0.1, build.release)
    leaving.start()
    assert quick.wait_for_members(ticket) is True
    leaving.join()
    with worker.lock("apt").attach(ticket) as another:
        assert another.is_held
    assert client.release(ticket) is True


def test_a_dead_member_counts_until_its_registration_expires(client: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    ticket = lease.share()
    dead = Client(store.beside(), listener=quiet)
    dead.lock("apt", owner="dead").attach(ticket)
    dead.close()
    assert client.lock("apt").wait_for_members(ticket, owner_filter=lambda owner: owner == "dead", timeout=60) is True
    assert lease.is_held
    assert lease.release() is True


def test_who_vouches_for_a_members_death_ends_the_wait_for_it(client: Client, worker: Client, store: Faulty) -> None:
    ticket = client.lock("apt", ttl=600).acquire().detach()
    dead = Client(store.beside(), listener=quiet)
    dead.lock("apt", owner="dead", labels={"process": "7"}).attach(ticket)
    dead.close()
    alive = worker.lock("apt", owner="alive").attach(ticket)
    (found,) = (one for one in client.lock("apt").members(ticket) if one.owner == "dead")
    assert found.labels == {"process": "7"}
    assert client.lock("apt").remove_member(ticket, found) is True
    assert client.lock("apt").remove_member(ticket, found) is False
    assert client.lock("apt").wait_for_members(ticket, owner_filter=lambda owner: owner == "dead", timeout=0) is True
    assert client.lock("apt").wait_for_members(ticket, timeout=0) is False
    alive.check()
    alive.release()
    assert client.release(ticket, drain=0) is True


def test_a_live_member_whose_registration_is_removed_loses_it(client: Client, worker: Client) -> None:
    ticket = client.lock("apt", ttl=1).acquire().detach()
    member = worker.lock("apt").attach(ticket)
    (found,) = client.lock("apt").members(ticket)
    assert client.lock("apt").remove_member(ticket, found) is True
    until(lambda: not member.is_held)
    assert member.lost_reason is LossReason.GONE


def test_a_wait_for_members_ends_with_its_client(client: Client, worker: Client) -> None:
    ticket = client.lock("apt").acquire().detach()
    member = worker.lock("apt").attach(ticket)
    closing = threading.Timer(0.1, client.close)
    closing.start()
    with pytest.raises(StoreError, match="closed"):
        client.lock("apt", backoff_min=0.01, backoff_max=0.02).wait_for_members(ticket)
    closing.join()
    member.release()


def test_members_are_shown_and_waited_for_by_who_awaits(client: Client, worker: Client, store: Faulty) -> None:
    ticket = client.lock("apt").acquire().detach()
    member = worker.lock("apt", owner="build").attach(ticket)

    async def awaiting() -> None:
        async with AsyncClient(store.beside(), listener=quiet) as beside:
            lock = beside.lock("apt", backoff_min=0.01, backoff_max=0.05)
            assert [one.owner for one in await lock.members(ticket)] == ["build"]
            assert await lock.wait_for_members(ticket, timeout=0.1) is False
            waits = asyncio.create_task(lock.wait_for_members(ticket))
            await asyncio.to_thread(member.release)
            assert await waits is True

    asyncio.run(awaiting())
    assert client.release(ticket) is True


def test_leaving_hold_waits_for_members_too(client: Client, worker: Client) -> None:
    with client.lock("apt", ttl=60, backoff_min=0.01, backoff_max=0.05).hold(drain="60s") as lease:
        member = worker.lock("apt").attach(lease.share())
        threading.Timer(0.2, member.release).start()
    assert worker.lock("apt").inspect() is None
    assert not member.is_held


def test_a_member_is_lost_with_the_lease(client: Client, worker: Client) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    called = threading.Event()
    member = worker.lock("apt").attach(lease.share())
    member.on_lost(called.set)
    client.lock("apt").break_lease(reason="a test", by="tester")
    assert called.wait(30)
    assert member.lost_reason is LossReason.REVOKED
    until(lambda: not lease.is_held)
    assert member.release() is True


def test_members_keep_a_detached_lease_alive(client: Client, worker: Client) -> None:
    ticket = client.lock("apt", ttl=3).acquire().detach()
    with worker.lock("apt").attach(ticket) as member:
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 7.5)
        member.check()
    assert client.release(ticket) is True


def test_fifty_short_members_rarely_write_the_locks_own_record(client: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=300).acquire()
    ticket = lease.share()
    seen = len(store.seen)
    for _ in range(50):
        with Client(MemoryStore(store.inner._memory), listener=quiet) as one, one.lock("apt").attach(ticket) as member:
            member.progress("nothing worth a write")
    with client.lock("apt").attach(ticket) as member:
        assert member.is_held
    assert extends_of_the_lock(store.seen[seen:]) <= 2
    assert lease.release() is True


def test_sharing_twice_registers_once(client: Client, store: Faulty) -> None:
    lease = client.lock("apt").acquire()
    assert lease.share() == lease.share()
    assert len([name for name in store.inner._memory.entries if name.space is Space.MEMBER]) == 1
    assert lease.release() is True
    assert not store.inner._memory.entries


def test_a_ticket_has_no_credentials_and_fits_a_variable(client: Client) -> None:
    ticket = client.lock("apt").acquire().detach()
    assert str(ticket).isascii()
    assert " " not in str(ticket)
    assert LeaseTicket.parse(str(ticket)) == ticket
    client.release(ticket)


WORKER = """
lock = lockstead.Lock(URL + "#apt")
with lock.attach(os.environ["TICKET"]) as member:
    say(member.is_held, member.sequencer().token)
    hear()
say("left")
"""


def test_h27_a_worker_process_under_its_parents_lease(shared_url: str) -> None:
    lock = lockstead.Lock(f"{shared_url}#apt", ttl=30, backoff_min=0.05, backoff_max=0.2)
    with lock.hold(timeout=60, drain=60) as lease:
        token = lease.sequencer().token
        child = Child(WORKER, shared_url, TICKET=str(lease.share()))
        assert child.hear() == f"True {token}"
        threading.Timer(0.3, child.say, ("leave",)).start()
    with child:
        assert child.hear() == "left"
        assert child.end() == 0
    assert lock.inspect() is None


def test_a_ticket_is_passed_on_and_released_by_the_last_process(shared_url: str) -> None:
    first = """
    lock = lockstead.Lock(URL + "#apt", ttl=30)
    say(lock.acquire(timeout=60).detach())
    """
    last = """
    lock = lockstead.Lock(URL + "#apt")
    say(lock.release(os.environ["TICKET"]))
    """
    with Child(first, shared_url) as taker:
        ticket = taker.hear()
        assert taker.end() == 0
    with Child(WORKER, shared_url, TICKET=ticket) as worker:
        worker.hear()
        worker.say("leave")
        assert worker.hear() == "left"
        assert worker.end() == 0
    with Child(last, shared_url, TICKET=ticket) as teardown:
        assert teardown.hear() == "True"
        assert teardown.end() == 0
    assert lockstead.Lock(f"{shared_url}#apt").inspect() is None


def test_the_awaiting_side_passes_tickets_alike(shared_url: str) -> None:
    async def use() -> None:
        async with await lockstead.connect_async(shared_url, listener=quiet) as client:
            lock = client.lock("apt", ttl=30, backoff_min=0.05, backoff_max=0.2)
            lease = await lock.acquire(timeout=60)
            ticket = await lease.share()
            member = await lock.attach(ticket)
            assert (await member.sequencer()) == (await lease.sequencer())
            releasing = asyncio.create_task(lease.release(drain=60))
            await asyncio.sleep(0.2)
            assert not releasing.done()
            assert await member.release() is True
            assert await releasing is True
            assert await lock.inspect() is None
            again = await lock.acquire(timeout=60)
            assert await client.release(await again.detach()) is True
            assert await client.list() == []

    asyncio.run(use())


def test_a_cancelled_release_with_members_leaves_them_alone() -> None:
    async def use() -> None:
        store = Faulty()
        async with AsyncClient(store, listener=quiet) as client, AsyncClient(store.beside(), listener=quiet) as worker:
            lease = await client.lock("apt", ttl=60).acquire()
            member = await worker.lock("apt").attach(await lease.share())
            releasing = asyncio.create_task(lease.release(drain=60))
            await asyncio.sleep(0.2)
            releasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await releasing
            await asyncio.sleep(0.2)
            assert await worker.lock("apt").inspect() is not None
            member.check()
            await member.release()

    asyncio.run(use())
