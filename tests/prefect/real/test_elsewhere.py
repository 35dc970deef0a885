"""A process pool and Dask work under a lease whose ticket they bring: aborted on loss, waited for by the release."""

from __future__ import annotations

import os
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task_runners

import lockstead
from tests.prefect.real import elsewhere

pytestmark = pytest.mark.usefixtures("server")

TTL = 5.0
LIMIT = TTL / 8 + 1.0
"""Seconds from the taking away to the last write: one renewal, by which a member notices, and one second."""

PATIENCE = 150.0


def runner_of(kind: str) -> Any:
    """Return a runner with two processes."""
    if kind == "dask":
        if find_spec("prefect_dask") is None:
            pytest.skip("prefect-dask is in the newest environment only")
        from prefect_dask import DaskTaskRunner

        alone = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
        return DaskTaskRunner(cluster_kwargs=alone)
    pool = getattr(task_runners, "ProcessPoolTaskRunner", None)
    if pool is None:
        pytest.skip("this Prefect has no ProcessPoolTaskRunner")
    return pool(max_workers=2)


class Diary:
    """What was written, by all processes."""

    def __init__(self, directory: Path) -> None:
        self.url = f"{elsewhere.STORE}#{directory.name}?ttl={TTL}s"
        self.path = str(directory / "diary")
        Path(self.path).touch()
        self.taken_at: list[float] = []

    def entries(self, word: str) -> list[tuple[int, float, int]]:
        lines = [line.split() for line in Path(self.path).read_text().splitlines()]
        return [(int(part), float(at), int(pid)) for said, part, at, pid in lines if said == word]

    def wait_until_at_work(self, parts: int) -> None:
        ends_at = time.monotonic() + PATIENCE
        while len(self.entries("began")) < parts:
            assert time.monotonic() < ends_at
            time.sleep(0.02)

    def take_away(self) -> None:
        self.wait_until_at_work(2)
        lockstead.Lock(self.url).break_lease(reason="a test", now=True)
        self.taken_at.append(time.monotonic())


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_children_elsewhere_stop_and_queued_ones_never_begin(diary: Diary, kind: str, caplog: pytest.LogCaptureFixture):
    publish = flow(elsewhere.waiting, task_runner=runner_of(kind))
    taker = threading.Thread(target=diary.take_away)
    taker.start()
    with pytest.raises(lockstead.LeaseLost):
        publish(diary.url, diary.path)
    taker.join()
    began = diary.entries("began")
    assert len(began) == 2
    assert os.getpid() not in {pid for _part, _at, pid in began}
    assert max(at for _part, at, _pid in diary.entries("wrote")) < diary.taken_at[0] + LIMIT
    assert [part for part, _at, _pid in diary.entries("lost")] == [0, 1, 2, 3]
    assert sum("does not cover tasks submitted to" in one.getMessage() for one in caplog.records) == 1


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_the_release_waits_for_children_elsewhere(diary: Diary, kind: str):
    assert flow(elsewhere.leaving, task_runner=runner_of(kind))(diary.url, diary.path)
    assert max(at for _part, at, _pid in diary.entries("wrote")) < diary.entries("released")[0][1]
