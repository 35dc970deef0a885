"""The PostgreSQL store: waiters are notified, others cost nothing, and no change is missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count

import psycopg
import pytest

from lockstead.protocol.commands import Create, Extend, Read, Remove, Snapshot
from lockstead.stores import url
from lockstead.stores.port import Store, SupportsBatching, SupportsWatch
from lockstead.stores.postgres import watches as postgres_watches
from lockstead.stores.postgres.statements import bucket, lock_class, topic
from lockstead.testing.conformance.base import APT_TURN, OTHER_SLOT, SLOT
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import Name
from tests.servers.postgres import USER, BouncerServer, PostgresServer

APT = Name("apt")
LIMIT = 60.0
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(settings={"log_statement": "all"}).start()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def bouncer(server: PostgresServer) -> Iterator[BouncerServer]:
    bouncer = BouncerServer(server)
    with bouncer:
        yield bouncer
    bouncer.remove()


@pytest.fixture
def schema() -> str:
    return f"wait{next(NUMBERS)}"


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[Store]:
    with closing(url.open_store(f"{server.url()}?schema={schema}")) as store:
        yield store


def made(store: Store, name: Name = APT) -> Snapshot:
    answer = store.perform(Create(name, {"v": "1"}), LIMIT)
    assert isinstance(answer, Snapshot)
    return answer


class Waiting:
    """A subscription. asks: asks for the lock whenever it is called, until it has it; is_looker: only looks."""

    def __init__(self, store: Store, name: Name = APT, *, asks: bool = False, is_looker: bool = False) -> None:
        assert isinstance(store, SupportsWatch)
        self._store = store
        self._name = name
        self._called = threading.Semaphore(0)
        self._is_stopped = False
        self.frees: list[bool] = []
        self._asks = asks
        self._is_looker = is_looker
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._subscription = store.subscribe(name, self._changed)
        self._thread.start()

    def _changed(self, is_free: bool) -> None:
        self.frees.append(is_free)
        self._called.release()

    def _run(self) -> None:
        while self._called.acquire(timeout=2 * LIMIT) and not self._is_stopped:
            if not self._is_looker and (not self._asks or self._has_it()):
                break
        self._subscription.close()

    def _has_it(self) -> bool:
        return isinstance(self._store.perform(Create(self._name, {"v": "1"}), LIMIT), Snapshot)

    def result(self) -> bool:
        self._thread.join(2 * LIMIT)
        return bool(self.frees)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._is_stopped = True
        self._called.release()
        self._thread.join(LIMIT)


def listening(server: PostgresServer, schema: str, number: int = 1) -> bool:
    """Return whether so many connections hold the lock that says that somebody waits for the key."""
    class_id = lock_class(schema) % (1 << 32)
    held = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted "
        f"AND classid = {class_id} AND objid = {bucket(APT.key)}"
    )
    return server.tell(held) == [(number,)]


def statements(server: PostgresServer, words: str) -> int:
    log = (server.directory / "log").read_text("utf-8", errors="replace")
    return sum(words in line for line in log.splitlines() if "LOG:  execute" in line or "LOG:  statement:" in line)


def test_a_release_is_notified_where_somebody_waits_and_nowhere_else(
    server: PostgresServer, store: Store, schema: str
) -> None:
    first = made(store)
    with psycopg.connect(server.url(), autocommit=True) as other:
        other.execute(f"LISTEN {schema}")
        store.perform(Extend(APT, {"n": "1"}, first.incarnation), LIMIT)
        store.perform(Remove(APT, first.incarnation), LIMIT)
        assert list(other.notifies(timeout=0.2)) == []
        second = made(store)
        waiting = Waiting(store)
        server.until(lambda: listening(server, schema), "nobody says that it waits")
        store.perform(Extend(APT, {}, second.incarnation), LIMIT)  # a renewal is not news
        assert list(other.notifies(timeout=0.2)) == []
        store.perform(Remove(APT, second.incarnation), LIMIT)
        (notice,) = other.notifies(timeout=LIMIT, stop_after=1)
        assert notice.payload.partition(" ")[2] == "apt"
        assert waiting.result() is True


@pytest.mark.parametrize("is_batched", [False, True], ids=["alone", "batched"])
def test_lock_slots_and_turn_of_a_key_notify_one_waiter_each_of_their_own(
    server: PostgresServer, store: Store, schema: str, monkeypatch: pytest.MonkeyPatch, is_batched: bool
) -> None:
    monkeypatch.setattr(postgres_watches, "INSURANCE", 3600.0)
    assert isinstance(store, SupportsBatching)
    records = {name: made(store, name) for name in (APT, OTHER_SLOT, APT_TURN)}
    watched = {APT: APT, OTHER_SLOT: SLOT, APT_TURN: APT_TURN}
    with psycopg.connect(server.url(), autocommit=True) as other, ExitStack() as opened:
        other.execute(f"LISTEN {schema}")
        handle = opened.enter_context(closing(url.open_store(f"{server.url()}?schema={schema}")))
        changes = {name: opened.enter_context(Changed(handle, subscribed)) for name, subscribed in watched.items()}
        for one in changes.values():
            one.settle()
        for name, snapshot in records.items():
            extend = Extend(name, {"n": "1"}, snapshot.incarnation)
            answer = store.perform_many([extend, Read(APT)], LIMIT)[0] if is_batched else store.perform(extend, LIMIT)
            assert isinstance(answer, Snapshot)
            (notice,) = other.notifies(timeout=LIMIT, stop_after=1)
            receivers, _, about = notice.payload.partition(" ")
            assert about == topic(name)
            assert "0" not in receivers.split(","), "everybody is notified"
            assert changes[name].called(LIMIT)
            assert not any(changes[one].seen.is_set() for one in changes.keys() - {name})
            changes[name].settle()


def test_a_change_that_was_not_notified_is_found_by_a_look(
    server: PostgresServer, store: Store, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_watches, "INSURANCE", 0.5)
    made(store)
    waiting = Waiting(store)
    server.until(lambda: listening(server, schema), "nobody says that it waits")
    with psycopg.connect(server.url(), autocommit=True) as other:
        other.execute(f"UPDATE {schema}.record SET fields = NULL")
    assert waiting.result() is True
    assert waiting.frees == [False]


def test_who_waits_asks_little_however_long_it_lasts(server: PostgresServer, store: Store, schema: str) -> None:
    first = made(store)
    waiting = Waiting(store)
    server.until(lambda: listening(server, schema), "nobody says that it waits")
    time.sleep(0.2)
    before = statements(server, schema)
    time.sleep(2.0)
    assert statements(server, schema) - before <= 2
    store.perform(Remove(APT, first.incarnation), LIMIT)
    assert waiting.result() is True


def test_no_listener_registers_during_a_change_that_missed_it(
    server: PostgresServer, store: Store, schema: str
) -> None:
    made(store)
    with psycopg.connect(server.url()) as other:
        # what a change does in its statement, before it commits
        other.execute(f"SELECT pg_try_advisory_xact_lock({lock_class(schema)}, {bucket(APT.key)})")
        other.execute(f"UPDATE {schema}.record SET fields = NULL")
        waiting = Waiting(store)
        words = "pg_try_advisory_lock_shared"
        before = statements(server, words)
        server.until(lambda: statements(server, words) > before + 2, "the lock is not tried")
        assert listening(server, schema, 0)
        other.commit()
    assert waiting.result() is True


def test_a_connection_that_listens_and_is_ended_is_opened_anew(
    server: PostgresServer, store: Store, schema: str
) -> None:
    first = made(store)
    waiting = Waiting(store)
    server.until(lambda: listening(server, schema), "nobody says that it waits")
    pid = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted"
    server.tell(f"SELECT pg_terminate_backend(pid, 10000) FROM ({pid}) AS listener")
    server.until(lambda: listening(server, schema), "nobody says so any more")
    store.perform(Remove(APT, first.incarnation), LIMIT)
    assert waiting.result() is True


def test_who_waits_no_longer_costs_nobody_anything(server: PostgresServer, store: Store, schema: str) -> None:
    made(store)
    waiting = Waiting(store)
    server.until(lambda: listening(server, schema), "nobody says that it waits")
    waiting.stop()
    server.until(lambda: listening(server, schema, 0), "it still says that it waits")
    again = Waiting(store)
    server.until(lambda: listening(server, schema), "nobody says that it waits")
    again.stop()
    store.close()
    left = f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%{schema}%' AND pid <> pg_backend_pid()"
    server.until(lambda: server.tell(left) == [(0,)], "a connection is left")


def test_behind_a_pooler_nobody_listens_unless_told_where(
    server: PostgresServer, bouncer: BouncerServer, schema: str
) -> None:
    pooled = f"{server.url(port=bouncer.port)}?schema={schema}"
    with closing(url.open_store(pooled)) as store:
        first = made(store)
        before = statements(server, f"{schema}.record")
        waiting = Waiting(store)
        server.until(lambda: statements(server, f"{schema}.record") > before + 3, "it does not look")
        assert listening(server, schema, 0)
        store.perform(Remove(APT, first.incarnation), LIMIT)
        assert waiting.result() is True
    past = f"{pooled}&listen_port={server.port}"
    with closing(url.open_store(past)) as store:
        second = made(store)
        waiting = Waiting(store)
        server.until(lambda: listening(server, schema), "nobody says that it waits")
        store.perform(Remove(APT, second.incarnation), LIMIT)
        assert waiting.result() is True
    with closing(url.open_store(f"{server.url()}?schema={schema}&listen=no")) as store:
        third = made(store)
        waiting = Waiting(store)
        before = statements(server, f"{schema}.record")
        server.until(lambda: statements(server, f"{schema}.record") > before + 3, "it does not look")
        assert listening(server, schema, 0)
        store.perform(Remove(APT, third.incarnation), LIMIT)
        assert waiting.result() is True


def test_nothing_is_prepared_behind_a_pooler(server: PostgresServer, bouncer: BouncerServer, schema: str) -> None:
    with closing(url.open_store(f"{server.url(port=bouncer.port)}?schema={schema}")) as store:
        for _ in range(10):
            store.perform(Remove(APT, made(store).incarnation), LIMIT)
    with psycopg.connect(
        f"postgresql://{USER}@127.0.0.1:{bouncer.port}/postgres", autocommit=True, prepare_threshold=None
    ) as pooled:
        for _ in range(20):
            assert pooled.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


@pytest.fixture
def stores(server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Store]]:
    """Four stores, each with a connection of its own that listens, where nobody looks unless told."""
    monkeypatch.setattr(postgres_watches, "INSURANCE", 3600.0)
    place = f"{server.url()}?schema={schema}"
    with ExitStack() as opened:
        yield [
            opened.enter_context(closing(url.open_store(f"{place}&application_name=w{number}"))) for number in range(4)
        ]


def test_who_subscribes_to_what_is_gone_already_is_called(store: Store) -> None:
    held = made(store)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    assert Waiting(store).result()
    assert Waiting(store).result()


def test_a_release_notifies_one_waiter_and_is_passed_on(
    server: PostgresServer, store: Store, schema: str, stores: list[Store]
) -> None:
    held = made(store)
    waiting = [Waiting(one, asks=True) for one in stores]
    server.until(lambda: listening(server, schema, 4), "not all of them say that they wait")
    time.sleep(0.5)  # each looks once more when it is heard, to close the gap before that
    # its connection goes on listening for a while, and nobody waits on it any more
    waiting[0].stop()
    for so_far in (1, 2, 3):
        store.perform(Remove(APT, held.incarnation), LIMIT)
        server.until(partial(is_told, waiting, so_far), "nobody was told")
        time.sleep(0.3)
        assert told(waiting) == so_far
        answer = store.perform(Read(APT), LIMIT)
        assert isinstance(answer, Snapshot), "who was told did not get it"
        held = answer


def test_an_observer_passes_a_notification_on_to_a_waiter(
    server: PostgresServer, store: Store, schema: str, stores: list[Store]
) -> None:
    wants, *look = stores
    lookers = [Waiting(one, is_looker=True) for one in look]
    for _ in range(4):  # one of four is told, so without passing on this would succeed once in 256 times
        held = made(store)
        waiting = Waiting(wants, asks=True)
        server.until(lambda: listening(server, schema, 4), "not all of them say that they wait")
        time.sleep(0.5)  # each looks once more when it is heard
        store.perform(Remove(APT, held.incarnation), LIMIT)
        server.until(lambda: waiting.is_over, "who wants the lock was not told")  # noqa: B023 - called here
        answer = store.perform(Read(APT), LIMIT)
        assert isinstance(answer, Snapshot)
        store.perform(Remove(APT, answer.incarnation), LIMIT)
    for looker in lookers:
        looker.stop()


def is_told(waiting: list[Waiting], number: int) -> bool:
    return told(waiting) >= number


def told(waiting: list[Waiting]) -> int:
    return sum(one.is_over and one.result() for one in waiting)
