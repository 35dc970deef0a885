"""Whoever waits for a lock says so, and who is cancelled or ended meanwhile leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort
from prefect.settings import PREFECT_API_URL, temporary_settings

import lockstead
from lockstead import nesting
from prefect_lockstead import aio_waiting, locked
from prefect_lockstead import states as states_of
from prefect_lockstead.spec import LockSpec
from prefect_lockstead.wait_times import due
from prefect_lockstead.waiting import acquire
from tests.prefect.real.seen import events, held, put, run_of, runs, states, until
from tests.servers.prefect import PrefectServer, started
from tests.servers.redis import RedisServer

KINDS = ["flow", "async flow", "task"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl=5s"


def working(kind: str, url: str, seen: list[Any], name: str) -> Callable[[], Any]:
    """Return what runs a flow that notes the id of the run that holds the lock."""

    def note() -> None:
        of_flow, of_task = FlowRunContext.get(), TaskRunContext.get()
        assert of_flow is not None
        assert of_flow.flow_run is not None
        seen.append(of_task.task_run.id if of_task is not None else of_flow.flow_run.id)
        seen.append(of_flow.flow_run.id)

    if kind == "async flow":

        @flow(name=name, retries=1)
        @locked(url)
        async def body() -> None:
            note()

        def run() -> Any:
            return asyncio.run(body())  # type: ignore[arg-type]  # Prefect's types say it may be either

        return run
    if kind == "task":

        @task
        @locked(url)
        def part() -> None:
            note()

        @flow(name=name)
        def whole() -> None:
            part()

        return whole

    @flow(name=name, retries=1)
    @locked(url)
    def plain() -> None:
        note()

    return plain


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_waits_names_the_holder_and_runs_again_after(server: PrefectServer, url: str, kind: str):
    seen: list[Any] = []
    name = f"waits-{kind.replace(' ', '-')}"
    run = working(kind, url, seen, name)

    def message() -> str:
        if kind == "task":
            found = [one for one in _task_runs(server) if one["state_name"] == "AwaitingLock"]
        else:
            found = [one for one in runs(server, name) if one["state_name"] == "AwaitingLock"]
        # the server writes a task run's new name before its new state
        return str(found[0]["state"]["message"]) if found and found[0]["state"] else ""

    messages: list[str] = []

    with held(url, "somebody", purpose="a repair") as lease:

        def let_go() -> None:
            try:
                messages.append(until(message, "the run never showed that it waits"))
            finally:
                lease.release()

        watching = threading.Thread(target=let_go)
        watching.start()
        try:
            run()
        finally:
            watching.join()
    assert "held by 'somebody'" in messages[0]
    assert "a repair" in messages[0]
    what = "task" if kind == "task" else "flow"
    until(lambda: states(server, seen[0], what)[-1] == "Completed", "it did not complete")
    assert states(server, seen[0], what) == ["Pending", "Running", "AwaitingLock", "Running", "Completed"]
    # each counted Running would have taken a retry
    assert run_of(server, seen[0], what)["run_count"] == 1

    def told() -> list[dict[str, Any]]:
        return [one for one in events(server, seen[1]) if one["event"] == "lockstead.lock.waiting"]

    [event] = until(told, "the wait was not told")
    assert event["payload"]["held_by"] == "somebody"
    assert event["payload"]["purpose"] == "a repair"
    assert f"prefect.{what}-run.{seen[0]}" in {one["prefect.resource.id"] for one in event["related"]}


class Silent:
    """A server that takes what is asked and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._askers: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/api"

    def asked(self) -> socket.socket:
        """Return the connection that asks how a flow run is: others bring log lines and events."""
        self._socket.settimeout(60.0)
        while True:
            waiter_id, _ = self._socket.accept()
            self._askers.append(waiter_id)
            waiter_id.settimeout(60.0)
            if waiter_id.recv(100, socket.MSG_PEEK).startswith(b"GET /api/flow_run_states/"):
                return waiter_id

    def close(self) -> None:
        """Refuse whoever asks, and leave those who wait."""
        for one in (self._socket, *self._askers):
            one.close()


def is_asking(waiter_id: socket.socket) -> bool:
    """Return whether who asked still waits for the answer."""
    waiter_id.setblocking(False)
    try:
        while waiter_id.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_showing_the_wait_does_not_cost_a_place_in_the_queue(server: PrefectServer, tmp_path: Path, is_async: bool):
    prefect = Silent()
    in_line: list[bool] = []

    def body() -> str:
        # from here on, for this run alone, Prefect's API is silent
        with temporary_settings({PREFECT_API_URL: prefect.url}):
            lease = acquire(lockstead.Lock(url), LockSpec(lock=url))
        return str(lease.release())

    async def abody() -> str:
        with temporary_settings({PREFECT_API_URL: prefect.url}):
            lease = await aio_waiting.acquire(lockstead.AsyncLock(url), LockSpec(lock=url))
        return str(await lease.release())

    with RedisServer(tmp_path / "redis") as redis, redis.client() as looking:
        url = f"redis://127.0.0.1:{redis.port}/0#apt?ttl=60s"
        with held(url) as lease:

            def let_go() -> None:
                try:
                    waiter_id = prefect.asked()
                    until(lambda: list(looking.scan_iter("*waiters")), "nobody waits")
                    in_line.append(is_asking(waiter_id))
                finally:
                    prefect.close()
                    lease.release()

            letting = threading.Thread(target=let_go)
            letting.start()
            try:
                said = asyncio.run(flow(abody)()) if is_async else flow(body)()
            finally:
                letting.join()
    assert said == "True"
    assert in_line == [True], "it was in the line only after Prefect had been given up"


def _task_runs(server: PrefectServer) -> list[dict[str, Any]]:
    from tests.prefect.real.seen import asked

    found: list[dict[str, Any]] = asked(server, "POST", "/task_runs/filter", json={})
    return found


@pytest.mark.parametrize("kind", ["flow", "async flow"])
def test_a_cancelled_wait_holds_nothing_and_does_not_run_again(server: PrefectServer, url: str, kind: str):
    seen: list[Any] = []
    name = f"cancelled-{kind.replace(' ', '-')}"
    run = working(kind, url, seen, name)
    with held(url) as lease:

        def cancel() -> None:
            try:
                until(lambda: [one for one in runs(server, name) if one["state_name"] == "AwaitingLock"], "no wait")
                put(server, runs(server, name)[0]["id"], "CANCELLING")
            finally:
                lease.release()

        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        try:
            with pytest.raises(Abort, match="cancelled while it waited for 'apt'"):
                run()
        finally:
            cancelling.join()
    assert seen == []
    assert states(server, runs(server, name)[0]["id"])[-2:] == ["AwaitingLock", "Cancelling"]
    assert lockstead.Lock(url).inspect() is None


@pytest.mark.parametrize("kind", ["flow", "async flow"])
def test_a_run_paused_while_it_waits_asks_again_when_resumed(
    server: PrefectServer, url: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(states_of, "LOOK_EVERY", 0.2)
    seen: list[Any] = []
    name = f"paused-{kind.replace(' ', '-')}"
    run = working(kind, url, seen, name)
    free: list[bool] = []
    with held(url) as lease:

        def pause() -> None:
            try:
                until(lambda: [one for one in runs(server, name) if one["state_name"] == "AwaitingLock"], "no wait")
                run_id = runs(server, name)[0]["id"]
                put(server, run_id, "PAUSED")
            finally:
                lease.release()
            # would it have stayed in the line, it would have had the lock by now
            time.sleep(2.0)
            free.append(lockstead.Lock(url).inspect() is None and not seen)
            put(server, run_id, "RUNNING")

        pausing = threading.Thread(target=pause)
        pausing.start()
        try:
            run()
        finally:
            pausing.join()
    assert free == [True]
    assert len(seen) == 2
    assert states(server, runs(server, name)[0]["id"])[-1] == "Completed"


def test_a_run_that_waits_while_holding_is_warned_and_gives_up(
    server: PrefectServer, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(nesting, "LIMIT", 1.0)

    @task
    @locked(url)
    def inner() -> None: ...

    @flow(name="nested")
    @locked(url.replace("#apt", "#yum"))
    def outer() -> None:
        inner()

    with held(url), pytest.raises(lockstead.NotAcquired, match="'apt' is held by 'somebody'"):
        outer()
    assert "waiting for 'apt' while 'yum' is held by this run: two that do so in opposite order" in caplog.text


class EndsAtTheGrant(lockstead.Lock):
    """A lock whose waiter_id is interrupted just after the core gave the lease away, and before anybody has it."""

    def acquire(self, timeout: Any = None, *, reclaim: bool = False) -> lockstead.Lease:
        super().acquire(timeout, reclaim=reclaim)
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_grant_that_nobody_took_is_given_back(url: str):
    with pytest.raises(KeyboardInterrupt):
        acquire(EndsAtTheGrant(url), LockSpec(lock=url, timeout=0))
    assert lockstead.Lock(url).inspect() is None


def test_a_lease_of_another_thread_is_not_taken_back(url: str):
    class EndsAtOnce(lockstead.Lock):
        def acquire(self, timeout: Any = None, *, reclaim: bool = False) -> lockstead.Lease:
            raise KeyboardInterrupt

    with held(url, "me") as lease:
        with pytest.raises(KeyboardInterrupt):
            acquire(EndsAtOnce(url, owner="me"), LockSpec(lock=url, timeout=0))
        assert lockstead.Lock(url).inspect() is not None
        assert lease.release()


def program_of(flow_name: str, name: str) -> list[str]:
    """Return the words of a program that runs a flow of `deployed` under another name."""
    call = f"{flow_name}.with_options(name={name!r})()"
    run = f"asyncio.run({call})" if "awaiting" in flow_name else call
    return ["-c", f"import asyncio; from tests.prefect.real.deployed import {flow_name}; {run}"]


@pytest.mark.parametrize("flow_name", ["works", "works_awaiting"])
def test_sigterm_while_waiting_leaves_no_grant(server: PrefectServer, url: str, tmp_path: Path, flow_name: str):
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    name = f"{flow_name}-ended-waiting"
    with held(url) as lease:
        with started(program_of(flow_name, name), tmp_path / "home", server, settings) as program:
            until(
                lambda: [one for one in runs(server, name) if one["state_name"] == "AwaitingLock"],
                "no wait",
            )
            program.send_signal(signal.SIGTERM)
            lease.release()
            program.communicate(timeout=60)
    assert lockstead.Lock(url).inspect() is None
    assert not (tmp_path / "notes").exists()
    # Prefect 3.1 lets the signal end the process before it has told anybody
    said = states(server, runs(server, name)[0]["id"])
    assert said[said.index("AwaitingLock") :] in (["AwaitingLock", "Crashed"], ["AwaitingLock"])


def noted(place: Path) -> str:
    """Return what a body has noted so far."""
    notes = place / "notes"
    return notes.read_text() if notes.exists() else ""


@pytest.mark.parametrize("flow_name", ["works", "works_awaiting"])
def test_sigterm_while_holding_frees_the_lock_within_a_second(
    server: PrefectServer, url: str, tmp_path: Path, flow_name: str
):
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    with started(program_of(flow_name, "ended-holding"), tmp_path / "home", server, settings) as program:
        until(lambda: "began" in noted(tmp_path), "the body did not begin")
        program.send_signal(signal.SIGTERM)
        lockstead.Lock(url, owner="next").acquire(60).release()
        freed_at = time.time()
        program.communicate(timeout=60)
    ended = (tmp_path / "notes").read_text().splitlines()[-1].split()
    assert ended[0] == "ended"
    assert freed_at - float(ended[1]) < 1.0


def test_a_run_comes_back_when_the_holder_expects_to_be_done():
    held_now = held_until(100.0, expected=60.0)
    assert 40.0 <= due(held_now, now=120.0) <= 48.0
    assert 5.0 <= due(held_now, now=159.0) <= 6.0
    assert 15.0 <= due(held_now, now=500.0) <= 18.0, "overdue: nobody knows when"
    assert 300.0 <= due(held_until(100.0, expected=9999.0), now=120.0) <= 360.0
    assert 15.0 <= due(None, now=120.0) <= 18.0
    assert due(held_now, now=120.0, left=1.0) <= 1.2


def held_until(acquired_epoch: float, expected: float) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(acquired_epoch=acquired_epoch, expected=expected)
