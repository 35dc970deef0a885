"""Readers on a real Prefect: two flow runs overlap, and a run that writes waits for both."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prefect import flow, task

import lockstead
from prefect_lockstead import locked
from tests.prefect.real.seen import runs, until
from tests.servers.prefect import PrefectServer

PATIENCE = 240.0


def test_two_runs_read_together_and_one_that_writes_waits_for_both(server: PrefectServer, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/locks.db#index?ttl=9s"
    inside, over = threading.Barrier(3), threading.Event()
    order: list[tuple[str, int | None]] = []

    @task
    def part() -> int | None:
        return lockstead.current_lease().token

    @flow(name="of-a-mode")
    @locked(url, mode="{how}")
    def of_a_mode(how: str) -> None:
        if how == "shared":
            inside.wait(PATIENCE)
            assert over.wait(PATIENCE)
        # a child task that begins while the writer waits
        order.append((how, part()))

    def message() -> str:
        waiting = [one for one in runs(server, "of-a-mode") if one["state_name"] == "AwaitingLock"]
        return str(waiting[0]["state"]["message"]) if waiting and waiting[0]["state"] else ""

    with ThreadPoolExecutor(3) as pool:
        started: list[Any] = [pool.submit(of_a_mode, "shared") for _ in range(2)]
        inside.wait(PATIENCE)
        started.append(pool.submit(of_a_mode, "exclusive"))
        assert "held by 2 readers" in until(message, "no run shows that it waits")
        lock = lockstead.Lock(url)
        until(lambda: (held := lock.inspect()) and held.wanted_by, "no writer waits")
        over.set()
        for one in started:
            one.result(PATIENCE)
    assert [how for how, _ in order] == ["shared", "shared", "exclusive"]
    tokens = [token for _, token in order]
    assert tokens[0] == tokens[1]
    assert tokens[2] is not None
    assert tokens[0] is not None
    assert tokens[2] > tokens[0]
    assert lock.inspect() is None
