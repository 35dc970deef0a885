"""Forks of a process that holds a lease: the child has nothing of it, the parent everything (H13)."""

from __future__ import annotations

import pytest

import lockstead
from tests.runtime.faulty import quiet
from tests.runtime.processes import Child

FORKS = """
client = lockstead.connect(URL)
lock = client.lock("apt", ttl=5)
lease = lock.acquire()
called = []
lease.on_lost(lambda: called.append(1))
pid = os.fork()
if pid == 0:
    try:
        try:
            lease.check()
        except lockstead.LeaseLost as lost:
            say(lost.reason.value)
        say(lease.is_held, lease.release(), client._engine.keeper.keeps(lease.holder))
        say(lock.try_acquire())
        with client.lock("deb", ttl=5).hold(timeout=30) as own:
            say(own.is_held, own.holder != lease.holder)
            del lease
            own.check()
        mine = lock.acquire(timeout=30)
        say("then mine", mine.is_held)
        mine.release()
    finally:
        os._exit(0)
time.sleep(2)
say("parent", lease.is_held, called)
say("parent", lease.release())
os.waitpid(pid, 0)
client.close()
"""


def test_h13_a_forked_child_holds_nothing_its_parent_continues(shared_url: str) -> None:
    with Child(FORKS, shared_url) as child:
        heard = [child.hear() for _ in range(7)]
        assert child.end() == 0
    assert heard[:4] == ["FORKED", "False False False", "None", "True True"]
    assert set(heard[4:]) == {"parent True []", "parent True", "then mine True"}


FORKED_BY_MULTIPROCESSING = """
import multiprocessing
lock = lockstead.Lock(URL + "#apt", ttl=5)

def work(lease, answers):
    answers.send((lease.is_held, lease.lost_reason.value))
    with lockstead.Lock(URL + "#deb", ttl=5).hold(timeout=30) as own:
        answers.send(own.is_held)

context = multiprocessing.get_context("fork")
heard, answers = context.Pipe(duplex=False)
with lock.hold() as lease:
    process = context.Process(target=work, args=(lease, answers))
    process.start()
    say(heard.recv(), heard.recv())
    process.join()
    lease.check()
say(lock.inspect())
"""


def test_h13_multiprocessing_with_fork(shared_url: str) -> None:
    with Child(FORKED_BY_MULTIPROCESSING, shared_url) as child:
        assert [child.hear(), child.hear()] == ["(False, 'FORKED') True", "None"]
        assert child.end() == 0


FORKED_WHILE_IMPORTING = """
import asyncio, importlib.abc, signal, threading
importing = threading.Event()

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "lockstead.runtime.engine" and not importing.is_set():
            importing.set()
            time.sleep(0.5)

sys.meta_path.insert(0, Slow())

async def main():
    taking = asyncio.create_task(lockstead.AsyncLock(URL + "#apt", ttl=60).acquire(timeout=30))
    while not importing.is_set():
        await asyncio.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        with lockstead.Lock(URL + "#deb", ttl=60).hold(timeout=10):
            os._exit(7)
    lease = await taking
    say(os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]))
    await lease.release()

asyncio.run(main())
"""


def test_h13_a_fork_during_the_engines_import_hangs_no_child(sqlite_url: str) -> None:
    with Child(FORKED_WHILE_IMPORTING, sqlite_url) as child:
        assert child.hear() == "7"
        assert child.end() == 0


FORK_STORM = """
import gc
from lockstead.stores.memory import MemoryStore
client = lockstead.Client(MemoryStore(), listener=lambda event: None)
leases = [client.lock(str(number), ttl=1).acquire() for number in range(300)]
for turn in range(40):
    pid = os.fork()
    if pid == 0:
        held = sum(lease.is_held for lease in leases)
        del leases
        gc.collect()
        with client.lock("own").hold(timeout=30):
            os._exit(held)
    assert os.waitpid(pid, 0)[1] == 0
say(sum(lease.is_held for lease in leases))
os._exit(0)
"""


def test_h13_forks_amid_renewals_neither_deadlock_nor_inherit(sqlite_url: str) -> None:
    with Child(FORK_STORM, sqlite_url) as child:
        assert child.hear() == "300"
        assert child.end() == 0


def test_h13_a_fork_in_a_guarded_block_ends_the_childs_as_lost(sqlite_url: str) -> None:
    script = """
    lock = lockstead.Lock(URL + "#apt", ttl=5)
    try:
        with lock.hold(interrupt=True):
            pid = os.fork()
    except lockstead.LeaseLost as lost:
        say(lost.reason.value)
        os._exit(0)
    os.waitpid(pid, 0)
    say(lock.inspect())
    """
    with Child(script, sqlite_url) as child:
        assert [child.hear(), child.hear()] == ["FORKED", "None"]


FORKS_IN_THREADS = """
import threading

client = lockstead.connect(URL, listener=lambda event: None)
# patient with a store that is slow because the machine is busy
lock = client.lock("apt", ttl=4, renew_every=0.4, request_timeout=0.39, max_failures=5)
lease = lock.acquire()
token = lease.sequencer().token
codes = []

def in_child(number):
    if lease.is_held or lease.release() or lease.lost_reason is not lockstead.LossReason.FORKED:
        os._exit(2)
    try:
        lease.sequencer()
        os._exit(3)
    except lockstead.LeaseLost:
        pass
    with client.lock(f"own-{number}", ttl=60).hold(timeout=60) as own:
        own.check()
    if client.lock("apt", ttl=60).try_acquire() is not None:
        os._exit(4)
    client.close()

def forks(number):
    for turn in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                in_child(number)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(5)
            if turn % 2:
                os._exit(0)
            return  # the end of its only thread is the end of the child
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

threads = [threading.Thread(target=forks, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say(sorted(codes), lease.is_held)
hear()
say(lease.is_held, lease.sequencer().token == token)
say(lease.release())
client.close()
"""


@pytest.mark.slow
def test_h13_forks_in_threads_that_renew_meanwhile(shared_url: str) -> None:
    """Each of 16 children acquires a lease, closes its client and ends; the parent continues for two ttl."""
    with Child(FORKS_IN_THREADS, shared_url) as child:
        assert child.hear() == f"{[0] * 16} True"
        with lockstead.connect(shared_url, listener=quiet) as client:
            with pytest.raises(lockstead.NotAcquired):
                client.lock("apt", ttl=60).acquire(timeout=9)
            child.say("still there?")
            assert [child.hear(), child.hear()] == ["True True", "True"]
            assert child.end() == 0
            assert client.list() == []


FORKS_AND_ENDS = """
client = lockstead.connect(URL, listener=lambda event: None)
with client.lock("apt", ttl=60).hold() as lease:
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # unwinds the block, in the child
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), lease.is_held)
    hear()
client.close()
"""


def test_h13_a_child_that_leaves_the_block_releases_nothing(shared_url: str) -> None:
    with Child(FORKS_AND_ENDS, shared_url) as child, lockstead.connect(shared_url, listener=quiet) as client:
        assert child.hear() == "7 True"
        seen = client.lock("apt").inspect()
        assert seen is not None
        assert seen.holder.split("/")[1] == str(child.process.pid)
        child.say("end")
        assert child.end() == 0
        assert client.lock("apt").inspect() is None
