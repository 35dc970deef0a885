"""Threads that do not get to run: the event loop blocked, the interpreter's lock held, past the ttl (H8)."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time

import pytest

import lockstead
from lockstead import Client, LeaseOutcome
from lockstead.stores.memory import MemoryStore
from tests.runtime.faulty import quiet
from tests.runtime.processes import Child


def test_h08_is_held_is_right_after_a_pause_of_the_interpreter() -> None:
    with Client(MemoryStore(), listener=quiet) as client:
        lease = client.lock("apt", ttl=1).acquire()
        interval = sys.getswitchinterval()
        # the keeper must not be the one who finds it out: no thread takes over before the check
        sys.setswitchinterval(100)
        try:
            # PyDLL keeps the interpreter's lock: no other thread of this process runs meanwhile
            ctypes.PyDLL(None).usleep(1_500_000)
            held = lease.is_held
        finally:
            sys.setswitchinterval(interval)
        assert not held
        with pytest.raises(lockstead.LeaseLost):
            lease.check()


def test_h08_a_blocked_event_loop_starves_no_keeper() -> None:
    async def block() -> None:
        async with lockstead.AsyncClient(MemoryStore(), listener=quiet) as client:
            async with client.lock("apt", ttl=3).hold() as lease:
                time.sleep(4)  # noqa: ASYNC251 - blocking the loop is the point
                lease.check()

    asyncio.run(block())


BLOCKED = """
import asyncio
from lockstead.events import Renewed

renewed = []

async def main():
    client = await lockstead.connect_async(URL, listener=lambda event: renewed.append(type(event) is Renewed))
    # patient with a store that is slow because the machine is busy
    patience = {"renew_every": 0.3, "request_timeout": 0.29, "max_failures": 5}
    async with client.lock("apt", ttl=3, **patience).hold() as lease:
        say("held", lease.holder)
        hear()  # blocks the loop, and everything that would have to run in it
        lease.check()
        say(sum(renewed) > 3, str(await lease.sequencer()))
        hear()
    await client.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_h08_a_lease_is_renewed_while_the_event_loop_is_blocked(shared_url: str) -> None:
    """No other client acquires for more than two ttl, and the holder is right to continue."""
    with lockstead.connect(shared_url, listener=quiet) as client, Child(BLOCKED, shared_url) as blocked:
        assert blocked.hear().startswith("held")
        with pytest.raises(lockstead.NotAcquired):
            client.lock("apt", ttl=60).acquire(timeout=7)
        blocked.say("go on")
        renewed, sequencer = blocked.hear().split()
        assert renewed == "True"
        assert client.verify(sequencer)
        blocked.say("end")
        assert blocked.end() == 0
        assert client.lock("apt").inspect() is None


FROZEN = """
import ctypes

client = lockstead.connect(URL)
lease = client.lock("apt", ttl=3).acquire(timeout=60)
called = []
lease.on_lost(lambda: called.append(1))
say("held", lease.holder)
# the interpreter's lock is kept: no thread of this process runs, the keeper's neither, and none before the check
sys.setswitchinterval(100)
ctypes.PyDLL(None).sleep(9)
held = lease.is_held
sys.setswitchinterval(0.005)
say(held)
try:
    say("token", lease.sequencer())
except lockstead.LeaseLost as lost:
    say("lost", lost.reason.value)
say(lease.release())
ends_at = time.monotonic() + 20
while not called and time.monotonic() < ends_at:
    time.sleep(0.01)
time.sleep(0.2)
say(called)
client.close()
"""


@pytest.mark.slow
def test_h08_a_holder_paused_past_its_ttl_harms_no_successor(
    shared_url: str,
) -> None:
    """Its keeper could neither renew nor tell; arithmetic on the clock says it all the same, at the first check."""
    with lockstead.connect(shared_url, listener=quiet) as client, Child(FROZEN, shared_url) as frozen:
        holder = frozen.hear().split()[1]
        with client.lock("apt", ttl=60).hold(timeout=60) as lease:
            assert (lease.previous_lease.ending, lease.previous_lease.holder) == (LeaseOutcome.EXPIRED, holder)
            sequencer = lease.sequencer()
            assert frozen.hear() == "False"
            # TAKEN: a renewal was about to be sent when all stood still
            assert frozen.hear() in ("lost EXPIRED", "lost TAKEN")
            assert frozen.hear() == "False"
            assert frozen.hear() == "[1]", "the loss is told once, even so late"
            assert frozen.end() == 0
            lease.check()
            assert client.verify(sequencer)
