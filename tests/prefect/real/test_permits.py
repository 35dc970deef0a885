"""A semaphore on a real Prefect: as many flow runs at once as there are permits, and one more waits."""

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


def test_two_runs_have_a_slot_each_and_a_third_waits_for_one(server: PrefectServer, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/locks.db#api?ttl=9s"
    inside, over = threading.Barrier(3), threading.Event()

    @task
    def slot() -> int | None:
        return lockstead.current_lease().slot

    @flow(name="of-permits")
    @locked(url, permits=2)
    def of_permits() -> int | None:
        if not over.is_set():
            inside.wait(PATIENCE)
            assert over.wait(PATIENCE)
        return slot()

    def message() -> str:
        waiting = [one for one in runs(server, "of-permits") if one["state_name"] == "AwaitingLock"]
        return str(waiting[0]["state"]["message"]) if waiting and waiting[0]["state"] else ""

    with ThreadPoolExecutor(3) as pool:
        started: list[Any] = [pool.submit(of_permits) for _ in range(2)]
        inside.wait(PATIENCE)
        started.append(pool.submit(of_permits))
        shown = until(message, "no run shows that it waits")
        assert shown.startswith("waiting for 'api', held by prefect:of-permits/")
        assert shown.count("prefect:") == 2
        over.set()
        slots = [one.result(PATIENCE) for one in started]
    assert sorted(slots[:2]) == [0, 1]
    assert slots[2] in (0, 1)
    state = lockstead.Semaphore(url).inspect()
    assert state is not None
    assert (state.limit, state.held) == (2, ())
