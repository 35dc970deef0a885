"""Several locks at once: what is free now, the rest later, or all or nothing; and none waits forever."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gcs_emulator import GcsServer
from lockstead import (
    AsyncClient,
    Client,
    LeaseLost,
    LossReason,
    NotAcquired,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
    connect,
    connect_async,
    current_lease,
)
from lockstead.batch_base import AT_ONCE
from lockstead.events import LockEvent
from lockstead.protocol.commands import Command, Create, Read, Remove
from lockstead.values import Name
from tests.runtime.faulty import Faulty, lose_answer, quiet, refuse, until

QUICK = {"ttl": 30, "backoff_min": 0.005, "backoff_max": 0.02}


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def client(store: Faulty) -> Iterator[Client]:
    with Client(store, listener=quiet) as client:
        yield client


@pytest.fixture
def other(store: Faulty) -> Iterator[Client]:
    with Client(store.beside(), listener=quiet) as other:
        yield other


def held(client: Client) -> list[str]:
    return [one.key for one in client.list()]


# --- what is free now -----------------------------------------------------------------------------------------------


def test_what_is_free_is_had_at_once_and_the_rest_later(client: Client, other: Client) -> None:
    theirs = other.lock("b").acquire()
    with client.try_many(["c", "b", "a"], **QUICK) as batch:
        assert sorted(batch.leases) == ["a", "c"]
        assert batch.pending_keys == ("b",)
        assert batch.try_acquire_rest() == []
        theirs.release()
        (late,) = batch.try_acquire_rest()
        assert late.key == "b"
        assert batch["b"] is late
        assert batch.pending_keys == ()
        assert batch.try_acquire_rest() == []
        assert batch.wait_for_more() == []
        tokens = {lease.key: lease.sequencer().token for lease in batch}
        assert sorted(tokens) == ["a", "b", "c"]
    assert held(client) == []


def test_leases_are_given_back_singly_or_together(client: Client) -> None:
    batch = client.try_many(["a", "b", "c"], **QUICK)
    assert batch["b"].release()
    assert held(client) == ["a", "c"]
    assert sorted(batch.leases) == ["a", "c"]
    assert batch.release() == 2
    assert held(client) == []
    assert batch.release() == 0


def test_a_key_that_is_named_twice_is_one_and_no_key_is_no_wish(client: Client) -> None:
    with client.try_many(["a", "a"]) as batch:
        assert list(batch.leases) == ["a"]
        assert batch.pending_keys == ()
    with client.try_many([]) as batch:
        assert batch.wait_for_more() == []
        assert list(batch.iter_as_acquired()) == []


def test_a_batch_of_text_is_a_mistake_and_so_is_a_key_that_cannot_be(client: Client) -> None:
    with pytest.raises(TypeError, match=r"write \['apt'\]"):
        client.try_many("apt")
    with pytest.raises(TypeError, match=r"write \['apt'\]"):
        client.acquire_all("apt")
    with pytest.raises(ValueError, match="control"):
        client.try_many(["a", "b\n"])
    assert held(client) == []


def test_free_keys_cost_one_write_each_and_waiting_costs_reads_alone(gcs: GcsServer) -> None:
    with connect("gs://b/locks", listener=quiet) as client, connect("gs://b/locks", listener=quiet) as other:
        batch = client.try_many(["a", "b", "c"], **QUICK)
        assert gcs.requests.counts() == {"insert": 3}
        theirs = other.try_many(["a", "b", "c"], **QUICK)
        assert theirs.pending_keys == ("a", "b", "c")
        before = gcs.requests.counts()
        with pytest.raises(NotAcquired, match=r"3 of 3 locks are held by others"):
            theirs.wait_for_more(timeout=0.3)
        after = gcs.requests.counts()
        assert {action for action in after if after[action] != before.get(action, 0)} == {"get"}
        batch.release()


def test_several_keys_are_asked_for_at_the_same_time(store: Faulty, client: Client) -> None:
    meeting = threading.Barrier(AT_ONCE)
    begun = threading.Event()

    def together(command: Command[Any]) -> None:
        if not isinstance(command, Create):
            return
        if not begun.is_set():
            begun.set()  # the first answer is slow, and tells that threads are worth while
            threading.Event().wait(0.05)
        else:
            meeting.wait(60)

    store.before = together
    keys = [f"k{number}" for number in range(1 + 2 * AT_ONCE)]
    with client.try_many(keys, **QUICK) as batch:
        assert len(batch.leases) == len(keys)
        assert not meeting.broken


# --- going through all ----------------------------------------------------------------------------------------------


def test_iteration_holds_each_key_during_its_turn(client: Client, other: Client) -> None:
    theirs = other.lock("b").acquire()
    worked = []
    with client.try_many(["a", "b", "c"], **QUICK) as batch:
        for lease in batch.iter_as_acquired(timeout=60):
            lease.check()
            assert current_lease() is lease
            worked.append(lease.key)
            if len(worked) == 2:
                theirs.release()
    assert sorted(worked[:2]) == ["a", "c"]
    assert worked[2:] == ["b"]
    assert held(client) == []


@pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])
def test_batches_in_opposite_order_never_wait_for_each_other(shared_url: str, awaits: bool) -> None:
    keys = [f"part-{number}" for number in range(8)]
    inside: set[str] = set()
    worked: list[tuple[int, str]] = []
    clashes: list[str] = []

    def work(who: int, key: str) -> None:
        if key in inside:
            clashes.append(key)
        inside.add(key)
        worked.append((who, key))

    def blocking(who: int) -> None:
        order = keys if who % 2 else keys[::-1]
        with connect(shared_url, listener=quiet) as client, client.try_many(order, **QUICK) as batch:
            for lease in batch.iter_as_acquired(timeout=100):
                work(who, lease.key)
                lease.check()
                inside.discard(lease.key)

    async def awaiting(who: int) -> None:
        order = keys if who % 2 else keys[::-1]
        client = await connect_async(shared_url, listener=quiet)
        async with client, await client.try_many(order, **QUICK) as batch:
            async for lease in batch.iter_as_acquired(timeout=100):
                work(who, lease.key)
                await asyncio.sleep(0)
                lease.check()
                inside.discard(lease.key)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as tasks:
            for who in range(3):
                tasks.create_task(awaiting(who))

    if awaits:
        asyncio.run(all_of_them())
    else:
        threads = [threading.Thread(target=blocking, args=(who,)) for who in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert sorted(worked) == sorted((who, key) for who in range(3) for key in keys)
    assert clashes == []


def test_nobody_waits_while_holding(client: Client, other: Client) -> None:
    with other.lock("b").hold(), client.try_many(["a", "b"], **QUICK) as batch:
        with pytest.raises(ValueError, match="still holds 'a': release what you have"):
            batch.wait_for_more()
        batch.release()
        with pytest.raises(NotAcquired, match=r"1 of 2 locks are held by others after .*; one of them: 'b' is held by"):
            batch.wait_for_more(timeout=0.05)


def test_nobody_waits_for_what_this_very_thread_holds(client: Client) -> None:
    with client.lock("b").hold():
        batch = client.try_many(["b"], **QUICK)
        with pytest.raises(NotAcquired, match="already held by this thread"):
            batch.wait_for_more()


def test_the_error_of_a_wait_names_who_holds_one_of_the_rest(client: Client, other: Client) -> None:
    with other.lock("b", owner="nightly", purpose="publish").hold():
        batch = client.try_many(["b"], **QUICK)
        with pytest.raises(NotAcquired) as caught:
            batch.wait_for_more(timeout=0.05)
    assert (caught.value.key, caught.value.holder, caught.value.purpose) == ("b", "nightly", "publish")
    assert caught.value.waited >= 0.05


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_h24_a_key_that_is_refused_is_an_error_and_nothing_is_held(store: Faulty, client: Client) -> None:
    store.inner.perform(Create(Name("b"), {"v": "1", "identity": "x", "ttl": "soon"}), 1)
    with pytest.raises(StoreRefused, match="'b' is damaged"):
        client.try_many(["a", "b", "c"], **QUICK)
    assert held(client) == ["b"]


def test_a_key_without_an_answer_does_not_cost_the_others(store: Faulty, client: Client) -> None:
    def fails(command: Command[Any]) -> None:
        if command.name.key == "b":  # type: ignore[attr-defined] # every command of an acquisition has a name
            refuse(command)

    store.before = fails
    with client.try_many(["a", "b", "c"], **QUICK) as batch:
        assert sorted(batch.leases) == ["a", "c"]
        assert batch.pending_keys == ("b",)
        store.before = lambda _command: None
        assert [lease.key for lease in batch.try_acquire_rest()] == ["b"]


def test_a_store_that_is_silent_about_all_is_an_error(store: Faulty, client: Client) -> None:
    store.before = refuse
    with pytest.raises(StoreUnavailable):
        client.try_many(["a", "b"], **QUICK)


def test_h16_a_wait_outlives_an_outage_and_tells_of_one_that_lasts(store: Faulty, client: Client) -> None:
    with client.lock("a").hold():
        batch = client.try_many(["b"], **QUICK)
    batch.release()
    theirs = client.lock("c").acquire()
    waits = client.try_many(["c"], **QUICK)
    theirs.release()
    store.before, failures = refuse, 0

    def comes_back(command: Command[Any]) -> None:
        nonlocal failures
        failures += 1
        if failures <= 3:
            refuse(command)

    with pytest.raises(StoreUnavailable):
        waits.wait_for_more(timeout=0.1)
    store.before = comes_back
    assert [lease.key for lease in waits.wait_for_more(timeout=60)] == ["c"]
    waits.release()


def test_h03_a_lost_answer_leaves_nothing_behind(store: Faulty, client: Client) -> None:
    def loses(command: Command[Any]) -> None:
        if not isinstance(command, Remove):
            lose_answer(command)

    store.after = loses
    with pytest.raises(OutcomeUnknown):
        client.try_many(["a", "b"], **QUICK)
    store.after = lambda _command: None
    until(lambda: held(client) == [])


def test_a_lease_that_was_lost_before_its_turn_is_asked_for_anew(client: Client, other: Client) -> None:
    worked: list[tuple[str, str]] = []
    with client.try_many(["a", "b"], **QUICK) as batch:
        for lease in batch.iter_as_acquired(timeout=60):
            if not worked:
                second = next(one for one in batch if one is not lease)
                other.lock(second.key).break_lease(reason="test", now=True)
                client._engine.keeper.lose(second._kept, LossReason.GONE)
            worked.append((lease.key, lease.holder))
    assert len(worked) == 2
    assert worked[1] != (second.key, second.holder)
    assert worked[1][0] == second.key


def test_a_lost_lease_is_reported_and_the_others_are_released(client: Client) -> None:
    with pytest.raises(LeaseLost) as caught:
        with client.try_many(["a", "b"], **QUICK) as batch:
            for lease in batch.iter_as_acquired():
                client._engine.keeper.lose(lease._kept, LossReason.TAKEN)
    assert caught.value.reason is LossReason.TAKEN
    assert len(held(client)) == 1  # the lost one is not ours to remove
    assert caught.value.key == held(client)[0]


@pytest.mark.parametrize("awaits", [False, True])
def test_a_loop_that_is_left_early_leaves_no_lease_behind(store: Faulty, other: Client, awaits: bool) -> None:
    async def task() -> None:
        async with AsyncClient(store) as client:
            async with await client.try_many(["a", "b", "c"], **QUICK) as batch:
                async for lease in batch.iter_as_acquired():
                    assert current_lease() is lease
                    break
            with pytest.raises(LookupError):
                current_lease()
            assert held(other) == []
            with pytest.raises(LeaseLost):
                async with await client.try_many(["a", "b"], **QUICK) as batch:
                    async for lease in batch.iter_as_acquired():
                        client._engine.keeper.lose(lease._kept, LossReason.TAKEN)
                        break
            assert held(other) == [lease.key]

    def thread() -> None:
        with Client(store) as client:
            with client.try_many(["a", "b", "c"], **QUICK) as batch:
                for lease in batch.iter_as_acquired():
                    assert current_lease() is lease
                    break
            with pytest.raises(LookupError):
                current_lease()
            assert held(other) == []
            with pytest.raises(LeaseLost):
                with client.try_many(["a", "b"], **QUICK) as batch:
                    for lease in batch.iter_as_acquired():
                        client._engine.keeper.lose(lease._kept, LossReason.TAKEN)
                        break
            assert held(other) == [lease.key]

    if awaits:
        asyncio.run(task())
    else:
        thread()


def test_a_batch_block_reports_lost_leases_or_its_own_error(
    client: Client,
) -> None:
    with pytest.raises(LeaseLost):
        with client.try_many(["a", "b"], **QUICK) as batch:
            client._engine.keeper.lose(batch["a"]._kept, LossReason.TAKEN)
    with pytest.raises(ZeroDivisionError) as caught:
        with client.try_many(["c", "d"], **QUICK) as batch:
            client._engine.keeper.lose(batch["c"]._kept, LossReason.TAKEN)
            _ = 1 // 0
    assert any("'c'" in note for note in caught.value.__notes__)
    assert "b" not in held(client)
    assert "d" not in held(client)


def test_h18_an_interrupted_round_leaves_nothing_behind(store: Faulty, client: Client) -> None:
    begun = threading.Semaphore(0)
    go_on = threading.Event()

    def strikes(command: Command[Any]) -> None:
        if not isinstance(command, Create):
            return
        if threading.current_thread() is threading.main_thread():
            if begun.acquire(timeout=0.05):
                go_on.set()
                raise KeyboardInterrupt
        else:
            begun.release()
            go_on.wait(60)

    store.before = strikes
    with pytest.raises(KeyboardInterrupt):
        client.try_many([f"k{number}" for number in range(30)], **QUICK)
    store.before = lambda _command: None
    until(lambda: held(client) == [])
    assert not client._engine.pending_holders


def test_h18_a_cancelled_round_leaves_nothing_behind(store: Faulty) -> None:
    async def main() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            go_on = threading.Event()
            store.after = lambda command: isinstance(command, Create) and go_on.wait(60) and None
            task = asyncio.create_task(client.try_many([f"k{number}" for number in range(20)], **QUICK))
            await asyncio.to_thread(until, lambda: store.count(Create) >= AT_ONCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            store.after = lambda _command: None
            with Client(store.beside(), listener=quiet) as looking:
                await asyncio.to_thread(until, lambda: held(looking) == [])
            assert not client._engine.pending_holders

    asyncio.run(main())


# --- all or nothing -------------------------------------------------------------------------------------------------


def test_all_or_nothing_holds_all_or_nothing(client: Client, other: Client) -> None:
    with client.acquire_all(["c", "a", "b"], **QUICK) as batch:
        assert list(batch.leases) == ["a", "b", "c"]
        assert batch.pending_keys == ()
        assert held(client) == ["a", "b", "c"]
    assert held(client) == []
    with other.lock("b", owner="nightly").hold():
        with pytest.raises(NotAcquired, match="'b' is held by 'nightly'"):
            client.acquire_all(["c", "a", "b"], timeout=0.05, **QUICK)
        assert held(client) == ["b"]


def test_all_or_nothing_takes_the_keys_in_one_order_for_everybody(store: Faulty, client: Client) -> None:
    keys = ["b", "é", "a", "z", "B", "\U0001f512"]
    client.acquire_all(keys, **QUICK).release()
    taken = [command.name.key for command in store.seen if isinstance(command, Create)]
    assert taken == ["B", "a", "b", "z", "é", "\U0001f512"]
    assert len([1 for command in store.seen if isinstance(command, Read)]) == 0


@pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])
def test_wishes_for_all_in_any_order_never_wait_for_each_other(store: Faulty, awaits: bool) -> None:
    keys = [f"k{number}" for number in range(5)]
    rounds, people = 20, 4
    inside: list[int] = []
    most = 0

    def shuffled(who: int) -> list[str]:
        return random.Random(who).sample(keys, 4)

    def blocking(client: Client, who: int) -> None:
        nonlocal most
        for _ in range(rounds):
            with client.acquire_all(shuffled(who), timeout=100, **QUICK):
                inside.append(who)
                most = max(most, len(inside))
                inside.remove(who)

    async def awaiting(client: AsyncClient, who: int) -> None:
        nonlocal most
        for _ in range(rounds):
            async with await client.acquire_all(shuffled(who), timeout=100, **QUICK):
                inside.append(who)
                most = max(most, len(inside))
                await asyncio.sleep(0)
                inside.remove(who)

    async def all_of_them() -> None:
        async with AsyncClient(store, listener=quiet) as client, asyncio.TaskGroup() as tasks:
            for who in range(people):
                tasks.create_task(awaiting(client, who))

    if awaits:
        asyncio.run(all_of_them())
    else:
        with Client(store, listener=quiet) as client:
            threads = [threading.Thread(target=blocking, args=(client, who)) for who in range(people)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive()
    # four of five keys each: any two wishes share at least three
    assert most == 1
    assert store.count(Create) >= rounds * people * 4


def test_a_failure_half_way_gives_back_what_was_had(store: Faulty, client: Client) -> None:
    told: list[LockEvent] = []
    store.inner.perform(Create(Name("b"), {"v": "9"}), 1)
    with Client(store, listener=told.append) as client:
        with pytest.raises(StoreRefused, match="upgrade"):
            client.acquire_all(["a", "b", "c"], **QUICK)
        assert held(client) == ["b"]
