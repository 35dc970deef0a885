"""A row in PostgreSQL as the floor of fencing tokens, in the transaction that writes the data beside it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
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
    row = data.execute("SELECT amount FROM totals").fetchone()
    data.commit()
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
