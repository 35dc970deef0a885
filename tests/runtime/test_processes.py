"""Pauses, forks and ends of real processes (H6, H8, H13, H19)."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import textwrap
import time
from collections.abc import Iterator

import pytest

import lockstead
from lockstead import Client, LossReason
from lockstead.stores.memory import MemoryStore
from lockstead.testing.gcs_server import GcsServer
from tests.runtime.faulty import quiet, until
from tests.runtime.processes import Child


@pytest.fixture
def client(shared_url: str) -> Iterator[Client]:
    with lockstead.connect(shared_url, listener=quiet) as client:
        yield client


PAUSED = """
client = lockstead.connect(URL)
lease = client.lock("apt", ttl=3).acquire(timeout=60)
say("held", lease.holder)
hear()
say(lease.is_held)
try:
    say("token", lease.sequencer())
except lockstead.LeaseLost as lost:
    say("lost", lost.reason.value)
say(lease.release())
client.close()
"""


def test_h06_a_process_stopped_past_its_ttl_notices_first_and_touches_nothing(shared_url: str, client: Client) -> None:
    """It is stopped before its first renewal; a successor holds the lock when it goes on."""
    with Child(PAUSED, shared_url) as paused:
        holder = paused.hear().split()[1]
        paused.process.send_signal(signal.SIGSTOP)
        with client.lock("apt", ttl=60).hold(timeout=60) as lease:
            assert lease.predecessor.ending is lockstead.Ending.EXPIRED
            assert lease.predecessor.holder == holder
            token = lease.sequencer().token
            paused.process.send_signal(signal.SIGCONT)
            paused.say("go on")
            assert [paused.hear(), paused.hear(), paused.hear()] == ["False", "lost EXPIRED", "False"]
            assert paused.end() == 0
            seen = client.lock("apt").inspect()
            assert seen is not None
            assert (seen.holder, seen.token) == (lease.holder, token)
            assert client.verify(lease.sequencer())


def test_h06_the_old_holder_sends_nothing_at_all_after_the_pause(gcs: GcsServer) -> None:
    with lockstead.connect("gs://b/locks", listener=quiet) as client, Child(PAUSED, "gs://b/locks") as paused:
        paused.hear()
        paused.process.send_signal(signal.SIGSTOP)
        with client.lock("apt", ttl=300).hold(timeout=60):
            before = gcs.requests.counts()
            paused.process.send_signal(signal.SIGCONT)
            paused.say("go on")
            assert paused.end() == 0
            assert gcs.requests.counts() == before


def test_h08_is_held_is_honest_right_after_the_whole_interpreter_stood_still() -> None:
    with Client(MemoryStore(), listener=quiet) as client:
        lease = client.lock("apt", ttl=1).acquire()
        # PyDLL keeps the interpreter's lock: no other thread of this process runs meanwhile
        ctypes.PyDLL(None).usleep(1_500_000)
        assert not lease.is_held
        with pytest.raises(lockstead.LeaseLost):
            lease.check()


def test_h08_a_blocked_event_loop_starves_no_keeper() -> None:
    async def block() -> None:
        async with lockstead.AsyncClient(MemoryStore(), listener=quiet) as client:
            async with client.lock("apt", ttl=1).hold() as lease:
                time.sleep(2.5)  # noqa: ASYNC251 - blocking the loop is the point
                lease.check()

    asyncio.run(block())


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


def test_h13_a_forked_child_holds_nothing_and_its_parent_is_unaffected(shared_url: str) -> None:
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


def test_h13_multiprocessing_with_fork(sqlite_url: str) -> None:
    with Child(FORKED_BY_MULTIPROCESSING, sqlite_url) as child:
        assert [child.hear(), child.hear()] == ["(False, 'FORKED') True", "None"]
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


def test_h13_a_fork_inside_a_guarded_block_ends_the_childs_block_as_lost(sqlite_url: str) -> None:
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


# --- the end of a process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "code", "is_left"),
    [
        ("sys.exit(3)", 3, False),
        ("raise SystemExit(4)", 4, False),
        ("os._exit(5)", 5, True),
        ("os.kill(os.getpid(), 15); time.sleep(60)", -15, True),
    ],
)
def test_h19_a_lock_is_given_back_only_after_its_block_ended(
    sqlite_url: str, ending: str, code: int, is_left: bool
) -> None:
    script = f"""
    with lockstead.Lock(URL + "#apt", ttl=60).hold():
        {ending}
    """
    with Child(script, sqlite_url) as child:
        assert child.end() == code
    assert (lockstead.Lock(f"{sqlite_url}#apt").inspect() is not None) is is_left


def test_h19_a_lease_that_nobody_gave_back_is_left_to_expire_at_exit(sqlite_url: str) -> None:
    with Child('kept = lockstead.Lock(URL + "#apt", ttl=60).acquire()', sqlite_url) as child:
        assert child.end() == 0
    assert lockstead.Lock(f"{sqlite_url}#apt").inspect() is not None


HANGS = """
import asyncio, threading
from lockstead.stores.memory import MemoryStore

class Hangs(MemoryStore):
    hangs = False
    def perform(self, command, limit):
        if Hangs.hangs:
            time.sleep(3600)
        return super().perform(command, limit)
    def wait(self, name, seconds, is_over):
        time.sleep(3600)
"""


@pytest.mark.parametrize(
    "script",
    [
        """
        client = lockstead.Client(Hangs())
        lease = client.lock("apt", ttl=1).acquire()
        Hangs.hangs = True
        time.sleep(1)
        """,
        """
        async def main():
            client = lockstead.AsyncClient(Hangs())
            lease = await client.lock("apt", ttl=1).acquire()
            waiting = asyncio.create_task(client.lock("apt").acquire())
            await asyncio.sleep(0.2)
            Hangs.hangs = True
            await asyncio.sleep(1)
            waiting.cancel()
        asyncio.run(main())
        """,
        """
        client = lockstead.Client(Hangs())
        Hangs.hangs = True
        threading.Thread(target=client.lock("apt").acquire, daemon=True).start()
        time.sleep(0.2)
        """,
    ],
    ids=["renewing", "awaiting", "acquiring"],
)
def test_h19_a_store_that_hangs_does_not_hang_the_end_of_the_interpreter(script: str) -> None:
    with Child(HANGS + textwrap.dedent(script) + "\nsay('bye')\n", "memory:") as child:
        assert child.hear() == "bye"
        assert child.end(45) == 0


def test_h19_nothing_installs_a_signal_handler_unasked(sqlite_url: str) -> None:
    script = """
    import signal
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    import lockstead.aio
    with lockstead.Lock(URL + "#apt").hold() as lease:
        lease.sequencer()
        say({number: signal.getsignal(number) for number in signal.valid_signals()} == before)
    """
    with Child(script, sqlite_url) as child:
        assert child.hear() == "True"
        assert child.end() == 0


def test_h01_the_lock_of_a_killed_process_is_taken_over_after_its_ttl(sqlite_url: str) -> None:
    script = """
    lease = lockstead.Lock(URL + "#apt", ttl=1).acquire()
    say(lease.holder)
    hear()
    """
    with Child(script, sqlite_url) as child:
        holder = child.hear()
        child.process.kill()
        with lockstead.Lock(f"{sqlite_url}#apt").hold(timeout=60) as lease:
            assert lease.predecessor == lockstead.Predecessor(
                lockstead.Ending.EXPIRED, holder.rpartition("/")[0], holder
            )


def test_h29_a_worker_notices_that_it_works_under_a_lease_that_nobody_holds_any_more(sqlite_url: str) -> None:
    """The owner is killed and its lock broken by an operator; its worker lives on."""
    script = """
    lock = lockstead.Lock(URL + "#apt", ttl=2)
    lease = lock.acquire()
    say(lease.share())
    hear()
    """
    with Child(script, sqlite_url) as owner:
        ticket = owner.hear()
        lock = lockstead.Lock(f"{sqlite_url}#apt")
        member = lock.attach(ticket)
        owner.process.kill()
        lock.break_lease(reason="its owner was killed", by="tester")
        until(lambda: not member.is_held)
        assert member.lost_reason is LossReason.REVOKED
        member.release()
