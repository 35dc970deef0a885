"""What an interrupt leaves behind, wherever in the engine it falls: a Ctrl-C, or the loss of a lease around."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from lockstead import Client
from lockstead.runtime import context
from lockstead.runtime.interrupt import SIGNAL
from lockstead.runtime.local_queue import LocalQueue, ThreadWaker
from lockstead.runtime.workers import Workers
from tests.runtime.faulty import Faulty, quiet, until
from tests.runtime.interrupted import everywhere_in, interrupt_at
from tests.soak.run import soak


def is_free(lock: threading.Lock) -> bool:
    """Return whether another thread gets the lock."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock.acquire(timeout=30))
        if got[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got[0]


KINDS = ("two_guards", "two_leases", "inner_holds", "inner_guards", "finalizers", "starts_threads")

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def holds(client: Client, key: str) -> None:
    with client.lock(key).hold():
        pass


def holds_interruptible(client: Client, key: str) -> None:
    with client.lock(key).hold(interrupt=True):
        pass


def finds_a_loss(client: Client, key: str) -> None:
    lease = client.lock(key).acquire(0)
    lease.on_lost(int)
    lease._lease_state.deadline = 0.0
    lease.lost_error()
    lease.release()


def is_refused(client: Client, key: str) -> None:
    holder = client.lock(key).acquire(0)
    assert client.lock(key).try_acquire() is None
    holder.release()


def takes_several(client: Client, key: str) -> None:
    client.try_many([f"{key}-deb", f"{key}-rpm"]).release()


@pytest.mark.parametrize("work", [holds, holds_interruptible, finds_a_loss, is_refused, takes_several])
def test_h34_an_interrupt_leaves_no_engine_lock_held(
    work: Callable[[Client, str], None],
) -> None:
    with Client(Faulty(), listener=quiet) as client:
        work(client, "imports what it needs")
    clients: list[Client] = []

    def afresh() -> None:
        work(clients[-1], "apt")

    def made() -> Iterator[Client]:
        while True:
            with Client(Faulty(), listener=quiet) as client:
                client.lock("the timing thread runs").acquire(0).release()
                clients[:] = [client]
                yield client

    places, kept, before = 0, list[Callable[[], object]](), signal.getsignal(SIGNAL)
    for client, _place in zip(made(), everywhere_in(afresh), strict=False):
        places += 1
        engine = client._engine
        for lock in (
            engine.keeper._lock,
            engine.local_queue._lock,
            engine._lock,
            engine.keeper._callback_threads._lock,
        ):
            assert lock.acquire(timeout=30)  # type: ignore[attr-defined] # of a lock, and of one that may be taken again
            lock.release()  # type: ignore[attr-defined]
        assert not engine.keeper._lock._is_owned()  # type: ignore[attr-defined] # of an RLock
        kept += list(engine.keeper._keeping)  # type: ignore[arg-type] # weak references
        assert context.current() is None
    assert places > 50
    gc.collect()
    assert [one() for one in kept if one() is not None] == []
    assert signal.getsignal(SIGNAL) is before


def test_h34_random_interrupts_leave_nothing_behind() -> None:
    """A sample of `make soak`, which raises if a lock stays held, a thread stays or an interrupt leaves its block."""
    seen = soak(losses=60, interrupts=200, seed=18)
    assert (seen["torn"], seen["tasks"], seen["Ctrl-C"]) == (0, 20, 200)
    assert sum(seen[kind] for kind in KINDS) == 40


def test_an_interrupt_leaves_the_threads_that_call_for_others_usable() -> None:
    workers = Workers("test-worker", 2)
    for _ in everywhere_in(lambda: workers.submit(partial(time.sleep, 0.002))):
        assert is_free(workers._lock)
    # whatever was interrupted, both places are there: two jobs that wait for each other come to an end
    meeting, met = threading.Barrier(2), threading.Semaphore(0)

    def meet() -> None:
        meeting.wait(30)
        met.release()

    until(lambda: workers._free == len(workers._threads))
    for _ in range(2):
        workers.submit(meet)
    assert met.acquire(timeout=30)
    assert met.acquire(timeout=30)
    workers.close()


def test_an_interrupt_while_leaving_the_queue_stops_no_others() -> None:
    with Client(Faulty(), listener=quiet) as client:
        lock = client.lock("apt")

        def waits() -> None:
            lease = lock.acquire(timeout=30)
            try:
                lease.release()
            except BaseException:
                lock.break_lease(reason="a test", by="tester", now=True)
                raise

        places = 0
        for _place in everywhere_in(waits):
            places += 1
            line = client._engine.local_queue._queues.get("apt")
            assert not line or all(bell.is_over for bell in line)
            lock.break_lease(reason="a test", by="tester", now=True)
            client._engine._owner_notes.clear()
        assert places > 50
        lock.acquire(timeout=30).release()


def test_a_waiter_behind_one_that_is_over_becomes_the_first() -> None:
    lines, first, second = LocalQueue(), ThreadWaker(), ThreadWaker()
    assert lines.enter("apt", first)
    assert not lines.enter("apt", second)

    def leave() -> None:
        first.is_over = True
        lines.leave("apt", first)

    assert interrupt_at(2, leave)
    assert lines.is_first("apt", second)
    lines.leave("apt", second)
    assert not lines._queues


AFTER_A_LOSS = """
import sys, threading, time
from lockstead import Client, LeaseLost, LossReason
from lockstead.stores.memory import MemoryStore

client = Client(MemoryStore(), listener=lambda event: None)

def work():
    try:
        with client.lock("apt").hold(interrupt=True) as lease:
            threading.Timer(0.05, client._engine.keeper.lose, (lease._kept, LossReason.TAKEN)).start()
            while True:
                time.sleep(0.01)
    except LeaseLost:
        print("lost")

thread = threading.Thread(target=work)
thread.start()
thread.join()

def called():
    print("called")

sys.setprofile(lambda *_: None)
called()
"""


def test_a_profiler_works_after_a_thread_was_interrupted() -> None:
    """Up to Python 3.12 an exception that is taken back is looked forever after, and on 3.11 a profiler stops."""
    done = subprocess.run([sys.executable, "-c", AFTER_A_LOSS], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["lost", "called"], done.stderr
