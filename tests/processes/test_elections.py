"""Leaders that are killed or stopped: another candidate leads within the ttl, and never two at a guard.

Each candidate writes to a table whose fence checks its token, and says when it is elected and deposed.
"""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstead
from lockstead import Election
from tests.runtime.faulty import until
from tests.runtime.processes import Child
from tests.servers.redis import RedisPlace

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("redis")]

TTL = 3.0
SETTINGS = {"ttl": TTL, "renew_every": 0.3, "request_timeout": 0.29, "max_failures": 5, "backoff_max": 0.2}

CANDIDATE = f"""
import sqlite3

SETTINGS = {SETTINGS}
election = lockstead.Election(URL, owner=os.environ["OWNER"], value="http://" + os.environ["OWNER"], **SETTINGS)
table = sqlite3.connect(os.environ["TABLE"], isolation_level=None, timeout=30)
guard = lockstead.FenceGuard(lockstead.SqlFenceStore(table))

def write(term, sequencer):
    table.execute("BEGIN IMMEDIATE")
    try:
        guard.admit(sequencer)
        table.execute("INSERT INTO written (token, owner, held) VALUES (?, ?, ?)",
                      (sequencer.token, os.environ["OWNER"], term.is_held))
        table.execute("COMMIT")
    except BaseException:
        table.execute("ROLLBACK")
        raise

def work(term):
    sequencer = term.sequencer()
    say("elected", sequencer.token)
    while True:
        # it does not look before it writes: the fence must refuse it
        try:
            write(term, sequencer)
        except lockstead.LeaseLost:
            say("refused", term.is_held)
            return
        if not term.is_held:
            say("over", term.lost_reason.value)
            return
        time.sleep(0.02)

def deposed(why):
    say("deposed")

import time
election.run(work, on_deposed=deposed)
"""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPlace]:
    running = RedisPlace(tmp_path_factory.mktemp("redis"))
    yield running
    running.stop()


_spaces = itertools.count()


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.db#scheduler"
    place: RedisPlace = request.getfixturevalue("redis")
    before, _, after = place.url(f"e{next(_spaces)}").partition("?")
    return f"{before}?{after}#scheduler"


class Candidates:
    """Candidates that campaign for one key and write to one table."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.table = folder / "table.db"
        with sqlite3.connect(self.table) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "CREATE TABLE written (number INTEGER PRIMARY KEY, token INTEGER, owner TEXT, held INTEGER)"
            )
            lockstead.SqlFenceStore(connection).create_table()
        connection.close()
        self.children: dict[str, Child] = {}
        self.said: list[tuple[float, str, str]] = []

    def start(self, owner: str) -> Child:
        """Start one; what it says is noted with the time."""
        child = self.children[owner] = Child(CANDIDATE, self.url, OWNER=owner, TABLE=str(self.table))
        threading.Thread(target=self._hear, args=(owner, child), daemon=True).start()
        return child

    def _hear(self, owner: str, child: Child) -> None:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            self.said.append((time.monotonic(), owner, line.strip()))

    def elected(self) -> list[tuple[float, str, int]]:
        """Return the terms so far: when, who, which token."""
        terms = [(at, owner, line.split()) for at, owner, line in list(self.said) if line.startswith("elected")]
        return [(at, owner, int(words[1])) for at, owner, words in terms]

    def next_term(self, count: int) -> tuple[float, str, int]:
        """Wait for the n-th term."""
        until(lambda: len(self.elected()) >= count, 60)
        return self.elected()[count - 1]

    def written(self) -> list[tuple[int, str, int]]:
        """Return what was written, in order: token, owner, whether it considered itself the leader afterwards."""
        with sqlite3.connect(self.table, timeout=30) as connection:
            rows = connection.execute("SELECT token, owner, held FROM written ORDER BY number").fetchall()
        connection.close()
        return rows

    def has_written(self, owner: str, token: int) -> bool:
        return any(row[:2] == (token, owner) for row in self.written())

    def end(self) -> None:
        for child in self.children.values():
            with child:
                pass


@pytest.fixture
def candidates(url: str, tmp_path: Path) -> Iterator[Candidates]:
    made = Candidates(url, tmp_path)
    yield made
    made.end()


def never_two_at_the_guard(candidates: Candidates) -> None:
    """Check that what was written is in the order of the terms, one leader a term, tokens growing."""
    rows = candidates.written()
    tokens = [token for token, _owner, _held in rows]
    assert tokens == sorted(tokens)
    owners: dict[int, set[str]] = {}
    for token, owner, _held in rows:
        owners.setdefault(token, set()).add(owner)
    assert all(len(one) == 1 for one in owners.values())
    terms = [token for _at, _owner, token in candidates.elected()]
    assert terms == sorted(set(terms))


@pytest.mark.timeout(300)
def test_a_leader_that_is_killed_is_succeeded_within_its_ttl(candidates: Candidates) -> None:
    for owner in ("a", "b", "c"):
        candidates.start(owner)
    observer = Election(candidates.url, **SETTINGS)
    for term in (1, 2):
        _at, owner, token = candidates.next_term(term)
        until(lambda owner=owner, token=token: candidates.has_written(owner, token), 30)  # type: ignore[misc]
        found = observer.leader()
        assert found is not None
        assert (found.owner, found.value, found.token) == (owner, f"http://{owner}", token)
        candidates.children[owner].process.kill()
        killed_at = time.monotonic()
        at, successor, next_token = candidates.next_term(term + 1)
        assert successor != owner
        assert next_token > token
        # the longest wait of a promise, and time for a slow machine
        assert at - killed_at < TTL * 1.01 + 5
    never_two_at_the_guard(candidates)
    assert candidates.children[candidates.elected()[-1][1]].process.poll() is None


@pytest.mark.timeout(300)
def test_a_leader_that_is_stopped_finds_out_and_is_refused_at_the_guard(candidates: Candidates) -> None:
    candidates.start("a")
    _at, _owner, token = candidates.next_term(1)
    candidates.start("b")
    until(lambda: candidates.has_written("a", token), 30)
    stopped = candidates.children["a"].process.pid
    _stop_outside_a_transaction(candidates, stopped)
    _at, successor, next_token = candidates.next_term(2)
    assert (successor, next_token > token) == ("b", True)
    until(lambda: candidates.has_written("b", next_token), 30)
    before = len(candidates.written())
    os.kill(stopped, signal.SIGCONT)
    until(lambda: [line for _at, owner, line in candidates.said if owner == "a" and line.startswith("refused")], 60)
    # either comes first
    until(lambda: [line for _at, owner, line in candidates.said if owner == "a"].count("deposed") == 1, 30)
    said = [line for _at, owner, line in candidates.said if owner == "a"]
    assert "refused False" in said, "what was stopped past its ttl does not consider itself the leader"
    assert all(row[1] == "b" for row in candidates.written()[before:]), "it wrote after its successor"
    never_two_at_the_guard(candidates)


def _stop_outside_a_transaction(candidates: Candidates, pid: int) -> None:
    """Stop a process at a moment in which it does not keep others from writing to the table."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        os.kill(pid, signal.SIGSTOP)
        probe = sqlite3.connect(candidates.table, isolation_level=None, timeout=0.1)
        try:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
        else:
            return
        finally:
            probe.close()
    raise AssertionError("it is always in a transaction")


def test_observers_in_another_process_see_every_leader_in_order(candidates: Candidates) -> None:
    seen: list[tuple[str, int | None] | None] = []
    observer = Election(candidates.url, **SETTINGS)

    def observe() -> None:
        for found in observer.observe():
            seen.append(None if found is None else (found.owner, found.token))

    threading.Thread(target=observe, daemon=True).start()
    for owner in ("a", "b"):
        candidates.start(owner)
    _at, first, token = candidates.next_term(1)
    until(lambda: (first, token) in seen, 30)
    candidates.children[first].process.kill()
    _at, second, next_token = candidates.next_term(2)
    until(lambda: (second, next_token) in seen, 30)
    observer.close()
    tokens = [one[1] for one in seen if one is not None]
    assert tokens == sorted(tokens, key=lambda one: one or 0)
