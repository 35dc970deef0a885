"""Listeners of a whole process: what they are told, by whom, and how often."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import lockstead
from lockstead import LeaseLost, NotAcquired, Settings, StoreRefused
from lockstead.acquisition import Acquisition
from lockstead.events import (
    Acquired,
    Attached,
    BlockEntered,
    BlockLeft,
    Detached,
    HolderChanged,
    Lost,
    NotGranted,
    ProcessEvent,
    Released,
    StoreRequest,
    Waiting,
)
from lockstead.listeners import LISTENERS, add_listener, remove_listener
from lockstead.protocol.acquire import Contended
from lockstead.protocol.record import Record
from lockstead.stores.memory import MemoryStore
from tests.runtime.faulty import until

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.events: list[ProcessEvent] = []
        self.stores: set[str] = set()

    def __call__(self, event: ProcessEvent, store: str) -> None:
        self.events.append(event)
        self.stores.add(store)

    def of(self, *kinds: type) -> list[Any]:
        return [one for one in self.events if isinstance(one, kinds)]

    @property
    def names(self) -> list[str]:
        return [type(one).__name__ for one in self.events if not isinstance(one, StoreRequest)]


@contextmanager
def listening(**more: Any) -> Iterator[Heard]:
    heard = Heard()
    add_listener(heard, **more)
    try:
        yield heard
    finally:
        remove_listener(heard)


@pytest.fixture
def heard() -> Iterator[Heard]:
    with listening() as one:
        yield one


@pytest.fixture
def client() -> Iterator[lockstead.Client]:
    with lockstead.Client(MemoryStore()) as one:
        yield one


def test_a_listener_of_the_process_hears_every_client(heard: Heard, sqlite_url: str) -> None:
    with lockstead.Lock(f"{sqlite_url}#apt").hold():
        pass
    with lockstead.connect("memory:") as client, client.lock("yum").acquire():
        pass
    assert heard.names == ["Acquired", "BlockEntered", "BlockLeft", "Released"] * 2
    assert len({(one.key, one.holder) for one in heard.of(Acquired, BlockEntered, BlockLeft, Released)}) == 2
    assert heard.stores == {sqlite_url, "memory:"}


def test_an_added_listener_is_told_once_and_a_removed_one_nothing(client: lockstead.Client) -> None:
    with listening() as heard:
        add_listener(heard)
        with client.lock("apt").hold():
            pass
        assert len(heard.of(Acquired)) == 1
        remove_listener(heard)
        remove_listener(heard)
        with client.lock("apt").hold():
            pass
        assert len(heard.of(Acquired)) == 1
    assert LISTENERS.every == ()


def test_the_listener_of_a_client_is_told_too(heard: Heard) -> None:
    own: list[object] = []
    with lockstead.Client(MemoryStore(), listener=own.append) as client, client.lock("apt").hold():
        pass
    assert own == heard.of(Acquired, Released)


def test_a_listener_that_raises_harms_nobody(client: lockstead.Client, heard: Heard) -> None:
    def fails(*_: object) -> str:
        raise ValueError("odd")

    add_listener(fails, traceparent=fails)
    try:
        with client.lock("apt").hold() as lease:
            assert lease.renew() > 0
        with listening() as later, client.lock("apt").hold():
            pass
    finally:
        remove_listener(fails)
    assert heard.names.count("Released") == later.names.count("Released") + 1 == 2


@pytest.mark.parametrize(("limit", "result"), [(0.01, "timeout"), (0, "held"), (None, "held")])
def test_an_acquisition_that_ends_without_a_lease_is_told_once(
    client: lockstead.Client, heard: Heard, limit: float | None, result: str
) -> None:
    lock = client.lock("apt")
    with client.lock("apt").hold():
        done: list[str] = []

        def ask() -> None:
            if limit is None:
                done.append(str(lock.try_acquire()))
                return
            with pytest.raises(NotAcquired):
                lock.acquire(limit)
            done.append("None")

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(30)
    assert done == ["None"]
    (one,) = heard.of(NotGranted)
    assert (one.key, one.result, one.waited >= (limit or 0), one.error) == ("apt", result, True, None)
    assert len(heard.of(Acquired)) == 1


def test_a_refused_acquisition_is_told_with_its_error(client: lockstead.Client, heard: Heard) -> None:
    client.close()
    with pytest.raises(StoreRefused):
        client.lock("apt").acquire()
    (one,) = heard.of(NotGranted)
    assert (one.result, type(one.error)) == ("refused", StoreRefused)


def test_a_cancelled_acquisition_is_told(heard: Heard) -> None:
    async def cancelled() -> None:
        async with lockstead.AsyncClient(MemoryStore()) as client, client.lock("apt").hold():
            waiting = asyncio.create_task(client.lock("apt").acquire())
            while not heard.of(Waiting):  # noqa: ASYNC110 - the listener knows no loop
                await asyncio.sleep(0)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting

    asyncio.run(cancelled())
    (one,) = heard.of(NotGranted)
    assert (one.result, type(one.error)) == ("cancelled", asyncio.CancelledError)
    assert one.holder == heard.of(Waiting)[0].holder


def test_a_waiter_is_told_of_each_holder_once(client: lockstead.Client, heard: Heard) -> None:
    acquisition = Acquisition(client._engine, "apt", Settings.make(), None, reclaim=False)
    for holder, trace in (("one", None), ("one", None), ("two", TRACE), ("two", TRACE), ("one", None)):
        acquisition._waiting(Contended(Record(holder, 60.0, owner=holder, traceparent=trace)))
    acquisition._waiting(Contended(None))
    told = heard.of(Waiting, HolderChanged)
    assert [(type(one), one.held_by, one.traceparent) for one in told] == [
        (Waiting, "one", None),
        (HolderChanged, "two", TRACE),
        (HolderChanged, "one", None),
    ]


def test_every_request_to_the_store_is_told_with_its_result(client: lockstead.Client, heard: Heard) -> None:
    client.lock("apt").acquire().release()
    client.lock("apt").inspect()
    assert [one.command for one in heard.of(StoreRequest)] == ["create", "remove", "read"]
    assert {(one.result, one.count) for one in heard.of(StoreRequest)} == {("ok", 1)}
    assert all(0 <= one.took < 30 for one in heard.of(StoreRequest))


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (lockstead.StoreUnavailable("no"), "unavailable"),
        (lockstead.OutcomeUnknown("late"), "unknown"),
        (StoreRefused("never"), "refused"),
        (ValueError("odd"), "error"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
@pytest.mark.parametrize("awaits", [False, True])
def test_a_failed_request_is_told(heard: Heard, error: BaseException, result: str, awaits: bool) -> None:
    class Failing(MemoryStore):
        def perform(self, command: Any, limit: float) -> Any:
            raise error

        async def aperform(self, command: Any, limit: float) -> Any:
            raise error

    async def ask() -> None:
        async with lockstead.AsyncClient(Failing()) as client:
            await client.lock("apt").inspect()

    with pytest.raises(BaseException):  # noqa: B017
        if awaits:
            asyncio.run(ask())
        else:
            lockstead.Client(Failing()).lock("apt").inspect()
    assert [(one.command, one.result) for one in heard.of(StoreRequest)] == [("read", result)]


def test_a_member_is_told_apart_from_the_owner(client: lockstead.Client, heard: Heard) -> None:
    lease = client.lock("apt").acquire()
    ticket = lease.share()
    member = client.lock("apt").attach(ticket)
    assert (member.holder, lease.holder) == (heard.of(Attached)[0].holder, heard.of(Acquired)[0].holder)
    name = heard.of(Attached)[0].member
    assert name
    member.release()
    assert [(one.holder, one.member) for one in heard.of(Detached)] == [(lease.holder, name)]
    lease.release()
    assert len(heard.of(Released)) == 1


def test_a_lost_lease_ends_its_block_after_its_loss(client: lockstead.Client, heard: Heard) -> None:
    with pytest.raises(LeaseLost), client.lock("apt").hold() as lease:
        client.lock("apt").break_lease(reason="test", now=True)
        with suppress(LeaseLost):
            lease.renew()
        until(lambda: bool(heard.of(Lost)))
    assert [name for name in heard.names if name in ("Acquired", "Lost", "BlockLeft")] == [
        "Acquired",
        "Lost",
        "BlockLeft",
    ]


def test_a_trace_is_written_into_the_record_and_shown_to_waiters(client: lockstead.Client) -> None:
    asked: list[tuple[str, str, str]] = []

    def source(*about: str) -> str:
        asked.append(about)
        return TRACE

    with listening(traceparent=source) as heard, client.lock("apt").hold() as lease:
        shown = client.lock("apt").inspect()
        with pytest.raises(NotAcquired):
            asyncio.run(_wait(client))
        assert shown is not None
        assert shown.traceparent == TRACE
        assert asked[0] == ("apt", lease.holder, "memory:")
        assert heard.of(Waiting)[0].traceparent == TRACE
    with client.lock("apt").hold():
        assert (shown := client.lock("apt").inspect()) is not None
        assert shown.traceparent is None


async def _wait(client: lockstead.Client) -> None:
    await lockstead.AsyncClient(client._engine.store).lock("apt").acquire(0.01)


def test_a_readers_trace_stands_in_its_registration(client: lockstead.Client) -> None:
    with listening(traceparent=lambda *_: TRACE), client.lock("apt", mode="shared").hold():
        shown = client.lock("apt").inspect()
    assert shown is not None
    assert (shown.traceparent, [one.traceparent for one in shown.readers]) == (None, [TRACE])


def test_a_forked_child_has_the_listeners_and_their_lock(client: lockstead.Client, heard: Heard) -> None:
    LISTENERS._lock.acquire()
    pid = os.fork()
    if pid == 0:
        remove_listener(heard)
        os._exit(0 if LISTENERS.every == () else 1)
    LISTENERS._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nobody_listening_costs_no_import() -> None:
    assert lockstead.add_listener is add_listener
    assert LISTENERS.every == ()
