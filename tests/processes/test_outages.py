"""A store that is out of reach for longer than the ttl, and comes back (H9, H16); one that is restarted (H4)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead.stores.bootclock import boot_now
from tests.processes.journal import Event, Journal
from tests.processes.judge import judge
from tests.runtime.faulty import quiet, until
from tests.runtime.processes import Child

TTL = 5.0
BACKOFF_MAX = 0.5
REQUEST_TIMEOUT = 0.45
BOUND = BACKOFF_MAX + 2 * REQUEST_TIMEOUT + 6.0
"""Seconds from the recovery until a waiter acquires: a pause, a read, a write, and the delays of a busy machine."""

SETTINGS = f"""
from pathlib import Path
from lockstead.stores.bootclock import boot_now
from tests.processes.journal import Journal

journal = Journal(Path(os.environ["JOURNAL"]))
settings = dict(ttl={TTL}, renew_every=0.5, request_timeout={REQUEST_TIMEOUT}, abort_margin=1)
settings.update(backoff_max={BACKOFF_MAX})
"""

HOLDER = (
    SETTINGS
    + """
import threading
from lockstead.events import Renewed

is_told = threading.Event()

def told(event):
    if isinstance(event, Renewed):
        journal.note("holds", event.key, event.holder, until=event.deadline)

client = lockstead.connect(URL, listener=told)
try:
    with client.lock("apt", **settings).hold(interrupt=True) as lease:
        lease.on_lost(lambda: (journal.note("told", word=lease.lost_reason.value), is_told.set()))
        token = lease.sequencer().token
        now = boot_now()
        journal.note("holds", lease.key, lease.holder, at=now, token=token, until=now + lease.time_left)
        say("held")
        try:
            while True:
                time.sleep(0.01)
        finally:
            journal.note("aborted")
except lockstead.LeaseLost as lost:
    # the callback has a thread of its own, which the end of the process would cut off
    is_told.wait(60)
    say(lost.reason.value)
client.close()
"""
)

WAITER = (
    SETTINGS
    + """
client = lockstead.connect(URL, listener=lambda event: None)
say("waits")
with client.lock("apt", **settings).hold() as lease:
    now = boot_now()
    token = lease.sequencer().token
    journal.note("holds", lease.key, lease.holder, at=now, token=token, until=now + lease.time_left)
    journal.note("finally", lease.key)
    say(lease.holder)
    hear()
    lease.check()
    journal.note("leaves", lease.key, lease.holder)
client.close()
"""
)

Outage = Callable[[], None]
"""What ends it."""


def silent(gcs: GcsServer) -> Outage:
    """Read every request and never answer."""
    gcs.pause("hang")
    return gcs.resume


def stopped(gcs: GcsServer) -> Outage:
    """Close the port, and all connections."""
    gcs.stop()
    return gcs.start


def locked(file: Path) -> Outage:
    """Keep everybody from writing; looking is still possible."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection.close


@pytest.fixture(params=[silent, stopped, locked], ids=lambda one: str(one.__name__))
def outage(request: pytest.FixtureRequest) -> tuple[str, Callable[[], Outage]]:
    """Return a store's URL, and what begins its outage."""
    begin = request.param
    if begin is locked:
        url: str = request.getfixturevalue("sqlite_url")
        return url, lambda: locked(Path(url.removeprefix("sqlite:///")))
    gcs: GcsServer = request.getfixturevalue("gcs")
    return "gs://b/locks", lambda: begin(gcs)


@contextmanager
def children(url: str, journal: Path, waiters: int) -> Iterator[tuple[Child, list[Child]]]:
    """Run a holder that holds, and waiters that wait."""
    with ExitStack() as stack:
        holder = stack.enter_context(Child(HOLDER, url, JOURNAL=str(journal)))
        assert holder.hear() == "held"
        waiting = [stack.enter_context(Child(WAITER, url, JOURNAL=str(journal))) for _ in range(waiters)]
        for waiter in waiting:
            assert waiter.hear() == "waits"
        yield holder, waiting


def entries(journal: Journal) -> list[Event]:
    """Return who got in, in order."""
    return [event for event in journal.events() if event.what == "finally"]


@pytest.mark.slow
def test_h09_h16_an_outage_longer_than_the_ttl(outage: tuple[str, Callable[[], Outage]], tmp_path: Path) -> None:
    """The holder is notified and its section aborted before its deadline; a waiter acquires; one holder at a time."""
    url, begin = outage
    with Journal(tmp_path / "journal") as journal, children(url, journal.path, waiters=2) as (holder, waiters):
        end = begin()
        assert holder.hear() in ("UNREACHABLE", "EXPIRED")
        assert holder.end() == 0
        events = journal.events()
        deadline = max(event.until for event in events if event.what == "holds")
        for what in ("told", "aborted"):
            assert [event.at < deadline for event in events if event.what == what] == [True], what
        # until no reader can consider the lock held any more
        until(lambda: boot_now() > deadline + 0.05 * TTL + 3, 60)
        assert entries(journal) == []
        end()
        recovered_at = boot_now()
        until(lambda: entries(journal), 60)
        assert entries(journal)[0].at - recovered_at < BOUND
        by_pid = {waiter.process.pid: waiter for waiter in waiters}
        with lockstead.connect(url, listener=quiet) as client:
            for number in range(len(waiters)):
                until(lambda count=number: len(entries(journal)) > count, 60)
                time.sleep(3 * BACKOFF_MAX)
                assert len(entries(journal)) == number + 1, "two are in at once"
                inside = by_pid[entries(journal)[number].pid]
                seen = client.lock("apt").inspect()
                assert seen is not None
                assert seen.holder == inside.hear()
                inside.say("leave")
                assert inside.end() == 0
        assert judge(journal.events(), {}) == []


@pytest.mark.slow
def test_h04_restarts_of_the_server_cost_no_lease(gcs: GcsServer, tmp_path: Path) -> None:
    """Connections are cut in the middle of requests; whose record was kept holds on past its ttl."""
    with Journal(tmp_path / "journal") as journal, children("gs://b/locks", journal.path, waiters=1) as (_holder, _):
        ends_at = boot_now() + 1.5 * TTL
        while boot_now() < ends_at:
            gcs.restart()
            time.sleep(1.0)
        events = journal.events()
        assert {event.what for event in events} == {"holds"}
        assert len({event.holder for event in events}) == 1
        assert max(event.until for event in events) > ends_at


def test_the_file_can_be_locked_by_a_bystander(tmp_path: Path) -> None:
    """The outage of the file does what its name says."""
    file = tmp_path / "locks.db"
    with lockstead.connect(f"sqlite:///{file}", listener=quiet) as client:
        client.lock("apt").inspect()
        end = locked(file)
        with pytest.raises(lockstead.StoreUnavailable):
            client.lock("apt", ttl=1).try_acquire()
        end()
        lease = client.lock("apt", ttl=1).try_acquire()
        assert lease is not None
        lease.release()
