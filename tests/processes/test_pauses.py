"""Processes that are stopped past their ttl and go on: the first check says lost, and nothing is sent (H6)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead import Client, Lease, LeaseOutcome, StoreUnavailable
from tests.runtime.faulty import quiet, until
from tests.runtime.processes import Child

pytestmark = pytest.mark.slow

TTL = 3


@pytest.fixture
def client(shared_url: str) -> Iterator[Client]:
    with lockstead.connect(shared_url, listener=quiet) as client:
        yield client


PAUSED = """
import itertools, signal, sqlite3, threading
from lockstead.events import Renewed

STOPS = os.environ.get("STOPS")
stop_at = []

def stop():
    # sent to the process it might be taken by another thread, and this one would run on for a moment
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

def traced(sql):
    if sql in stop_at:
        stop_at.clear()
        stop()

def connecting(*args, connect=sqlite3.connect, **kwargs):
    made = connect(*args, **kwargs)
    made.set_trace_callback(traced)
    return made

sqlite3.connect = connecting
renewals = itertools.count(1)

def told(event):
    # the next renewal is not due yet: none is on the way
    if isinstance(event, Renewed) and next(renewals) == 3 and STOPS == "after renewals":
        stop()

client = lockstead.connect(URL, listener=told)
# patient with a store that is slow because the machine is busy
lock = client.lock("apt", ttl=3, renew_every=0.3, request_timeout=0.29, max_failures=5)
lock.inspect()
if STOPS == "in an acquisition":
    stop_at.append("COMMIT")
lease = lock.acquire(timeout=60)
if STOPS == "in a renewal":
    stop_at.append("COMMIT")
if STOPS == "before renewals":
    # nobody, and least of all the keeper, gets to run between the pause and the check
    sys.setswitchinterval(100)
    stop()
    held = lease.is_held
    sys.setswitchinterval(0.005)
say("held", lease.holder)
hear()
say(held if STOPS == "before renewals" else lease.is_held)
try:
    say("token", lease.sequencer())
except lockstead.LeaseLost as lost:
    say("lost", lost.reason.value)
say(lease.release())
client.close()
"""


def wait_until_stopped(child: Child) -> None:
    """Wait for a child that stops itself; it is still there afterwards."""
    until(lambda: os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOHANG) is not None, 60)


def goes_on_and_knows(paused: Child, *reasons: str) -> str:
    """Let it go on and look: it must not believe, get no token, and remove nothing. Gives the holder it was."""
    paused.process.send_signal(signal.SIGCONT)
    paused.say("go on")
    said, holder = paused.hear().split()
    assert said == "held"
    assert paused.hear() == "False"
    assert paused.hear() in [f"lost {reason}" for reason in reasons or ("EXPIRED",)]
    assert paused.hear() == "False"
    assert paused.end() == 0
    return holder


def is_unharmed(client: Client, lease: Lease) -> None:
    lease.check()
    assert client.verify(lease.sequencer())
    seen = client.lock("apt").inspect()
    assert seen is not None
    assert (seen.holder, seen.token) == (lease.holder, lease.token)


@pytest.mark.parametrize("stops", ["before renewals", "after renewals"])
def test_h06_a_process_stopped_past_its_ttl_touches_nothing(shared_url: str, client: Client, stops: str) -> None:
    """A successor holds the lock when it goes on."""
    with Child(PAUSED, shared_url, STOPS=stops) as paused:
        wait_until_stopped(paused)
        with client.lock("apt", ttl=60).hold(timeout=60) as lease:
            lease.sequencer()
            holder = goes_on_and_knows(paused)
            assert (lease.previous_lease.ending, lease.previous_lease.holder) == (LeaseOutcome.EXPIRED, holder)
            is_unharmed(client, lease)


def test_h06_the_old_holder_sends_nothing_at_all_after_the_pause(gcs: GcsServer) -> None:
    with lockstead.connect("gs://b/locks", listener=quiet) as client:
        with Child(PAUSED, "gs://b/locks", STOPS="before renewals") as paused:
            wait_until_stopped(paused)
            with client.lock("apt", ttl=300).hold(timeout=60):
                before = gcs.requests.counts()
                goes_on_and_knows(paused)
                assert gcs.requests.counts() == before


@pytest.mark.parametrize("kind", ["insert", "patch"])
def test_h06_a_request_commits_while_its_process_is_stopped(gcs: GcsServer, kind: str) -> None:
    """An acquisition or a renewal: the answer waits for the process, which reads it long after it was true."""
    with lockstead.connect("gs://b/locks", listener=quiet) as client:
        fault = gcs.faults.inject("stall", kind=kind, name="locks/apt")
        with Child(PAUSED, "gs://b/locks") as paused:
            assert fault.wait_for_hit(timeout=60)
            paused.process.send_signal(signal.SIGSTOP)
            fault.release()
            until(lambda: client.lock("apt").inspect() is not None)
            with client.lock("apt", ttl=60).hold(timeout=60) as lease:
                lease.sequencer()
                # one that had given up on the answer may have been about to ask again
                goes_on_and_knows(paused, "EXPIRED", "TAKEN")
                is_unharmed(client, lease)


@pytest.mark.parametrize("stops", ["in an acquisition", "in a renewal"])
def test_h06_stopped_in_the_middle_of_a_change_of_the_file(sqlite_url: str, stops: str) -> None:
    """It has the file locked meanwhile: everybody is told so within their limit, and goes on after it."""
    with lockstead.connect(sqlite_url, listener=quiet) as client, Child(PAUSED, sqlite_url, STOPS=stops) as paused:
        wait_until_stopped(paused)
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            client.lock("deb", ttl=3).try_acquire()
        got: list[Lease] = []
        waiter = threading.Thread(target=lambda: got.append(client.lock("apt", ttl=60).acquire(timeout=100)))
        waiter.start()
        time.sleep(TTL * 1.1)
        assert got == []
        goes_on_and_knows(paused)
        waiter.join(100)
        (lease,) = got
        lease.sequencer()
        is_unharmed(client, lease)
        assert lease.release()
