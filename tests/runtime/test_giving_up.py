"""An acquisition that ends early, at any command and however, leaves nothing behind (H18)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from lockstead import AsyncClient, AsyncLock, Client, LeaseLost, Lock, NotAcquired, acquisition, connect_async
from lockstead.errors import OutcomeUnknown, StoreError
from lockstead.events import EngineWarning, LockEvent
from lockstead.protocol.acquire import Grant
from lockstead.protocol.commands import Command, Create, Extend, Read, Remove
from lockstead.runtime.drive import run
from lockstead.runtime.engine import CALLS_MAX, duration_text, seconds_text
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.stores import url as urls
from lockstead.values import Space
from tests.runtime import faulty
from tests.runtime.faulty import Faulty, HangsUntilLimit, Ticking, client_with, lose_answer, quiet, refuse, until

SETTINGS = {"ttl": 60, "request_timeout": 0.2, "backoff_min": 0.01, "backoff_max": 0.02}


class Stops(Faulty):
    """Raises at the n-th command, before or after it is applied."""

    def __init__(self, at: int, *, applied: bool, error: Callable[[], BaseException]) -> None:
        super().__init__()
        self.at, self.applied, self.error = at, applied, error
        self.number = 0
        self.is_armed = True

    def perform(self, command: Command[Any], limit: float) -> Any:
        if not self.is_armed:
            return super().perform(command, limit)
        self.number += 1
        if self.number == self.at and not self.applied:
            self.is_armed = False
            raise self.error()
        answer = super().perform(command, limit)
        if self.number == self.at:
            self.is_armed = False
            raise self.error()
        return answer


def free(store: Faulty) -> bool:
    """Return whether nothing at all is recorded for a lock or a member."""
    return not [name for name in store.inner._memory.entries if name.space in (Space.LOCK, Space.MEMBER)]


def left_by(store: Faulty, holder: str) -> bool:
    """Return whether no record but this holder's can keep anybody waiting; one that passes on how it ended cannot."""
    entries = store.inner._memory.entries.values()
    return all(entry.fields["identity"] == holder or "unused" in entry.fields for entry in entries)


def stale_owner(store: Faulty) -> str:
    """Leave a record of an earlier process of the owner 'job', and give its holder."""
    with Client(store.beside(), listener=quiet) as dead:
        return dead.lock("apt", ttl=60, owner="job").acquire().holder


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
def test_h18_ctrl_c_at_every_command_leaves_nothing_behind(at: int, applied: bool) -> None:
    store = Stops(at, applied=applied, error=KeyboardInterrupt)
    with Client(store, listener=quiet) as client:
        with pytest.raises(KeyboardInterrupt):
            client.lock("apt", **SETTINGS).acquire().release()
        until(lambda: free(store))


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 7))
def test_h18_ctrl_c_during_a_reclaim_leaves_nothing_behind(at: int, applied: bool) -> None:
    """Create, read, close, list, read, replace."""
    store = Stops(at, applied=applied, error=KeyboardInterrupt)
    earlier = stale_owner(store)
    with Client(store, listener=quiet) as client:
        with pytest.raises(KeyboardInterrupt):
            client.lock("apt", owner="job", **SETTINGS).acquire(reclaim=True)
        until(lambda: left_by(store, earlier))


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
def test_h18_ctrl_c_inside_hold_leaves_nothing_behind(at: int, applied: bool) -> None:
    """Command 1 acquires, command 2 releases."""
    store = Stops(at, applied=applied, error=KeyboardInterrupt)
    with Client(store, listener=quiet) as client:
        with pytest.raises(KeyboardInterrupt), client.lock("apt", **SETTINGS).hold():
            pass
        until(lambda: free(store))


@pytest.mark.parametrize("when", ["before", "after"])
def test_h03_a_failed_acquisition_that_may_be_applied_is_swept(when: str) -> None:
    store = Faulty()
    with Client(store, listener=quiet) as client:
        setattr(store, when, lose_answer)
        with pytest.raises(StoreError):
            client.lock("apt", **SETTINGS).acquire(timeout=0)
        store.before = store.after = lambda _command: None
        until(lambda: free(store))
        client.lock("apt", **SETTINGS).acquire(timeout=20).release()


def test_h03_a_grant_whose_answer_was_lost_is_adopted() -> None:
    store = Faulty()

    def lose_first(command: object) -> None:
        if isinstance(command, Create):
            store.after = lambda _command: None
            lose_answer(command)

    store.after = lose_first
    with Client(store, listener=quiet) as client, client.lock("apt", **SETTINGS).hold(timeout=20) as lease:
        assert lease.is_held
        assert store.count(Extend) == 1
    assert free(store)


def test_h28_a_commit_after_giving_up_is_swept() -> None:
    class Late(Faulty):
        """Sends no reply, and applies the first Create only when it is told to."""

        pending: Command[Any] | None = None
        is_silent = True

        def perform(self, command: Command[Any], limit: float) -> Any:
            if self.is_silent:
                self.pending = self.pending or command
                raise OutcomeUnknown("no answer in time")
            return super().perform(command, limit)

    store = Late()
    with Client(store, listener=quiet) as client:
        with pytest.raises(OutcomeUnknown), client.lock("apt", **SETTINGS).hold(timeout=0):
            pytest.fail("entered")
        assert isinstance(store.pending, Create)
        store.is_silent = False
        store.inner.perform(store.pending, 1.0)
        until(lambda: free(store))


def test_h28_a_commit_many_request_limits_later_is_swept() -> None:
    store = Faulty()
    ticking = Ticking(store)
    with ticking.client as client:
        store.before = lose_answer
        with pytest.raises(OutcomeUnknown):
            client.lock("apt", ttl=300).acquire(timeout=0)
        landing = next(command for command in store.seen if isinstance(command, Create))
        store.before = lambda _command: None
        for limits in (3, 7, 15):
            looks = store.count(Read)
            store.inner.perform(landing, 1.0)
            ticking.pass_by(limits * 30.0 + 31.0 - (ticking.clock.at - 1000.0))
            until(lambda looks=looks: store.count(Read) > looks and free(store))  # type: ignore[misc]


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_h18_h28_a_cancelled_tasks_late_write_is_swept(how: str) -> None:
    """A store without an awaiting side is called in a thread, which continues after the await was cancelled."""
    store = Faulty()
    landing, lands = threading.Event(), threading.Event()

    def hold_up(command: Command[Any]) -> None:
        if isinstance(command, Create):
            landing.set()
            assert lands.wait(20)

    store.before = hold_up

    async def ask() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            # the next look that is planned is 30 s away
            asking = asyncio.create_task(client.lock("apt", ttl=300).acquire())
            await asyncio.to_thread(landing.wait, 20)
            until(lambda: store.count(Read) == 0)
            if how == "cancelled":
                asking.cancel()
            with pytest.raises(asyncio.CancelledError if how == "cancelled" else TimeoutError):
                async with asyncio.timeout(None if how == "cancelled" else 0.01):
                    await asking
            await asyncio.to_thread(until, lambda: store.count(Read) == 1)  # it was looked after, too early
            lands.set()
            await asyncio.to_thread(until, lambda: store.count(Remove) == 1)
            assert free(store)

    asyncio.run(ask())


def test_a_call_of_a_cancelled_task_that_has_not_begun_is_not_made() -> None:
    store = Faulty()
    begun, goes_on = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        goes_on.wait(20)

    async def ask() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            for _ in range(CALLS_MAX):
                client._engine.calls.submit(busy)
            asking = asyncio.create_task(client.lock("apt", ttl=300).acquire())
            await asyncio.sleep(0)
            await asyncio.to_thread(begun.wait, 20)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            goes_on.set()
            await asyncio.to_thread(until, lambda: store.count(Read) == 1)

    asyncio.run(ask())
    assert store.count(Create) == 0


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_h18_a_wait_ends_within_its_timeout_if_the_store_hangs(timeout: float) -> None:
    store = HangsUntilLimit()
    store.hangs.set()
    with Client(store, listener=quiet) as client:
        began = time.monotonic()
        with pytest.raises(StoreError):
            client.lock("apt", ttl=300).acquire(timeout=timeout)
        # a second by the promise, and one for a machine that is busy
        assert time.monotonic() - began < timeout + 2
        store.hangs.clear()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[faulty.OpensSlowly]:
    monkeypatch.setattr(faulty, "SLOW", faulty.OpensSlowly())
    monkeypatch.setitem(urls.OURS, "slow", "tests.runtime.faulty:SLOW")
    urls.opener.cache_clear()
    opener: faulty.OpensSlowly = faulty.SLOW
    yield opener
    opener.store.hangs.clear()


def test_a_store_is_opened_outside_of_the_event_loops_thread(
    slow: faulty.OpensSlowly,
) -> None:
    async def use() -> None:
        with pytest.raises(StoreError):
            await AsyncLock(f"slow://{uuid4()}#apt?ttl=300").acquire(0)
        async with await connect_async(f"slow://{uuid4()}"):
            pass

    asyncio.run(use())
    assert len(slow.opened_in) == 2
    assert threading.get_ident() not in slow.opened_in


@pytest.mark.parametrize("is_awaiting", [False, True])
@pytest.mark.parametrize(
    ("takes", "timeout", "asked_for"),
    [(0.5, 0.0, 0.4), (0.5, 0.7, 1.1), (1.2, 0.0, acquisition.TRY_MIN)],
    ids=["one try", "a wait", "one try that had no time left"],
)
def test_h18_opening_the_store_counts_as_part_of_the_wait(
    takes: float, timeout: float, asked_for: float, is_awaiting: bool, slow: faulty.OpensSlowly
) -> None:
    """By the limits that the store is given, which a busy machine can only make shorter."""
    slow.takes = takes
    url = f"slow://{uuid4()}#apt?ttl=300"
    with pytest.raises(StoreError):
        if is_awaiting:
            asyncio.run(AsyncLock(url).acquire(timeout))
        else:
            Lock(url).acquire(timeout)
    assert 0 < slow.store.limits[0] <= asked_for + 0.001


def test_h18_an_awaited_wait_ends_though_the_store_exceeds_limits() -> None:
    go = threading.Event()

    class Deaf(Faulty):
        def perform(self, command: Command[Any], limit: float) -> Any:
            go.wait(60)
            return super().perform(command, limit)

    store = Deaf()

    async def ask() -> float:
        client = AsyncClient(store, listener=quiet)
        began = time.monotonic()
        with pytest.raises(StoreError):
            await client.lock("apt", ttl=300).acquire(timeout=0.2)
        took = time.monotonic() - began
        go.set()
        await client.close()
        return took

    assert asyncio.run(ask()) < 2.5


def test_h18_a_short_wait_in_a_blocked_loop_still_has_its_try() -> None:
    """The call blocks for longer than a wait and its last try take, wherever in the acquisition the others are."""
    turns = 6

    async def asks(client: AsyncClient, key: str) -> str:
        try:
            lease = await client.lock(key, ttl=60).acquire(timeout=0.01)
        except NotAcquired as error:
            return str(error.holder)
        return "got" if await lease.release() else "lost"

    async def scenario() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            await client.lock("held", ttl=60, owner="night job").acquire()
            for key, ends in (("free", "got"), ("held", "night job")):
                asking = []
                for number in range(turns):
                    asking.append(asyncio.create_task(asks(client, key if key == "held" else f"free-{number}")))
                    await asyncio.sleep(0)
                time.sleep(1.3)  # noqa: ASYNC251 - what it is about
                assert await asyncio.gather(*asking) == [ends] * turns

    asyncio.run(scenario())


def test_h18_a_later_waiter_tries_itself_after_a_blocked_loop() -> None:
    async def scenario() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            await client.lock("held", ttl=60, owner="night job").acquire()
            first = asyncio.create_task(client.lock("held", ttl=60).acquire(timeout=60))
            lines = client._engine.local_queue
            while lines.noted("held") is None:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.01)
            second = asyncio.create_task(client.lock("held", ttl=60).acquire(timeout=0.01))
            await asyncio.sleep(0)
            lines.note("held", OutcomeUnknown("no answer within 0.9 s"))
            time.sleep(0.3)  # noqa: ASYNC251 - what it is about
            with pytest.raises(NotAcquired) as caught:
                await second
            assert caught.value.holder == "night job"
            first.cancel()

    asyncio.run(scenario())


def test_h18_a_waiter_finds_a_release_during_a_blocked_loop() -> None:
    """The call blocks for longer than a wait and its last try take, in a pause of the first in line."""

    async def asks(client: AsyncClient) -> str:
        try:
            lease = await client.lock("apt", ttl=60, owner="waiter").acquire(timeout=0.1)
        except NotAcquired as error:
            return str(error.holder)
        await lease.release()
        return "got"

    async def scenario() -> None:
        store = Faulty()
        with Client(store.beside(), listener=quiet) as other:
            lease = other.lock("apt", ttl=60, owner="night job").acquire()
            async with AsyncClient(store, listener=quiet) as client:
                asking = [asyncio.create_task(asks(client)) for _ in range(3)]
                while client._engine.local_queue.noted("apt") is None:  # noqa: ASYNC110 - nothing tells it
                    await asyncio.sleep(0)
                lease.release()
                time.sleep(1.3)  # noqa: ASYNC251 - what it is about
                ends = await asyncio.gather(*asking)
                assert "got" in ends
                assert "night job" not in ends

    asyncio.run(scenario())


def test_h18_a_stopped_waiter_finds_that_the_lock_was_released() -> None:
    ticking = Ticking(Faulty())
    with ticking.client as client:
        engine, settings = client._engine, client.lock("apt", ttl=600).settings
        asking = acquisition.Acquisition(engine, "apt", settings, 1.0, reclaim=False)
        engine.local_queue.enter("apt", ThreadWaker())
        engine.local_queue.note("apt", acquisition.NOTHING_SEEN)
        ticking.clock.at += 300
        script = asking.script(was_first=False, in_time=False)
        outcome = run(script, engine.store, engine.clock, asking.limits, ThreadWaker())
        assert isinstance(outcome, Grant)


def test_h18_a_timed_out_wait_tries_once_more_and_names_the_holder() -> None:
    store = Faulty()
    with Client(store, listener=quiet) as client, Client(store.beside(), listener=quiet) as other:
        lease = other.lock("apt", purpose="publish APT", owner="airflow:publish/run-7").acquire()
        with pytest.raises(
            NotAcquired,
            match=r"'apt' is held by 'airflow:publish/run-7' for .* \(purpose: publish APT\); waited less than a s",
        ) as caught:
            client.lock("apt", **SETTINGS).acquire(timeout=0.3)
        assert caught.value.holder == "airflow:publish/run-7"
        assert caught.value.waited >= 0.3
        with pytest.raises(NotAcquired, match=r"\(purpose: publish APT\)$"):  # one try is not a wait
            client.lock("apt", **SETTINGS).acquire(timeout=0)
        lease.release()


@pytest.mark.parametrize(
    ("duration", "words", "whole"),
    [
        (0.00185, "less than a second", "less than a second"),
        (0.998, "less than a second", "1 s"),
        (1.8, "1 second", "2 s"),
        (59.9, "59 seconds", "60 s"),
        (300, "5 minutes", "300 s"),
        (90_000, "1 day", "90000 s"),
    ],
)
def test_a_duration_is_said_without_digits_that_mean_nothing(duration: float, words: str, whole: str) -> None:
    assert (duration_text(duration), seconds_text(duration)) == (words, whole)


def test_h16_a_store_that_was_down_for_a_while_is_waited_out() -> None:
    store = Faulty()
    store.before = refuse
    with Client(store, listener=quiet) as client:
        threading.Timer(0.3, lambda: setattr(store, "before", lambda _command: None)).start()
        client.lock("apt", **SETTINGS).acquire(timeout=60).release()


def test_h16_who_waits_for_a_silent_store_is_told_once_what_is_wrong() -> None:
    store, told = Faulty(), list[LockEvent]()
    store.before = refuse
    with Client(store, listener=told.append) as client:
        with pytest.raises(StoreError):
            client.lock("apt", **SETTINGS).acquire(timeout=0.5)
    assert [(type(event), event.message) for event in told if isinstance(event, EngineWarning)] == [
        (EngineWarning, "the store cannot be reached; still waiting: connection refused")
    ]


def test_h16_one_lost_answer_is_nothing_to_tell_who_waits() -> None:
    store, told = Faulty(), list[LockEvent]()
    failures = iter([refuse, refuse])

    def twice(command: object) -> None:
        for fail in failures:
            fail(command)

    store.before = twice
    with Client(store, listener=told.append) as client:
        client.lock("apt", **SETTINGS).acquire(timeout=20).release()
    assert not [event for event in told if isinstance(event, EngineWarning)]


# --- tasks ----------------------------------------------------------------------------------------------------------


class Cancels(Faulty):
    """Cancels a task at the n-th command, before or after it is applied."""

    def __init__(self, at: int, *, applied: bool) -> None:
        super().__init__()
        self.at, self.applied, self.number = at, applied, 0
        self.cancel: Callable[[], None] | None = None

    def perform(self, command: Command[Any], limit: float) -> Any:
        self.number += 1
        is_it = self.number == self.at and self.cancel is not None
        if is_it and not self.applied:
            self.cancel()  # type: ignore[misc] # it is there
            time.sleep(0.02)
        answer = super().perform(command, limit)
        if is_it and self.applied:
            self.cancel()  # type: ignore[misc] # it is there
            time.sleep(0.02)
        return answer


class CancelsAwaiting(Cancels):
    """The same for a store with its own awaiting side."""

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        self.number += 1
        is_it = self.number == self.at and self.cancel is not None
        if is_it and not self.applied:
            self.cancel()  # type: ignore[misc] # it is there
            await asyncio.sleep(0)
        answer = self.inner.perform(command, limit)
        if is_it and self.applied:
            self.cancel()  # type: ignore[misc] # it is there
            await asyncio.sleep(0)
        return answer


@pytest.mark.parametrize("kind", [Cancels, CancelsAwaiting])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 6))
def test_h18_a_task_cancelled_at_every_command_leaves_nothing_behind(
    at: int, applied: bool, kind: type[Cancels]
) -> None:
    """Waits behind a holder, acquires the lock, draws its token, releases: cancelled at each of these commands."""
    store = kind(at, applied=applied)

    async def use() -> None:
        other = Client(store.beside(), listener=quiet)
        theirs = other.lock("apt").acquire()
        async with AsyncClient(store, listener=quiet) as client:
            loop = asyncio.get_running_loop()

            async def work() -> None:
                async with client.lock("apt", **SETTINGS).hold() as lease:
                    await lease.sequencer()

            task = asyncio.create_task(work())
            store.cancel = lambda: loop.call_soon_threadsafe(task.cancel)  # type: ignore[assignment] # any handle
            await asyncio.to_thread(until, lambda: store.number >= 3 or task.done())
            theirs.release()
            try:
                async with asyncio.timeout(60):
                    await task
            except asyncio.CancelledError:
                pass
            store.cancel = None
            await asyncio.to_thread(until, lambda: free(store))
        other.close()

    asyncio.run(asyncio.wait_for(use(), 60))


def test_h18_a_task_cancelled_in_line_leaves_the_line() -> None:
    async def use() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            lock = client.lock("apt")
            async with lock.hold():
                waiting = [asyncio.create_task(lock.acquire()) for _ in range(3)]
                await asyncio.sleep(0.05)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                assert not client._engine.local_queue._queues

    asyncio.run(use())


def test_h18_closing_a_client_still_sweeps_what_was_abandoned() -> None:
    store = Stops(1, applied=True, error=KeyboardInterrupt)
    client = Client(store, listener=quiet)
    with pytest.raises(KeyboardInterrupt):
        client.lock("apt", ttl=60).acquire()
    client.close()
    assert free(store)


def test_h27_a_shared_lease_is_never_swept_under_its_members() -> None:
    """The acquisition had an unknown outcome, so another look follows: but a member still uses the record."""
    store = Faulty()

    def lose_first(command: object) -> None:
        if isinstance(command, Create):
            store.after = lambda _command: None
            lose_answer(command)

    store.after = lose_first
    with Client(store, listener=quiet) as client, Client(store.beside(), listener=quiet) as worker:
        lease = client.lock("apt", **SETTINGS).acquire(timeout=20)
        member = worker.lock("apt").attach(lease.share())
        assert lease.release(drain=0.1) is False
        until(lambda: client._engine.keeper._tasks_under_way == 0 and not client._engine.keeper._tasks)
        assert store.count(Remove) == 1  # of the owner's own registration
        assert member.is_held
        member.release()
        with pytest.raises(LeaseLost):
            lease.check()


def test_h06_the_clock_alone_ends_a_lease_and_touches_nothing() -> None:
    """What the process itself would see after a pause, without any notification."""

    class Jumps:
        offset = 0.0

        def now(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME) + self.offset

        def wall(self) -> float:
            return time.time()

    store, clock = Faulty(), Jumps()
    client = client_with(store, clock)
    lease = client.lock("apt", ttl=300).acquire()
    before = len(store.seen)
    clock.offset = 298.0
    assert not lease.is_held
    assert lease.time_left == 0
    with pytest.raises(LeaseLost, match="EXPIRED"):
        lease.sequencer()
    assert lease.release() is False
    assert len(store.seen) == before
    client.close()
