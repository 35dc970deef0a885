"""A row in PostgreSQL as the floor of fencing tokens, in the transaction that writes the data beside it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import lockstead
from lockstead import FenceGuard, LeaseLost, Sequencer, SqlFenceStore
from tests.servers.postgres import PostgresServer

LIMIT = 60.0

OLD_HOLDER = """
import sys, psycopg, lockstead
from lockstead import FenceGuard, SqlFenceStore
url = sys.argv[1]
with lockstead.connect(url) as client, psycopg.connect(url) as data:
    lease = client.lock("sum", ttl=2, renew_every=0.3, request_timeout=0.25, abort_margin=0.3, max_failures=2).acquire()
    token = lease.sequencer()
    print("held", flush=True)
    sys.stdin.readline()
    try:
        FenceGuard(SqlFenceStore(data)).admit(token)
        data.execute("UPDATE totals SET amount = -1")
        data.commit()
        print("written", flush=True)
    except lockstead.LeaseLost:
        data.rollback()
        print("refused", flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def data(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    server.tell("DROP TABLE IF EXISTS totals, lockstead_fence")
    with psycopg.connect(server.url()) as data:
        SqlFenceStore(data).create_table()
        data.execute("CREATE TABLE totals (amount int NOT NULL)")
        data.execute("INSERT INTO totals VALUES (0)")
        data.commit()
        yield data
        data.rollback()


def amount(data: psycopg.Connection[Any]) -> int:
    seen = amount_seen(data)
    data.commit()
    return seen


def amount_seen(data: psycopg.Connection[Any]) -> int:
    row = data.execute("SELECT amount FROM totals").fetchone()
    assert row is not None
    return int(row[0])


def test_h17_a_superseded_token_is_refused_and_rolled_back(
    data: psycopg.Connection[Any],
) -> None:
    guard = FenceGuard(SqlFenceStore(data))
    with data.transaction():
        guard.admit(Sequencer("sum", 9))
        data.execute("UPDATE totals SET amount = 9")
    with pytest.raises(LeaseLost, match="token 7 of 'sum' is superseded: 9"), data.transaction():
        data.execute("UPDATE totals SET amount = 7")
        guard.admit(Sequencer("sum", 7))
    data.commit()
    assert amount(data) == 9


def test_a_rollback_takes_the_admission_back(data: psycopg.Connection[Any]) -> None:
    guard = FenceGuard(SqlFenceStore(data))
    guard.admit(Sequencer("sum", 9))
    data.rollback()
    guard.admit(Sequencer("sum", 7))
    data.commit()


def test_an_autocommit_connection_is_refused(server: PostgresServer, data: psycopg.Connection[Any]) -> None:
    with psycopg.connect(server.url(), autocommit=True) as loose:
        with pytest.raises(ValueError, match="begin a transaction"):
            FenceGuard(SqlFenceStore(loose)).admit(Sequencer("sum", 3))
        with loose.transaction():
            FenceGuard(SqlFenceStore(loose)).admit(Sequencer("sum", 3))


def test_a_later_holder_waits_for_the_commit(server: PostgresServer, data: psycopg.Connection[Any]) -> None:
    told: list[str] = []
    FenceGuard(SqlFenceStore(data)).admit(Sequencer("sum", 9))  # the transaction is open

    def comes_late() -> None:
        with psycopg.connect(server.url()) as earlier:
            try:
                FenceGuard(SqlFenceStore(earlier)).admit(Sequencer("sum", 7))
                told.append("admitted")
            except LeaseLost:
                told.append("lost")

    thread = threading.Thread(target=comes_late)
    thread.start()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    server.until(lambda: server.tell(waiting) == [(1,)], "nobody waits")
    assert told == []
    data.execute("UPDATE totals SET amount = 9")
    data.commit()
    thread.join(LIMIT)
    assert told == ["lost"]
    assert amount(data) == 9


@contextmanager
def reading(server: PostgresServer, token: int) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection in whose transaction a reader was admitted; fails if that must wait. Commits at the end."""
    with psycopg.connect(server.url()) as reader:
        reader.execute("SET LOCAL lock_timeout = '5s'")
        FenceGuard(SqlFenceStore(reader)).admit_reader(Sequencer("sum", token, "shared"))
        yield reader


class Attempt:
    """An admission in a thread of its own, which then reads the amount and commits."""

    def __init__(self, server: PostgresServer, sequencer: str) -> None:
        self.server = server
        self.sequencer = sequencer
        self.outcome: int | str | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with psycopg.connect(self.server.url()) as mine:
            guard = FenceGuard(SqlFenceStore(mine))
            admit = guard.admit_reader if ":shared:" in self.sequencer else guard.admit
            try:
                admit(self.sequencer)
                self.outcome = amount(mine)
            except LeaseLost:
                self.outcome = "lost"

    def waits(self) -> None:
        """Wait until it waits for a lock."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        self.server.until(lambda: self.outcome is not None or self.server.tell(waiting) == [(1,)], "nobody waits")
        assert self.outcome is None

    def ends(self) -> int | str | None:
        """Wait for its end and return what it read, or "lost"."""
        self._thread.join(LIMIT)
        return self.outcome


def test_readers_of_one_token_do_not_wait_for_each_other_and_write_nothing(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    with reading(server, 7):
        pass
    before = server.tell("SELECT ctid, token, mode FROM lockstead_fence")
    with reading(server, 7), reading(server, 7), reading(server, 7):
        pass
    assert server.tell("SELECT ctid, token, mode FROM lockstead_fence") == before
    assert before[0][1:] == (7, "shared")


def test_a_writer_waits_until_the_last_reader_has_committed(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    with reading(server, 7):
        pass
    with reading(server, 7) as last:
        with reading(server, 7):
            writer = Attempt(server, "8:exclusive:sum")
            writer.waits()
        writer.waits()
        assert amount_seen(last) == 0
    assert writer.ends() == 0
    with pytest.raises(LeaseLost, match="superseded: 8"), reading(server, 7):
        pass


def test_writers_of_one_token_wait_for_each_other(server: PostgresServer, data: psycopg.Connection[Any]) -> None:
    """Members of one lease have one token; each may read, and write what it computed."""
    guard = FenceGuard(SqlFenceStore(data))
    guard.admit("7:exclusive:sum")
    data.commit()
    guard.admit("7:exclusive:sum")
    data.execute("UPDATE totals SET amount = 1")
    sibling = Attempt(server, "7:exclusive:sum")
    sibling.waits()
    data.commit()
    assert sibling.ends() == 1


def test_an_earlier_writer_waits_for_the_first_reader_and_is_refused(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    FenceGuard(SqlFenceStore(data)).admit("6:exclusive:sum")
    data.commit()
    with reading(server, 7):
        early = Attempt(server, "6:exclusive:sum")
        early.waits()
    assert early.ends() == "lost"
    with reading(server, 7):
        late = Attempt(server, "8:exclusive:sum")
        late.waits()
    assert late.ends() == 0


def test_a_reader_reads_what_the_writer_before_it_commits(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    FenceGuard(SqlFenceStore(data)).admit("6:exclusive:sum")
    reader = Attempt(server, "7:shared:sum")
    reader.waits()
    data.execute("UPDATE totals SET amount = 6")
    data.commit()
    assert reader.ends() == 6


@pytest.mark.parametrize("commits", [True, False])
def test_a_late_reader_waits_for_the_next_writer_and_is_refused_if_it_commits(
    server: PostgresServer, data: psycopg.Connection[Any], commits: bool
) -> None:
    with reading(server, 7):
        pass
    FenceGuard(SqlFenceStore(data)).admit("8:exclusive:sum")
    data.execute("UPDATE totals SET amount = 8")
    reader = Attempt(server, "7:shared:sum")
    reader.waits()
    data.commit() if commits else data.rollback()
    assert reader.ends() == ("lost" if commits else 0)


def test_a_reader_whose_snapshot_is_older_than_the_next_writer_is_refused(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    with reading(server, 7):
        pass
    data.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert amount_seen(data) == 0
    with psycopg.connect(server.url()) as writer:
        FenceGuard(SqlFenceStore(writer)).admit("8:exclusive:sum")
    with pytest.raises(psycopg.errors.SerializationFailure):
        FenceGuard(SqlFenceStore(data)).admit_reader("7:shared:sum")


def test_two_readers_that_both_raise_the_floor_do_not_deadlock(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    with reading(server, 7):
        pass
    both = threading.Barrier(2, timeout=LIMIT)
    told: list[str] = []

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, statement: Any, *given: Any, **more: Any) -> Any:
            done = super().execute(statement, *given, **more)
            if "FOR SHARE" in statement:
                both.wait()  # neither raises before both have looked
            return done

    def read() -> None:
        with psycopg.connect(server.url(), cursor_factory=Cursor) as mine:
            FenceGuard(SqlFenceStore(mine)).admit_reader("9:shared:sum")
            told.append("admitted")

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert told == ["admitted", "admitted"]


def test_h06_a_stopped_holders_late_transaction_is_refused(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    old = subprocess.Popen(
        [sys.executable, "-c", OLD_HOLDER, server.url()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert old.stdin is not None
    assert old.stdout is not None
    try:
        assert old.stdout.readline() == "held\n"
        old.send_signal(signal.SIGSTOP)
        with lockstead.connect(server.url()) as client:
            with client.lock("sum", ttl=30).hold(timeout=LIMIT) as lease:
                FenceGuard(SqlFenceStore(data)).admit(lease.sequencer())
                data.execute("UPDATE totals SET amount = amount + 1")
                data.commit()
        old.stdin.write("go on\n")
        old.stdin.flush()
        old.send_signal(signal.SIGCONT)
        assert old.stdout.readline() == "refused\n"
    finally:
        old.kill()
        old.communicate()
    assert amount(data) == 1


def test_holders_that_do_not_notice_their_loss_lose_no_write(
    server: PostgresServer, data: psycopg.Connection[Any]
) -> None:
    """Every holder reads, and adds under its token; those that were superseded meanwhile are refused."""
    written: list[int] = []
    stale: list[Sequencer] = []
    with lockstead.connect(server.url()) as client:
        lock = client.lock("sum", ttl=30)

        def work() -> None:
            with psycopg.connect(server.url()) as mine:
                for _ in range(8):
                    with lock.hold(timeout=LIMIT) as lease:
                        token = lease.sequencer()
                        stale.append(token)
                    for late in (token, stale[0]):  # after the release, so that others come between
                        try:
                            FenceGuard(SqlFenceStore(mine)).admit(late)
                            row = mine.execute("SELECT amount FROM totals").fetchone()
                            assert row is not None
                            time.sleep(0.001)
                            mine.execute("UPDATE totals SET amount = %s", (row[0] + 1,))
                            mine.commit()
                            written.append(late.token)
                        except LeaseLost:
                            mine.rollback()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    assert amount(data) == len(written)
    assert len(set(written)) > 1
    assert stale[0].token < max(written)
