"""A SQL row as the floor of fencing tokens: raised in the transaction that writes the data, or not at all."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockstead import FenceGuard, LeaseLost, Sequencer, SqlFenceStore, connect


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.db"


@pytest.fixture
def data(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=60)) as data:
        SqlFenceStore(data).create_table()
        data.execute("CREATE TABLE totals (name TEXT PRIMARY KEY, amount INT)")
        data.execute("INSERT INTO totals VALUES ('sum', 0)")
        data.commit()
        yield data


def amount(data: sqlite3.Connection) -> int:
    return int(data.execute("SELECT amount FROM totals").fetchone()[0])


def test_h17_a_superseded_token_is_refused_and_rolled_back(data: sqlite3.Connection) -> None:
    guard = FenceGuard(SqlFenceStore(data))
    with data:
        guard.admit(Sequencer("sum", 7))
        data.execute("UPDATE totals SET amount = 1")
    with data:
        guard.admit("9:exclusive:sum")
        guard.admit("9:exclusive:sum")
    with pytest.raises(LeaseLost, match="token 7 of 'sum' is superseded: 9") as caught, data:
        data.execute("UPDATE totals SET amount = 99")
        guard.admit(Sequencer("sum", 7))
    assert caught.value.token == 7
    assert amount(data) == 1


def test_a_rollback_takes_the_admission_back(data: sqlite3.Connection) -> None:
    guard = FenceGuard(SqlFenceStore(data))
    guard.admit(Sequencer("sum", 9))
    data.rollback()
    guard.admit(Sequencer("sum", 7))


def test_each_key_has_a_floor_of_its_own(data: sqlite3.Connection) -> None:
    guard = FenceGuard(SqlFenceStore(data))
    guard.admit(Sequencer("sum", 9))
    guard.admit(Sequencer("count", 1))
    with pytest.raises(LeaseLost):
        guard.admit(Sequencer("sum", 8))


def test_tokens_are_as_long_as_the_stores_count_them(data: sqlite3.Connection) -> None:
    floor = SqlFenceStore(data)
    for token in (1_795_000_000_000, 2**63 - 1):
        assert floor.advance(Sequencer("sum", token)).token == token
    assert floor.advance(Sequencer("sum", 7)).token == 2**63 - 1


def test_an_autocommit_connection_is_refused(path: Path, data: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as loose:
        with pytest.raises(ValueError, match="begin a transaction"):
            FenceGuard(SqlFenceStore(loose)).admit(Sequencer("sum", 3))
        loose.execute("BEGIN IMMEDIATE")
        FenceGuard(SqlFenceStore(loose)).admit(Sequencer("sum", 3))
        loose.execute("COMMIT")


def test_the_table_may_have_another_name_but_no_statement_hides_in_it(data: sqlite3.Connection) -> None:
    for table in ("fences", "main.fences"):
        floor = SqlFenceStore(data, table)
        floor.create_table()
        assert floor.advance(Sequencer("sum", 5)).token == 5
    for table in ("fences; DROP TABLE totals", "", "a.b.c", "1x", 'x"y'):
        with pytest.raises(ValueError, match="plain name"):
            SqlFenceStore(data, table)


def test_what_is_no_connection_is_told_so() -> None:
    class Session:
        def cursor(self) -> object:
            return self

    with pytest.raises(TypeError, match="is not a DB-API connection that names its paramstyle"):
        SqlFenceStore(Session())  # type: ignore[arg-type] # the mistake that is meant


def test_a_later_holder_waits_for_the_commit(path: Path, data: sqlite3.Connection) -> None:
    earlier = sqlite3.connect(path, timeout=60, check_same_thread=False)
    told: list[str] = []
    guard = FenceGuard(SqlFenceStore(data))
    guard.admit(Sequencer("sum", 9))  # the transaction is open

    def comes_late() -> None:
        try:
            FenceGuard(SqlFenceStore(earlier)).admit(Sequencer("sum", 7))
            told.append("admitted")
        except LeaseLost:
            told.append("lost")

    thread = threading.Thread(target=comes_late)
    thread.start()
    thread.join(0.2)
    assert told == []
    data.execute("UPDATE totals SET amount = 9")
    data.commit()
    thread.join(60)
    earlier.close()
    assert told == ["lost"]


def test_readers_and_writers_wait_for_each_others_commit(path: Path, data: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as other:
        here, there = FenceGuard(SqlFenceStore(data)), FenceGuard(SqlFenceStore(other))
        here.admit_reader("7:shared:sum")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            there.admit("8:exclusive:sum")
        assert amount(data) == 0
        data.commit()
        there.admit("8:exclusive:sum")
        other.execute("UPDATE totals SET amount = 8")
        data.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            here.admit_reader("9:shared:sum")
        other.commit()
        here.admit_reader("9:shared:sum")
        assert amount(data) == 8


def test_holders_that_do_not_notice_their_loss_lose_no_write(path: Path, data: sqlite3.Connection) -> None:
    """Every holder reads, and adds under its token; those that were superseded meanwhile are refused."""
    written: list[int] = []
    with connect("memory:fence") as client:
        lock = client.lock("sum", ttl=30)
        stale: list[Sequencer] = []

        def work() -> None:
            with closing(sqlite3.connect(path, timeout=60)) as mine:
                for _ in range(20):
                    with lock.hold(timeout=60) as lease:
                        token = lease.sequencer()
                        stale.append(token)
                    for late in (token, stale[0]):  # after the release, so that others come between
                        try:
                            with mine:
                                mine.execute("BEGIN IMMEDIATE")
                                FenceGuard(SqlFenceStore(mine)).admit(late)
                                mine.execute("UPDATE totals SET amount = amount + 1")
                            written.append(late.token)
                        except LeaseLost:
                            pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert amount(data) == len(written)
    assert len(set(written)) > 1
    assert stale[0].token < max(written)


def test_a_table_that_is_missing_is_named_with_what_creates_it(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "data.db")) as connection,
        pytest.raises(sqlite3.OperationalError) as raised,
    ):
        SqlFenceStore(connection).advance(Sequencer("apt", 7))
    assert raised.value.__notes__ == [
        "the table lockstead_fence must exist: SqlFenceStore(connection).create_table() creates it"
    ]
