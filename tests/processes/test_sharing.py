"""Readers and writers of one page that are killed and stopped, on each store: nothing changes under a believer.

LOCKSTEAD_LONG=1 lets each run last for a minute.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.inventory import known
from tests.processes.journal import Event
from tests.processes.sharing import end, faults, start, tally
from tests.processes.sharing_run import KILLED_MIN
from tests.servers.bench import Bench, at, bench

__all__ = ["at", "bench"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS = 60.0 if os.environ.get("LOCKSTEAD_LONG") else 6.0


def keeps_the_promise(url: str, events: list[Event]) -> None:
    told = known(url.partition(":")[0]).tells_unclean
    done = tally(events)
    assert faults(events, tells_unclean=told) == [], done
    print(done)
    # it happened to be shown, not only not contradicted
    assert done["killed"] >= KILLED_MIN, done
    assert done["wrote"] > 1, done
    assert done["reads"] > 3, done
    assert done["together"] > 0, done


def test_nothing_changes_under_readers_and_writers(shared_url: str, tmp_path: Path) -> None:
    keeps_the_promise(shared_url, end(start(shared_url, tmp_path, SECONDS), tmp_path))


def test_nothing_changes_under_readers_and_writers_on_a_server(bench: Bench, tmp_path: Path) -> None:
    keeps_the_promise(bench.url(), end(start(bench.url(), tmp_path, SECONDS), tmp_path))


def test_a_restart_of_the_server_changes_nothing_under_readers_and_writers(bench: Bench, tmp_path: Path) -> None:
    if not bench.place.is_durable:
        pytest.skip("this store forgets its records in a restart, and says so")
    run = start(bench.url(), tmp_path, SECONDS + 4.0)
    time.sleep(3.0)
    bench.place.kill()
    bench.place.start()
    keeps_the_promise(bench.url(), end(run, tmp_path))


def test_the_judge_sees_writers_that_see_no_reader(sqlite_url: str, tmp_path: Path) -> None:
    events = end(start(sqlite_url, tmp_path, 6.0, "--sabotage", "writers see no reader"), tmp_path)
    told = "\n".join(faults(events, tells_unclean=True))
    assert "while it held" in told or "saw under its lease" in told
