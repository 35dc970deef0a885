"""What interrupts a block whose lease is lost, in every kind of thread, and what never happens after the block."""

from __future__ import annotations

import asyncio
import pickle
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import pytest

from lockstead import AsyncClient, AsyncLease, Client, Lease, LeaseLost, LossReason
from lockstead.runtime import interrupt
from lockstead.runtime.interrupt import SIGNAL, Interrupter, LeaseLostInterrupt
from lockstead.runtime.keeper import KeptLease, LossInterrupter
from lockstead.stores.memory import MemoryStore
from tests.runtime.faulty import Faulty, quiet, until


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(Faulty(), listener=quiet) as client:
        yield client


def lose(lease: Lease | AsyncLease, reason: LossReason = LossReason.TAKEN) -> None:
    """Lose a lease now, as the keeper would."""
    lease._engine.keeper.lose(lease._kept, reason)


def lose_soon(lease: Lease | AsyncLease, delay: float = 0.05) -> threading.Timer:
    timer = threading.Timer(delay, lose, (lease,))
    timer.daemon = True
    timer.start()
    return timer


def in_main_thread(work: Callable[[], None]) -> None:
    work()


def in_another_thread(work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join(90)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


everywhere = pytest.mark.parametrize("run_in", [in_main_thread, in_another_thread])


def sleep_in_python(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_sleep_of_the_main_thread_is_interrupted(client: Client) -> None:
    began = time.monotonic()
    with pytest.raises(LeaseLost) as caught, client.lock("apt").hold(interrupt=True) as lease:
        lose_soon(lease)
        time.sleep(80)
    assert caught.value.reason is LossReason.TAKEN
    assert time.monotonic() - began < 60


@everywhere
def test_python_code_is_interrupted(client: Client, run_in: Callable[[Callable[[], None]], None]) -> None:
    def work() -> None:
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            lose_soon(lease)
            sleep_in_python(80)
            pytest.fail("the block went on")

    run_in(work)


def test_an_interrupt_never_comes_while_its_mutex_is_held(client: Client) -> None:
    mutex = threading.Lock()
    torn: list[BaseException] = []
    exchanges = 0

    for number in range(20):
        lease = client.lock(f"apt-{number}").acquire()
        with pytest.raises(LeaseLost), lease.guard(mutex=mutex):
            lose_soon(lease, random.uniform(0.0, 0.02))
            while True:
                with mutex:
                    try:
                        # an exchange that must not be torn: it asks, waits in a system call, and reads the answer
                        time.sleep(0.002)
                        sum(range(1000))
                    except BaseException as error:
                        torn.append(error)
                        raise
                exchanges += 1
    assert torn == []
    assert exchanges > 0


def test_a_block_may_end_while_another_thread_has_its_mutex(client: Client) -> None:
    mutex, before = threading.Lock(), signal.getsignal(SIGNAL)
    around = client.lock("around").acquire()
    lease = client.lock("apt").acquire()
    with around.guard():
        with mutex:
            with pytest.raises(LeaseLost), lease.guard(mutex=mutex):
                lose(lease)
                until(lambda: any(thread.name == "lockstead-interrupt" for thread in threading.enumerate()))
            # nobody has heard of it: the mutex is not free
            assert any(thread.name == "lockstead-interrupt" for thread in threading.enumerate())
        until(lambda: not any(thread.name == "lockstead-interrupt" for thread in threading.enumerate()))
    assert around.is_held
    assert signal.getsignal(SIGNAL) is before


@everywhere
def test_a_loss_found_by_the_block_is_notified_and_leaves_it(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        told = threading.Event()
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            lease.on_lost(told.set)
            lose(lease)  # as `check()` does, in this very thread
            lease.check()
        assert told.wait(30)
        # it was given a moment, and finds that nothing is left to interrupt
        until(lambda: not any(thread.name == "lockstead-interrupt" for thread in threading.enumerate()))

    run_in(work)


@everywhere
def test_a_block_that_swallows_lease_lost_is_interrupted(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            lease._lease_state.deadline = 0.0
            with pytest.raises(LeaseLost):
                lease.check()
            sleep_in_python(80)
            pytest.fail("the block went on")

    run_in(work)


@everywhere
def test_a_loss_just_as_the_block_is_entered_leaves_it(
    client: Client, run_in: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_ever = client._engine.keeper.guard

    def loses_first(kept: KeptLease, interrupter: LossInterrupter) -> None:
        in_another_thread(lambda: client._engine.keeper.lose(kept, LossReason.TAKEN))
        until(lambda: kept.lease_state.is_notified)
        as_ever(kept, interrupter)

    monkeypatch.setattr(client._engine.keeper, "guard", loses_first)

    def work() -> None:
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True):
            sleep_in_python(80)
            pytest.fail("the block went on")

    run_in(work)


@pytest.mark.parametrize("has_mutex", [False, True])
def test_without_a_thread_the_signal_is_sent_at_most_once(
    client: Client, monkeypatch: pytest.MonkeyPatch, has_mutex: bool
) -> None:
    as_ever = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "lockstead-interrupt":
            raise RuntimeError("can't start new thread")
        as_ever(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    went_on: list[bool] = []
    lease = client.lock("apt").acquire()
    with pytest.raises(LeaseLost), lease.guard(mutex=threading.Lock() if has_mutex else None):
        lose_soon(lease)
        sleep_in_python(1)
        went_on.append(True)
    assert went_on == [True] * has_mutex


def test_a_guard_with_a_mutex_is_for_the_main_thread(client: Client) -> None:
    def work() -> None:
        lease = client.lock("apt").acquire()
        with pytest.raises(ValueError, match="for the main thread"), lease.guard(mutex=threading.Lock()):
            pytest.fail("the block was entered")
        lease.release()

    in_another_thread(work)


@everywhere
def test_except_exception_does_not_swallow_the_interrupt(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            lose_soon(lease)
            for _ in range(80):
                try:
                    sleep_in_python(1)
                except Exception:
                    pytest.fail("it was swallowed")

    run_in(work)


@everywhere
def test_a_block_that_swallows_everything_still_leaves_as_lease_lost(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            lose_soon(lease)
            try:
                sleep_in_python(80)
            except BaseException:
                pass

    run_in(work)


@everywhere
def test_what_the_block_raises_instead_passes_with_a_note(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        with pytest.raises(ZeroDivisionError) as caught, client.lock("apt").hold(interrupt=True) as lease:
            lose_soon(lease)
            try:
                sleep_in_python(80)
            finally:
                raise ZeroDivisionError("of the block's own")
        assert any("TAKEN" in note for note in caught.value.__notes__)

    run_in(work)


@everywhere
def test_a_guard_of_a_lost_lease_is_not_entered(client: Client, run_in: Callable[[Callable[[], None]], None]) -> None:
    def work() -> None:
        lease = client.lock("apt").acquire()
        lose(lease)
        with pytest.raises(LeaseLost), lease.guard():
            pytest.fail("entered")

    run_in(work)


@everywhere
def test_an_outer_loss_leaves_both_blocks_and_releases_the_inner(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        with pytest.raises(LeaseLost) as caught, client.lock("outer").hold(interrupt=True) as outer:
            with client.lock("inner").hold(interrupt=True) as inner:
                lose_soon(outer)
                try:
                    sleep_in_python(80)
                finally:
                    assert inner.is_held
        assert caught.value.key == "outer"
        assert inner.lost_reason is None
        assert client.lock("inner").inspect() is None

    run_in(work)


@everywhere
def test_the_loss_of_the_inner_lease_leaves_the_inner_block_alone(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        with client.lock("outer").hold(interrupt=True) as outer:
            with pytest.raises(LeaseLost) as caught, client.lock("inner").hold(interrupt=True) as inner:
                lose_soon(inner)
                sleep_in_python(80)
            assert caught.value.key == "inner"
            outer.check()
            sleep_in_python(0.05)

    run_in(work)


@everywhere
def test_two_leases_lost_at_one_instant_leave_through_the_outer_block(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        for turn in range(30):
            with pytest.raises(LeaseLost) as caught, client.lock("outer").hold(interrupt=True) as outer:
                try:
                    with client.lock("inner").hold(interrupt=True) as inner:
                        first, second = (inner, outer) if turn % 2 else (outer, inner)
                        threading.Thread(target=lambda a=first, b=second: (lose(a), lose(b))).start()
                        sleep_in_python(80)
                except LeaseLost:
                    sleep_in_python(80)
            assert caught.value.key == "outer"
            client.lock("inner").break_lease(reason="a test", by="tester", now=True)
            client.lock("outer").break_lease(reason="a test", by="tester", now=True)

    run_in(work)


def test_an_outer_loss_during_an_inner_one_leaves_both_blocks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class Starting(threading.Thread):
        """Has the outer lease lost just as the main thread starts the thread that is to interrupt the inner block."""

        def start(self) -> None:
            if threading.current_thread() is threading.main_thread():
                monkeypatch.undo()
                loser = threading.Thread(target=lose, args=(outer,))
                loser.start()
                loser.join()
                sleep_in_python(2)
            super().start()

    before = signal.getsignal(SIGNAL)
    # whichever it says: the inner one's may be on its way already
    with pytest.raises(LeaseLost), client.lock("outer").hold(interrupt=True) as outer:
        with client.lock("inner").hold(interrupt=True) as inner:
            inner._lease_state.deadline = 0.0
            monkeypatch.setattr(threading, "Thread", Starting)
            inner.check()
    assert not inner.is_held
    assert not outer.is_held
    assert signal.getsignal(SIGNAL) is before


def test_the_signal_handler_that_was_there_is_put_back(client: Client) -> None:
    received: list[int] = []
    before = signal.signal(SIGNAL, lambda number, _frame: received.append(number))
    try:
        ours = signal.getsignal(SIGNAL)
        with client.lock("apt").hold(interrupt=True):
            signal.raise_signal(SIGNAL)
        with pytest.raises(LeaseLost), client.lock("deb").hold(interrupt=True) as lease:
            lose_soon(lease)
            time.sleep(80)
        assert signal.getsignal(SIGNAL) is ours
        # somebody else's signal reached their handler, ours did not
        assert received == [SIGNAL]
    finally:
        signal.signal(SIGNAL, before)


def test_a_block_that_took_the_signal_away_is_left_all_the_same(client: Client) -> None:
    before = signal.getsignal(SIGNAL)
    with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
        signal.signal(SIGNAL, signal.SIG_IGN)
        lose(lease)
    assert signal.getsignal(SIGNAL) is before


def test_without_interrupt_no_handler_is_ever_installed(client: Client) -> None:
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with client.lock("apt").hold() as lease:
        lease.check()
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


@everywhere
def test_a_loss_at_the_exit_is_raised_there_or_not_at_all(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    """No stray exception after the block, and none that the caller does not expect, over thousands of exits."""

    def work() -> None:
        before = signal.getsignal(SIGNAL)
        go, stop = threading.Semaphore(0), threading.Event()
        current: list[Lease] = []

        def loser() -> None:
            while not stop.is_set():
                if go.acquire(timeout=1) and not stop.is_set():
                    lose(current[-1])

        thread = threading.Thread(target=loser, daemon=True)
        thread.start()
        lost, late = 0, 0
        lock = client.lock("apt")
        for turn in range(4000):
            lease = lock.try_acquire()
            if lease is None:
                client._engine.store.inner._memory.entries.clear()  # type: ignore[attr-defined] # of the test's store
                continue
            current.append(lease)
            try:
                with lease.guard():
                    go.release()
                    for _ in range(turn * 7 % 9000):
                        pass
            except LeaseLost:
                lost += 1
            except LeaseLostInterrupt:
                # documented outside the main thread; see runtime.interrupt
                assert threading.current_thread() is not threading.main_thread()
                assert sys.version_info >= (3, 13)
                lost += 1
            else:
                late += 1
            while lease.is_held:
                time.sleep(0)
            lease.release()
            assert signal.getsignal(SIGNAL) is before
        stop.set()
        go.release()
        thread.join(60)
        # both happened, so the exit was hit from either side
        assert lost > 0
        assert late > 0

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run_in(work)
    finally:
        sys.setswitchinterval(interval)


def test_threads_with_a_guarded_threads_context_are_interrupted(client: Client) -> None:
    begun, left = threading.Semaphore(0), list[str]()

    def child(lease: Lease) -> None:
        try:
            with lease.guard():
                begun.release()
                sleep_in_python(80)
        except LeaseLost as error:
            left.append(error.key)

    def parent() -> None:
        children: list[threading.Thread] = []
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            children += [threading.Thread(target=copy_context().run, args=(child, lease)) for _ in range(3)]
            for one in children:
                one.start()
            for _ in children:
                begun.acquire()
            lose_soon(lease)
            sleep_in_python(80)
        for one in children:
            one.join(60)

    in_another_thread(parent)
    assert left == ["apt"] * 3


def test_a_guard_in_the_context_of_a_left_block_is_interrupted(client: Client) -> None:
    def work() -> None:
        with pytest.raises(LeaseLost), client.lock("first").hold(interrupt=True) as first:
            context = copy_context()
            lose_soon(first)
            sleep_in_python(80)

        def later() -> None:
            with client.lock("second").hold(interrupt=True) as second:
                lose_soon(second)
                sleep_in_python(80)

        with pytest.raises(LeaseLost, match="second"):
            context.run(later)

    in_another_thread(work)


def test_a_block_left_without_its_exit_spares_later_ones(client: Client) -> None:
    def work() -> None:
        escaped = Interrupter()
        escaped.arm()
        with pytest.raises(LeaseLostInterrupt):
            # its exit is never reached, as when it is raised at the very first instruction there
            in_another_thread(escaped.fire)
            sleep_in_python(80)
        with client.lock("held").hold(interrupt=True):
            sleep_in_python(0.05)
        with pytest.raises(LeaseLost, match="lost"), client.lock("lost").hold(interrupt=True) as lease:
            lose_soon(lease)
            sleep_in_python(80)

    in_another_thread(work)


def test_a_thread_that_starts_another_is_interrupted_after_that(client: Client) -> None:
    """Up to Python 3.11 the new thread would be hit instead, and its starter would wait for it forever."""
    begun, went_through = threading.Event(), list[bool]()

    class Slow(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            begun.set()
            sleep_in_python(0.5)
            went_through.append(True)
            return super().wait(timeout)

    def work() -> None:
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            threading.Thread(target=lambda: (begun.wait(60), lose(lease)), daemon=True).start()
            started = threading.Thread(target=time.sleep, args=(0,))
            started._started = Slow()  # type: ignore[attr-defined] # what `start` waits for
            started.start()
            sleep_in_python(80)
            pytest.fail("the block went on")

    in_another_thread(work)
    assert went_through == ([True] if sys.version_info < (3, 12) else [])


# --- tasks ----------------------------------------------------------------------------------------------------------


def test_a_task_is_interrupted() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            with pytest.raises(LeaseLost) as caught:
                async with client.lock("apt").hold(interrupt=True) as lease:
                    lose_soon(lease)
                    await asyncio.sleep(80)
            assert caught.value.reason is LossReason.TAKEN
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)

    asyncio.run(work())


def test_a_task_that_swallows_the_cancellation_leaves_as_lease_lost() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            with pytest.raises(LeaseLost):
                async with client.lock("apt").hold(interrupt=True) as lease:
                    lose_soon(lease)
                    try:
                        await asyncio.sleep(80)
                    except asyncio.CancelledError:
                        pass
            await asyncio.sleep(0)

    asyncio.run(work())


def test_an_outer_cancellation_at_the_same_instant_is_kept() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            entered = asyncio.Event()
            taken: list[AsyncLease] = []

            async def guarded() -> None:
                async with client.lock("apt").hold(interrupt=True) as lease:
                    taken.append(lease)
                    entered.set()
                    await asyncio.sleep(80)

            for ours_first in (True, False):
                entered.clear()
                task = asyncio.create_task(guarded())
                await entered.wait()
                if ours_first:
                    lose(taken[-1])
                    task.cancel()
                else:
                    task.cancel()
                    lose(taken[-1])
                    await asyncio.sleep(0)
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert task.cancelled()
                client._engine.store.inner._memory.entries.clear()  # type: ignore[attr-defined] # of the test's store

    asyncio.run(work())


def test_an_outer_timeout_at_the_same_instant_stays_a_timeout() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(80) as outer, client.lock("apt").hold(interrupt=True) as lease:
                    outer.reschedule(asyncio.get_running_loop().time())
                    lose(lease)
                    await asyncio.sleep(80)

    asyncio.run(work())


def test_a_cancelled_task_may_hold_a_lock_while_it_cleans_up() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            seen: list[BaseException] = []

            async def cleans_up() -> None:
                try:
                    await asyncio.sleep(80)
                finally:
                    try:
                        async with client.lock("apt").hold(interrupt=True) as lease:
                            lose_soon(lease)
                            await asyncio.sleep(80)
                    except LeaseLost as error:
                        seen.append(error)

            task = asyncio.create_task(cleans_up())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(seen) == 1

    asyncio.run(work())


def test_an_outer_cancellation_survives_another_exception() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            lease = await client.lock("apt").acquire()
            went_on: list[str] = []

            async def guarded() -> None:
                task = asyncio.current_task()
                assert task is not None
                try:
                    async with lease.guard():
                        lose(lease)
                        task.cancel()
                        raise KeyError("mine")
                except KeyError:
                    await asyncio.sleep(80)
                    went_on.append("the cancellation was swallowed")

            task = asyncio.create_task(guarded())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert went_on == []

    asyncio.run(work())


def test_a_cancelled_block_gives_its_lease_back() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            entered = asyncio.Event()

            async def guarded() -> None:
                async with client.lock("apt").hold(interrupt=True):
                    entered.set()
                    await asyncio.sleep(80)

            task = asyncio.create_task(guarded())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.lock("apt").inspect() is None

    asyncio.run(work())


def test_a_loss_at_the_exit_of_a_tasks_block_cancels_nothing_after_it() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            lock, lost = client.lock("apt"), 0
            for turn in range(500):
                lease = await lock.acquire()
                loser = threading.Thread(target=lose, args=(lease,))
                try:
                    async with lease.guard():
                        loser.start()
                        for _ in range(turn % 7):
                            await asyncio.sleep(0)
                except LeaseLost:
                    lost += 1
                for _ in range(5):
                    await asyncio.sleep(0)
                loser.join()
                client._engine.store.inner._memory.entries.clear()  # type: ignore[attr-defined] # of the test's store
            assert lost > 0
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    asyncio.run(work())


def test_nested_guards_of_a_task_leave_through_the_one_that_was_lost() -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            with pytest.raises(LeaseLost) as caught:
                async with client.lock("outer").hold(interrupt=True) as outer:
                    async with client.lock("inner").hold(interrupt=True) as inner:
                        lose_soon(outer)
                        lose_soon(inner)
                        await asyncio.sleep(80)
            assert caught.value.key in ("outer", "inner")
            await asyncio.sleep(0)

    asyncio.run(work())


def test_a_wait_that_begins_as_the_lease_is_lost_is_interrupted_too() -> None:
    """A signal just before a system call does not end it: of 34 such waits 25 went on to their own end."""
    others: list[int] = []
    earlier = signal.signal(SIGNAL, lambda number, _frame: others.append(number))
    try:
        for _round in range(40):
            guard, held, done = Interrupter(), threading.Lock(), threading.Event()
            begun = threading.Event()

            def lose_while_it_waits(
                guard: Interrupter = guard,
                held: threading.Lock = held,
                done: threading.Event = done,
                begun: threading.Event = begun,
            ) -> None:
                begun.wait(60)
                time.sleep(random.random() * 0.01)
                with held:
                    guard.fire()
                    done.wait(60)

            guard.arm()
            thread = threading.Thread(target=lose_while_it_waits, daemon=True)
            thread.start()
            began_at = time.monotonic()
            try:
                with pytest.raises(LeaseLostInterrupt):
                    begun.set()
                    while True:
                        held.acquire()
                        held.release()
                lasted = time.monotonic() - began_at
            finally:
                done.set()
                thread.join()
                assert guard.disarm()
            assert lasted < 30, "it went on until it ended by itself"
    finally:
        signal.signal(SIGNAL, earlier)
    assert others == [], "a handler from before the guard was called for it"


class Temporary:
    """An object of another library that takes a while to be finalized."""

    def __del__(self) -> None:
        sleep_busily(0.001)


class Watched:
    """An object whose finalizer calls back."""


def sleep_busily(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def finalizes() -> None:
    one = Temporary()
    del one


def calls_back() -> None:
    one = Watched()
    ref = weakref.ref(one, lambda _ref: sleep_busily(0.001))
    del one
    del ref


def goes_on(lets_go: Callable[[], None]) -> None:
    """Call it for a minute. In the block itself, threads on Python 3.13 may leave at the loop's jump, past the exit."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lets_go()
        sleep_busily(0.001)


def test_a_loop_in_the_main_threads_block_exits_through_it(client: Client) -> None:
    """From Python 3.13 on a signal may come before the jump back of a loop, which no handler covers."""
    for number in range(60):
        with pytest.raises(LeaseLost), client.lock(f"apt-{number}").hold(interrupt=True) as lease:
            lose_soon(lease, 0.002)
            end = time.monotonic() + 60
            while time.monotonic() < end:
                sleep_busily(0.00001)
            pytest.fail("the block went on")


def test_a_signal_during_a_handler_interrupts_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the block takes its time, and who insists sends again meanwhile."""
    handled: list[str] = []

    def looks_long(_frame: object) -> bool:
        if handled:
            return False
        handled.append("began")
        signal.raise_signal(SIGNAL)
        for _ in range(100):
            pass
        handled.append("ended")
        return True

    monkeypatch.setattr(interrupt, "would_skip_exit", looks_long)
    lease = client.lock("apt").acquire()
    with pytest.raises(LeaseLost), lease.guard():
        lose_soon(lease, 0.0)
        time.sleep(60)
    assert handled == ["began", "ended"]


@pytest.mark.parametrize("is_main", [True, False])
def test_a_late_loss_is_raised_when_an_inner_guard_exits(is_main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry finds the thread in one of our exits every time: here there is no retry at all."""
    monkeypatch.setattr(interrupt, "_interrupt_until_left", lambda *_: None)
    rounds: list[int] = []
    seen: list[Any] = []

    def work() -> None:
        guard = outer.guard()
        try:
            with guard:
                client._engine.keeper.lose(outer._kept, LossReason.TAKEN)
                block = guard._interrupter
                while block is not None and not block.is_lost:
                    time.sleep(0.001)
                for number in range(3):
                    rounds.append(number)
                    with inner.guard():
                        pass
        except BaseException as error:
            seen.append(type(error))
        with inner.guard():
            pass

    with Client(MemoryStore()) as client:
        outer, inner = (client.lock(key, ttl=60).acquire() for key in ("outer", "inner"))
        if is_main:
            work()
        else:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        inner.check()
    assert (rounds, seen) == ([0], [LeaseLost])


def test_what_interrupted_a_block_can_be_sent_to_another_process(client: Client) -> None:
    sent: list[bytes] = []
    with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
        lose_soon(lease, 0.01)
        try:
            sleep_busily(60)
        except BaseException as interrupt:
            sent.append(pickle.dumps(interrupt))
            raise
    assert str(pickle.loads(sent[0])) == "the lease is lost: leave its block"


@everywhere
@pytest.mark.parametrize("lets_go", [finalizes, calls_back])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_falls_into_a_finalizer_is_raised_again(
    client: Client, run_in: Callable[[Callable[[], None]], None], lets_go: Callable[[], None]
) -> None:
    def work() -> None:
        for number in range(20):
            with pytest.raises(LeaseLost), client.lock(f"apt-{number}").hold(interrupt=True) as lease:
                lose_soon(lease, 0.003)
                goes_on(lets_go)
                pytest.fail("the block went on")

    run_in(work)


def test_what_else_no_caller_hears_of_is_told_as_ever(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))

    class Fails:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with client.lock("apt").hold(interrupt=True):
        fails = Fails()
        del fails
    assert [type(one) for one in told] == [ZeroDivisionError]


@everywhere
def test_one_loss_of_a_lease_with_two_guards_is_one_interrupt(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    """The second one would end the clean-up of the first in its middle."""

    def work() -> None:
        for number in range(20):
            cleaned: list[bool] = []
            lease = client.lock(f"apt-{number}").acquire()
            with pytest.raises(LeaseLost), lease.guard(), lease.guard():
                try:
                    lose_soon(lease, 0.003)  # in here: the loss may come before it returns
                    sleep_busily(60)
                finally:
                    sleep_busily(0.05)
                    cleaned.append(True)
            assert cleaned == [True]

    run_in(work)


@everywhere
def test_a_loss_during_an_inner_clean_up_interrupts_after_it(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        for number in range(10):
            cleaned: list[bool] = []
            outer = client.lock(f"outer-{number}").acquire()
            with pytest.raises(LeaseLost, match="outer"), outer.guard():
                with pytest.raises(LeaseLost, match="inner"):
                    with client.lock(f"inner-{number}").hold(interrupt=True) as inner:
                        try:
                            lose_soon(inner, 0.001)
                            sleep_busily(60)
                        finally:
                            lose(outer)
                            sleep_busily(0.05)
                            cleaned.append(True)
                sleep_busily(60)
            assert cleaned == [True]

    run_in(work)


@everywhere
def test_a_block_that_begins_in_a_clean_up_is_interrupted_as_ever(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    def work() -> None:
        with pytest.raises(LeaseLost, match="first"), client.lock("first").hold(interrupt=True) as first:
            lose_soon(first)
            try:
                sleep_busily(60)
            finally:
                with pytest.raises(LeaseLost, match="second"):
                    with client.lock("second").hold(interrupt=True) as second:
                        lose_soon(second)
                        sleep_busily(60)

    run_in(work)


@pytest.mark.parametrize("is_one_lease", [True, False])
def test_the_clean_up_of_a_task_is_cancelled_by_no_further_loss(is_one_lease: bool) -> None:
    async def work() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            cleaned: list[bool] = []
            outer = await client.lock("outer").acquire()
            inner = outer if is_one_lease else await client.lock("inner").acquire()
            with pytest.raises(LeaseLost, match="outer"):
                async with outer.guard():
                    try:
                        async with inner.guard():
                            lose_soon(inner)
                            try:
                                await asyncio.sleep(80)
                            finally:
                                lose(outer)
                                for _ in range(5):
                                    await asyncio.sleep(0.01)
                                cleaned.append(True)
                    except LeaseLost:
                        await asyncio.sleep(80)
            assert cleaned == [True]
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    asyncio.run(work())


@everywhere
def test_a_blocking_guard_across_an_await_spares_other_tasks(
    client: Client, run_in: Callable[[Callable[[], None]], None]
) -> None:
    async def holds() -> None:
        with client.lock("apt").hold(interrupt=True) as lease:
            lose_soon(lease, 0.05)
            await asyncio.sleep(0.3)
            sleep_busily(60)

    async def is_a_bystander() -> str:
        for _ in range(200):
            sleep_busily(0.001)
            await asyncio.sleep(0)
        return "done"

    async def both() -> list[object]:
        return await asyncio.gather(holds(), is_a_bystander(), return_exceptions=True)

    def work() -> None:
        lost, other = asyncio.run(both())
        assert isinstance(lost, LeaseLost)
        assert other == "done"

    run_in(work)


def test_an_event_loops_handler_is_called_for_other_signals_only(client: Client) -> None:
    heard: list[bool] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(SIGNAL, heard.append, True)
        with pytest.raises(LeaseLost), client.lock("apt").hold(interrupt=True) as lease:
            lose_soon(lease)
            sleep_busily(60)
        await asyncio.sleep(0.05)
        assert heard == []
        signal.raise_signal(SIGNAL)
        await asyncio.sleep(0.05)
        assert heard == [True]

    asyncio.run(work())
