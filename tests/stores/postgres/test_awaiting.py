"""The awaiting side of the PostgreSQL store: what is known after a failure or a cancellation, in an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.commands import Command, Create, Extend, Read, Remove, Removed, Snapshot
from lockstead.stores import url
from lockstead.stores.postgres import libpq
from lockstead.stores.postgres.opening import CONNECTIONS_MAX
from lockstead.stores.postgres.store import PostgresStore
from lockstead.values import Name
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.test_faults import Cut

APT = Name("apt")
LIMIT = 30.0
CALLED_BACK = 2.5
"""Seconds; the server has the last half second to say that it stopped the statement."""
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """Return a server that a test may stop."""
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def schema() -> str:
    return f"awaiting{next(NUMBERS)}"


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    with opened(f"{server.url()}?schema={schema}") as store:
        yield store


@contextmanager
def opened(there: str) -> Iterator[PostgresStore]:
    with closing(url.open_store(there)) as store:
        assert isinstance(store, PostgresStore)
        yield store


async def made(store: PostgresStore, name: Name = APT) -> Snapshot:
    answer = await store.aperform(Create(name, {"v": "1"}), LIMIT)
    assert isinstance(answer, Snapshot)
    return answer


async def until(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < ends_at
        await asyncio.sleep(0.01)


def resumed_later(server: PostgresServer) -> subprocess.Popen[bytes]:
    """Let a server go on after LIMIT, by a process of its own: a thread of this one could stand still as well."""
    assert server.process is not None
    return subprocess.Popen(["sh", "-c", f"sleep {LIMIT}; kill -CONT -{server.process.pid}"])


def waiting(server: PostgresServer, schema: str) -> list[int]:
    """Return the backends that wait for a lock."""
    asked = f"SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}.%'"
    return [row[0] for row in server.tell(asked)]


def connected(server: PostgresServer, schema: str) -> int:
    asked = f"SELECT pid FROM pg_stat_activity WHERE query LIKE '%{schema}.%' AND pid <> pg_backend_pid()"
    return len(server.tell(asked))


@asynccontextmanager
async def in_the_way(server: PostgresServer, schema: str) -> AsyncIterator[psycopg.Connection[Any]]:
    """A transaction of another client that locks every row of a schema."""
    with psycopg.connect(server.url()) as other:
        other.execute(f"SELECT FROM {schema}.record FOR UPDATE")
        yield other


class Silent:
    """A server that takes connections and says nothing."""

    def __enter__(self) -> Silent:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._listener.settimeout(LIMIT)
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.close()

    async def accept(self) -> socket.socket:
        connection, _ = await asyncio.to_thread(self._listener.accept)
        connection.settimeout(LIMIT)
        return connection


async def ended(connection: socket.socket) -> bool:
    """Wait for the end of what comes on a connection."""
    while await asyncio.to_thread(connection.recv, 4096):
        pass
    return True


# --- cancellation ------------------------------------------------------------------------------------------------


def test_a_cancelled_statement_spoils_only_its_connection(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def main() -> None:
        first = await made(store)
        async with in_the_way(server, schema) as other:
            asking = asyncio.ensure_future(store.aperform(Extend(APT, {"n": "1"}, first.incarnation), LIMIT))
            await until(lambda: bool(waiting(server, schema)))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            # the server is asked to stop: otherwise it would change the record when the others are done
            await until(lambda: not waiting(server, schema))
            # neither its answer nor its connection is another command's
            seen = await store.aperform(Read(APT), LIMIT)
            assert (seen.incarnation, seen.revision) == (first.incarnation, first.revision)
            other.rollback()
        assert isinstance(await store.aperform(Remove(APT, first.incarnation), LIMIT), Removed)

    asyncio.run(main())


def test_cancelling_on_a_stopped_server_does_not_block_the_loop(own: PostgresServer) -> None:
    """The request to cancel it must not hold the GIL until the server continues: that would stop the whole process."""
    with opened(own.url()) as store:

        async def main() -> None:
            first = await made(store)
            own.pause()
            resumer = resumed_later(own)
            try:
                asking = asyncio.ensure_future(store.aperform(Extend(APT, {}, first.incarnation), LIMIT))
                await asyncio.sleep(0.1)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                assert resumer.poll() is None, "everything stood still until the server went on"
            finally:
                resumer.kill()
                resumer.wait()
                own.resume()

        asyncio.run(main())


def test_cancelling_while_connecting_leaves_no_connection() -> None:
    async def main() -> None:
        with Silent() as silent, opened(f"postgresql://nobody@127.0.0.1:{silent.port}/x") as store:
            asking = asyncio.ensure_future(store.aperform(Read(APT), LIMIT))
            with await silent.accept() as connection:
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                assert await ended(connection)

    asyncio.run(main())


def test_a_name_server_is_asked_in_a_thread(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_in: list[int] = []
    true = libpq.conninfo_attempts

    def attempts(parameters: Any) -> Any:
        asked_in.append(threading.get_ident())
        return true(parameters)

    monkeypatch.setattr(libpq, "conninfo_attempts", attempts)

    async def main() -> None:
        with opened(server.url() + f"?schema={schema}") as store:
            await made(store)

    asyncio.run(main())
    assert asked_in
    assert threading.get_ident() not in asked_in, "the event loop stands still while a name server is silent"


def test_cancellations_at_every_step_use_up_no_room(server: PostgresServer, store: PostgresStore) -> None:
    async def main() -> None:
        await made(store)
        for number in range(3 * CONNECTIONS_MAX):
            asking = [asyncio.ensure_future(store.aperform(Read(APT), LIMIT)) for _ in range(CONNECTIONS_MAX)]
            for _ in range(number):
                await asyncio.sleep(0)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        found = await asyncio.gather(*(store.aperform(Read(APT), LIMIT) for _ in range(2 * CONNECTIONS_MAX)))
        assert all(isinstance(one, Snapshot) for one in found)

    asyncio.run(main())


# --- an event loop goes on, and takes no threads -----------------------------------------------------------------


def test_requests_take_no_threads_and_few_connections(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def main() -> None:
        before = set(threading.enumerate())
        first = await made(store)
        async with in_the_way(server, schema) as other:
            asking = [
                asyncio.ensure_future(store.aperform(Extend(APT, {}, first.incarnation), LIMIT)) for _ in range(100)
            ]
            await until(lambda: len(waiting(server, schema)) == CONNECTIONS_MAX)
            assert set(threading.enumerate()) == before
            other.rollback()
        assert all(isinstance(one, Snapshot) for one in await asyncio.gather(*asking))
        assert connected(server, schema) <= CONNECTIONS_MAX

    asyncio.run(main())


def test_a_silent_server_costs_the_limit_without_blocking_a_loop() -> None:
    async def main() -> int:
        with Silent() as silent, opened(f"postgresql://nobody@127.0.0.1:{silent.port}/x") as store:
            asking = asyncio.ensure_future(store.aperform(Read(APT), 0.5))
            turns = 0
            while not asking.done():
                turns += 1
                await asyncio.sleep(0)
            with pytest.raises(StoreUnavailable, match="no answer within"):
                await asking
            return turns

    assert asyncio.run(main()) > 20


def test_a_stopped_server_costs_a_command_its_limit(own: PostgresServer) -> None:
    with opened(own.url()) as store:

        async def main() -> None:
            first = await made(store)
            own.pause()
            try:
                with pytest.raises(OutcomeUnknown, match="did not answer within"):
                    await store.aperform(Extend(APT, {}, first.incarnation), 0.5)
                with pytest.raises(StoreUnavailable, match="no answer within"):
                    await store.aperform(Extend(APT, {}, first.incarnation), 0.5)
            finally:
                own.resume()
            assert isinstance(await store.aperform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)

        asyncio.run(main())


# --- failures ----------------------------------------------------------------------------------------------------


def test_h28_a_statement_that_waits_too_long_is_cancelled(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def main() -> None:
        first = await made(store)
        async with in_the_way(server, schema) as other:
            with pytest.raises(StoreUnavailable, match="nothing was changed"):
                await store.aperform(Extend(APT, {"n": "1"}, first.incarnation), CALLED_BACK)
            other.rollback()
        assert (await store.aperform(Read(APT), LIMIT)).revision == first.revision

    asyncio.run(main())


def test_a_terminated_backend_leaves_an_unknown_outcome(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def main() -> None:
        first = await made(store)
        async with in_the_way(server, schema):
            asking = asyncio.ensure_future(store.aperform(Extend(APT, {}, first.incarnation), LIMIT))
            await until(lambda: bool(waiting(server, schema)))
            (backend,) = waiting(server, schema)
            server.tell(f"SELECT pg_terminate_backend({backend})")
            with pytest.raises(OutcomeUnknown):
                await asking
        assert (await store.aperform(Read(APT), LIMIT)).revision == first.revision

    asyncio.run(main())


def test_a_connection_closed_while_idle_is_replaced(server: PostgresServer, store: PostgresStore, schema: str) -> None:
    async def main() -> None:
        first = await made(store)
        server.tell(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            f"WHERE query LIKE '%{schema}.%' AND pid <> pg_backend_pid()"
        )
        await asyncio.sleep(0.05)  # what the server said goes through the loopback
        assert isinstance(await store.aperform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)

    asyncio.run(main())


def test_h03_a_connection_cut_after_the_result_is_unknown(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def main() -> None:
        await made(store, Name("yum"))
        with (
            Cut(server.port, b"INSERT 0 1", behind=b"record") as cut,
            opened(f"{server.url(port=cut.port)}?schema={schema}") as cut_off,
        ):
            with pytest.raises(OutcomeUnknown):
                await cut_off.aperform(Create(APT, {}), LIMIT)
        assert cut.changes == 1, "a statement was sent twice"

    asyncio.run(main())


# --- loops that end, stores that close, processes that fork ------------------------------------------------------


def test_a_loop_that_ends_closes_its_connections_and_no_other(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def ask() -> int:
        await store.aperform(Read(APT), LIMIT)
        return connected(server, schema)

    store.perform(Read(APT), LIMIT)
    for _ in range(2):
        assert asyncio.run(ask()) == 2
        asyncio.run(until(lambda: connected(server, schema) == 1))
    store.perform(Read(APT), LIMIT)


def test_a_loop_that_is_left_without_its_end_does_no_harm(store: PostgresStore) -> None:
    dead = asyncio.new_event_loop()
    dead.run_until_complete(store.aperform(Read(APT), LIMIT))
    asking = dead.create_task(store.aperform(Read(APT), LIMIT))
    dead.run_until_complete(asyncio.sleep(0))
    asking._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left on purpose
    dead.close()
    del asking
    asyncio.run(made(store))


def test_closing_a_store_ends_idle_connections_of_other_loops(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def main() -> None:
        await made(store)
        assert connected(server, schema) == 1
        await asyncio.to_thread(store.close)
        await until(lambda: connected(server, schema) == 0)
        with pytest.raises(StoreUnavailable, match="is closed"):
            await store.aperform(Read(APT), LIMIT)

    asyncio.run(main())


def test_a_forked_child_opens_its_own_connections(server: PostgresServer, store: PostgresStore, schema: str) -> None:
    def in_child(work: Callable[[], Awaitable[object]]) -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code = 1
        try:
            store.after_fork()

            async def run() -> None:
                await work()

            asyncio.run(run())
            store.close()
            code = 0
        finally:
            os._exit(code)

    async def main() -> None:
        first = await made(store)
        extend: Command[Any] = Extend(APT, {"by": "child"}, first.incarnation)
        assert in_child(lambda: store.aperform(extend, LIMIT)) == 0
        before = connected(server, schema)
        seen = await store.aperform(Read(APT), LIMIT)
        assert (seen.incarnation, seen.fields["by"]) == (first.incarnation, "child")
        assert connected(server, schema) == before, "the connection from before the fork serves on"

    asyncio.run(main())
