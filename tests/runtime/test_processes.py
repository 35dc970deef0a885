"""How real processes end, and what their ends leave behind (H1, H19, H29). Pauses and forks are in `processes/`."""

from __future__ import annotations

import textwrap

import pytest

import lockstead
from lockstead import LossReason
from tests.runtime.faulty import until
from tests.runtime.processes import Child


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
def test_h19_a_hanging_store_does_not_block_interpreter_exit(script: str) -> None:
    with Child(HANGS + textwrap.dedent(script) + "\nsay('bye')\n", "memory:") as child:
        assert child.hear() == "bye"
        assert child.end(45) == 0


def test_h19_nothing_installs_a_signal_handler_unasked(sqlite_url: str) -> None:
    script = """
    import signal
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    import lockstead.aio_lock, lockstead.aio_batch
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
            assert lease.previous_lease == lockstead.PreviousLease(
                lockstead.LeaseOutcome.EXPIRED, holder.rpartition("/")[0], holder
            )


def test_h29_a_worker_notices_that_its_lease_is_gone(sqlite_url: str) -> None:
    """The owner is killed and its lock broken by an operator; its worker continues."""
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
