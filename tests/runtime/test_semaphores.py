"""Semaphores as users have them: blocking and awaiting, in memory and on every store that processes share."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstead import (
    AsyncLease,
    AsyncSemaphore,
    Client,
    LeaseLost,
    LeaseTicket,
    NotAcquired,
    Semaphore,
    StoreRefused,
    connect,
)
from lockstead.events import EngineWarning
from lockstead.protocol.commands import Command, Create, Extend, List, Read, Remove
from lockstead.protocol.permits import turn_name
from lockstead.stores.memory import MemoryStore
from lockstead.stores.memory.store import Memory
from lockstead.values import Name
from tests.runtime.faulty import quiet, until
from tests.runtime.fifo import FifoStore

FAST: dict[str, Any] = {"ttl": 10, "backoff_min": 0.005, "backoff_max": 0.05}


class CountingStore(MemoryStore):
    """A memory that counts what it is asked."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__(memory)
        self.asked: list[type] = []

    def perform(self, command: Command[Any], limit: float) -> Any:
        self.asked.append(type(command))
        return super().perform(command, limit)


@pytest.fixture
def client(shared_url: str) -> Iterator[Client]:
    with connect(shared_url, listener=quiet) as client:
        yield client


@pytest.fixture
def memory() -> Iterator[Client]:
    with Client(MemoryStore(), listener=quiet) as client:
        yield client


def in_threads(work: Callable[[], None], count: int) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_never_more_threads_than_permits_and_no_slot_twice(client: Client) -> None:
    semaphore = client.semaphore("api", 3, **FAST)
    inside: list[int | None] = []
    full = threading.Event()

    def work() -> None:
        for _ in range(3):
            with semaphore.hold(timeout=60) as lease:
                assert lease.slot not in inside
                inside.append(lease.slot)
                assert len(inside) <= 3
                if len(inside) == 3:
                    full.set()
                assert full.wait(60)  # all three are inside at once
                inside.remove(lease.slot)

    in_threads(work, 8)
    shown = semaphore.inspect()
    assert shown is not None
    assert (shown.limit, shown.held, shown.free) == (3, (), 3)


def test_awaiting_tasks_share_the_permits() -> None:
    async def crowd() -> None:
        semaphore, full = AsyncSemaphore("memory:#awaiting", 2, **FAST), asyncio.Event()
        inside = 0

        async def work() -> None:
            nonlocal inside
            async with semaphore.hold(timeout=60) as lease:
                assert isinstance(lease, AsyncLease)
                inside += 1
                assert inside <= 2
                if inside == 2:
                    full.set()
                await full.wait()
                inside -= 1

        await asyncio.gather(*(work() for _ in range(20)))

    asyncio.run(asyncio.wait_for(crowd(), 60))


def test_a_thread_may_hold_two_permits_but_not_wait_for_a_third(memory: Client) -> None:
    semaphore = memory.semaphore("api", 2, **FAST)
    with semaphore.hold() as one, semaphore.hold() as two:
        assert {one.slot, two.slot} == {0, 1}
        assert semaphore.try_acquire() is None
        with pytest.raises(NotAcquired, match="this thread or task holds one: it would wait for itself"):
            semaphore.acquire(timeout=60)
    semaphore.acquire(timeout=1).release()


def test_a_holder_behind_waiters_of_its_process_is_refused_too(memory: Client) -> None:
    semaphore = memory.semaphore("api", 1, **FAST)
    held = semaphore.acquire()
    waiter = threading.Thread(target=lambda: semaphore.acquire(timeout=60).release())
    waiter.start()
    until(lambda: memory._engine.local_queue._queues.get("api"))
    with pytest.raises(NotAcquired, match="would wait for itself"):
        semaphore.acquire(timeout=60)
    held.release()
    waiter.join()


def test_what_is_held_by_others_is_said_when_the_time_is_over(memory: Client) -> None:
    semaphores = [memory.semaphore("api", 5, owner=f"owner-{number}", **FAST) for number in range(5)]
    leases = [semaphore.acquire() for semaphore in semaphores]
    said: list[str] = []

    def wait() -> None:
        with pytest.raises(NotAcquired) as refused:
            semaphores[0].acquire(timeout=0.05)
        said.append(str(refused.value))

    in_threads(wait, 1)
    assert said[0].startswith("'api': all 5 permits are held by 'owner-")
    assert said[0].endswith("and 2 more; waited less than a second")
    for lease in leases:
        lease.release()


def test_a_closed_semaphore_says_so(memory: Client) -> None:
    semaphore = memory.semaphore("api", 1, **FAST)
    semaphore.acquire().release()
    assert semaphore.resize(0)
    with pytest.raises(NotAcquired, match="the semaphore 'api' is closed: its limit is 0"):
        semaphore.acquire(timeout=0)
    assert semaphore.permits == 1
    assert semaphore.resize(1)
    semaphore.acquire(timeout=0).release()


def test_a_guessed_permit_costs_two_writes_and_a_read() -> None:
    store = CountingStore()
    with Client(store, listener=quiet) as client:
        semaphore = client.semaphore("api", 3, **FAST)
        semaphore.acquire().release()
        assert store.asked == [Read, Create, List, Create, Read, Remove]
        store.asked.clear()
        semaphore.acquire().release()
        assert store.asked == [Create, Read, Remove]
        held = semaphore.acquire()
        store.asked.clear()
        other = semaphore.acquire()
        assert store.asked == [Read, List, Create, Read]
        assert {held.slot, other.slot} < {0, 1, 2}
        other.release()
        held.release()


def test_the_limit_is_looked_at_changed_and_waited_for(client: Client) -> None:
    semaphore = client.semaphore("api", 2, owner="one", purpose="import", **FAST)
    assert semaphore.inspect() is None
    first, second = semaphore.acquire(), semaphore.acquire()
    shown = semaphore.inspect()
    assert shown is not None
    assert [(one.slot, one.owner, one.purpose, one.token is not None) for one in shown.held] == [
        (slot, "one", "import", client._engine.traits.scheme != "gs") for slot in (0, 1)
    ]
    assert (shown.limit, shown.free, shown.next_waiter) == (2, 0, None)
    assert semaphore.resize(1) is False
    above = first if first.slot == 1 else second
    threading.Timer(0.2, above.release).start()
    assert semaphore.resize(1, wait=60) is True
    assert semaphore.remove() is False
    (second if above is first else first).release()
    assert semaphore.remove() is True
    assert semaphore.inspect() is None
    client.lock("api").acquire(timeout=0).release()


def test_the_limit_of_this_object_changes_with_it(memory: Client) -> None:
    mine, other = memory.semaphore("api", 2, **FAST), memory.semaphore("api", 2, **FAST)
    mine.acquire().release()
    assert mine.resize(3)
    mine.acquire().release()
    with pytest.raises(StoreRefused, match="has 3 permits, this process expects 2"):
        other.acquire()


def test_following_another_limit_warns_once() -> None:
    seen: list[Any] = []
    with Client(MemoryStore(), listener=seen.append) as client:
        client.semaphore("api", 1, **FAST).acquire().release()
        follower = client.semaphore("api", 4, on_mismatch="follow", **FAST)
        follower.acquire().release()
        follower.acquire().release()
        assert [one.message for one in seen if isinstance(one, EngineWarning)] == [
            "the semaphore 'api' has 1 permit, this process expects 4; it follows"
        ]
        resizer = client.semaphore("api", 4, on_mismatch="resize", **FAST)
        resizer.acquire().release()
        shown = resizer.inspect()
        assert shown is not None
        assert shown.limit == 4


def test_a_key_belongs_to_a_lock_or_to_a_semaphore(client: Client) -> None:
    with client.lock("apt", owner="someone").hold():
        with pytest.raises(StoreRefused, match="'apt' is a lock, held by 'someone'; a semaphore needs another key"):
            client.semaphore("apt", 2).acquire(timeout=0)
        with pytest.raises(StoreRefused, match="'apt' is a lock"):
            client.semaphore("apt").inspect()
    with client.semaphore("apt", 2, **FAST).hold():
        line = (
            "'apt' is a semaphore with 2 permits; use lockstead.Semaphore (at the command line run -n, "
            "break --slot, permits), or another key"
        )
        lock = client.lock("apt")
        for use in (
            lambda: lock.acquire(timeout=0),
            lock.try_acquire,
            lambda: lock.acquire(timeout=0, mode="shared"),
            lock.inspect,
            lambda: lock.wait_until_free(0),
            lambda: lock.break_lease(reason="x"),
            lambda: lock.break_lease(reason="x", now=True),
            lambda: client.acquire_all(["apt"], timeout=0),
        ):
            with pytest.raises(StoreRefused) as refused:
                use()
            assert str(refused.value) == line


def test_a_listing_shows_a_semaphore_with_its_holders(client: Client) -> None:
    semaphore = client.semaphore("api", 3, owner="importer", **FAST)
    with semaphore.hold(), semaphore.hold(), client.lock("apt").hold():
        shown = {one.key: one for one in client.list()}
    assert set(shown) == {"api", "apt"}
    api = shown["api"]
    assert (api.decode_error, api.is_foreign, api.mode) == (None, False, "permits")
    assert api.permits is not None
    assert (api.permits.limit, api.permits.free, len(api.permits.held)) == (3, 1, 2)
    assert shown["apt"].permits is None


def test_a_damaged_semaphore_is_listed_as_unreadable() -> None:
    memory = Memory()
    with Client(MemoryStore(memory), listener=quiet) as client:
        semaphore = client.semaphore("api", 3, **FAST)
        semaphore.acquire().release()
        memory.entries[Name("api")].fields["limit"] = "1" + "0" * 30
        (shown,) = client.list()
        assert shown.permits is None
        assert shown.decode_error is not None
        assert "the semaphore 'api' is damaged: its limit is '1000" in shown.decode_error
        assert semaphore.resize(2)


def test_one_permit_is_broken_and_the_others_are_not(client: Client) -> None:
    semaphore = client.semaphore("api", 2, **FAST)
    one, two = semaphore.acquire(), semaphore.acquire()
    assert one.slot is not None
    done = semaphore.break_lease(slot=one.slot, reason="stuck", by="me", now=True)
    assert done is not None
    assert done.removed
    with pytest.raises(LeaseLost):
        one.renew()
    two.renew()
    assert [(entry.by, entry.reason, entry.holder) for entry in semaphore.history()] == [("me", "stuck", one.holder)]
    again = semaphore.acquire(timeout=10)
    assert again.slot == one.slot
    assert again.previous_lease.holder == one.holder
    again.release()
    two.release()
    assert semaphore.break_lease(slot=one.slot, reason="stuck") is None


def test_a_permit_goes_on_by_its_ticket(client: Client) -> None:
    semaphore = client.semaphore("api", 2, **FAST)
    lease, other = semaphore.acquire(), semaphore.acquire()
    ticket = lease.share()
    assert LeaseTicket.parse(str(ticket)) == ticket
    assert str(ticket).startswith("lockstead2.")
    member, stranger = semaphore.attach(str(ticket)), semaphore.attach(other.share())
    assert (member.slot, member.is_member, stranger.slot) == (lease.slot, True, other.slot)
    assert len(semaphore.members(ticket)) == 2
    if client._engine.traits.scheme != "redlock":
        assert member.sequencer() == lease.sequencer()
        assert client.verify(lease.sequencer())
        assert lease.sequencer().mode == f"permit/{lease.slot}"
    member.release()
    assert lease.release(drain=5)  # members of the other permit are not waited for
    stranger.release()
    ticket = other.detach()
    assert semaphore.renew(ticket) > 5
    assert client.release(str(ticket))
    shown = semaphore.inspect()
    assert shown is not None
    assert shown.held == ()


async def shows_waiter(semaphore: AsyncSemaphore, expected: bool) -> None:
    while True:
        shown = await semaphore.inspect()
        assert shown is not None
        if (shown.next_waiter is not None) is expected:
            return
        await asyncio.sleep(0.01)


def test_a_cancelled_waiter_leaves_no_turn_behind() -> None:
    async def wait() -> None:
        semaphore = AsyncSemaphore("memory:#cancelled", 1, **FAST)
        lease = await semaphore.acquire()
        task = asyncio.create_task(semaphore.acquire())
        await shows_waiter(semaphore, True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await shows_waiter(semaphore, False)
        await lease.release()

    asyncio.run(asyncio.wait_for(wait(), 20))


def test_who_waits_and_gives_up_leaves_no_turn_behind(memory: Client) -> None:
    semaphore = memory.semaphore("api", 1, **FAST)
    lease = semaphore.acquire()

    def wait() -> None:
        with pytest.raises(NotAcquired):
            semaphore.acquire(timeout=0.1)

    in_threads(wait, 3)
    shown = semaphore.inspect()
    assert shown is not None
    assert shown.next_waiter is None
    lease.release()


def test_who_gives_up_behind_the_turn_leaves_no_place_in_its_queue() -> None:
    """The place would keep all later waiters out while a permit is free."""
    first = FifoStore()

    def ask() -> None:
        with Client(first.beside(), listener=quiet) as own:
            own.semaphore("api", 1, **FAST).acquire(timeout=30).release()

    with Client(first, listener=quiet) as client, Client(first.beside(), listener=quiet) as other:
        held = client.semaphore("api", 1, **FAST).acquire()
        leader = threading.Thread(target=ask)
        leader.start()
        until(lambda: (state := client.semaphore("api").inspect()) is not None and state.next_waiter)
        with pytest.raises(NotAcquired):
            other.semaphore("api", 1, **FAST).acquire(timeout=0.5)
        until(lambda: first.waiting(turn_name("api")) == [])
        held.release()
        leader.join(30)
        assert not leader.is_alive()


def test_a_hold_decorates() -> None:
    semaphore = Semaphore("memory:#decorated", 1, **FAST)

    @semaphore.hold(timeout=5)
    def work() -> int:
        shown = semaphore.inspect()
        assert shown is not None
        return len(shown.held)

    assert work() == 1


def test_a_semaphore_can_be_pickled() -> None:
    semaphore = Semaphore("memory:#pickled", 2, on_mismatch="follow", **FAST)
    semaphore.acquire().release()
    again = pickle.loads(pickle.dumps(semaphore))
    assert (again.key, again.permits, again.settings) == ("pickled", 2, semaphore.settings)
    again.acquire(timeout=1).release()


@pytest.mark.parametrize("kind", [Semaphore, AsyncSemaphore])
@pytest.mark.parametrize(
    ("arguments", "error", "line"),
    [
        ({"permits": 0}, ValueError, "permits is 0; it must be at least 1 and at most 10000"),
        ({"permits": -1}, ValueError, "permits is -1; it must be at least 1"),
        ({"permits": 10_001}, ValueError, "permits is 10001; it must be at least 1 and at most 10000"),
        ({"permits": 2.0}, TypeError, "permits must be a whole number, not 2.0"),
        ({"permits": "3"}, TypeError, "permits must be a whole number, not '3'"),
        ({"permits": True}, TypeError, "permits must be a whole number, not True"),
        (
            {"permits": 3, "on_mismatch": "x"},
            ValueError,
            "on_mismatch must be one of 'refuse', 'follow', 'resize', not 'x'",
        ),
        ({"permits": 3, "mode": "shared"}, ValueError, "the permits of a semaphore are exclusive: leave out mode"),
        ({"permits": 3, "ttl": 0.1}, ValueError, "ttl is 0.1 s"),
    ],
)
def test_wrong_arguments_are_one_clear_line(kind: Any, arguments: Any, error: type[Exception], line: str) -> None:
    with pytest.raises(error) as refused:
        kind("memory:#k", **arguments)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_wrong_arguments_of_calls_are_one_clear_line(memory: Client) -> None:
    semaphore = memory.semaphore("api", 3, **FAST)
    with pytest.raises(ValueError, match="slot is -1; slots are numbered from 0 to the limit minus 1"):
        semaphore.break_lease(slot=-1, reason="x")
    with pytest.raises(TypeError, match="slot must be a whole number, not 'turn'"):
        semaphore.break_lease(slot="turn", reason="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="permits is -1; it must be at least 0"):
        semaphore.resize(-1)
    with pytest.raises(StoreRefused, match="there is no semaphore 'api'"):
        semaphore.resize(3)
    with pytest.raises(StoreRefused, match="there is no semaphore 'api'"):
        semaphore.remove()
    with pytest.raises(TypeError, match="no argument 'blocking'"):
        semaphore.acquire(blocking=False)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a context manager"), semaphore:  # type: ignore[attr-defined]
        pass


def test_naming_a_semaphore_asks_no_store() -> None:
    for url in ("gs://b/p#k", "redis://h/0#k", "etcd://h#k", "zk://h/p#k", "postgresql://h/db#k"):
        assert Semaphore(url, 3).key == "k"


def test_the_lock_of_a_semaphores_neighbour_is_free(client: Client) -> None:
    with (
        client.semaphore("api", 1, **FAST).hold(),
        client.lock("api/0").hold(timeout=0),
        client.lock("permit/api/0").hold(timeout=0),
    ):
        pass


def test_extending_the_gate_by_hand_keeps_it(memory: Client) -> None:
    semaphore = memory.semaphore("api", 1, **FAST)
    semaphore.acquire().release()
    memory._engine.store.perform(Extend(Name("api"), {"note": "by hand"}, None), 1.0)
    semaphore.acquire().release()
