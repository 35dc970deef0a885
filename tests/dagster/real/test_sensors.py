"""What the gate and the janitor do on a daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.dagster.real.conftest import Live


@contextmanager
def on(live: Live, sensor: str) -> Iterator[None]:
    """Have a sensor on for a block, and for nobody else's test: a janitor frees what others wait for."""
    live.dagster.turn_on(sensor)
    try:
        yield
    finally:
        live.dagster.turn_off(sensor)


def test_the_gate_names_the_holder_and_requests_a_run_when_free(live: Live):
    with live.lock("gate", ttl=60, owner="somebody", purpose="publish APT").hold(), on(live, "gate"):
        tick = live.dagster.until(lambda: live.dagster.ticks("gate"), "the gate is not evaluated")[0]
        assert tick["status"] == "SKIPPED", tick
        assert tick["skipReason"].startswith("'gate' is held by 'somebody' since ")
        assert "(purpose: publish APT)" in tick["skipReason"]
        assert live.dagster.runs(dagster__sensor_name="gate") == {}
    with on(live, "gate"):
        (run,) = live.dagster.until(lambda: live.dagster.runs(dagster__sensor_name="gate"), "no run is asked for")
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    assert live.noted("gate", "enters", run)
    assert len(live.dagster.runs(dagster__sensor_name="gate")) == 1


def test_the_janitor_frees_a_killed_run_workers_lock_early(live: Live, name: str):
    run = live.launch("ticking_body", name, in_process=True)
    live.enters(name, run)
    worker = live.dagster.run_worker(run)
    os.kill(worker, signal.SIGKILL)
    lock = live.lock(name)
    with on(live, "lockstead_janitor"):
        live.dagster.until(lambda: lock.inspect() is None, "the janitor does not free it")
    assert lock.history()[-1].by == "dagster:lockstead_janitor"
    assert lock.history()[-1].what == "removed"
    assert live.dagster.status(run) == "FAILURE"


def test_what_runs_is_not_touched_by_the_janitor(live: Live, name: str, tmp_path: Path):
    ended = tmp_path / "ended"
    run = live.launch("quick", name, in_process=True, until=str(ended))
    live.enters(name, run)
    before = live.dagster.ticks("lockstead_janitor")
    with on(live, "lockstead_janitor"):
        live.dagster.until(
            lambda: len(live.dagster.ticks("lockstead_janitor")) > len(before), "the janitor is not evaluated"
        )
        assert live.noted(name, "cleans up", run) == []
        (tick, *_earlier) = live.dagster.ticks("lockstead_janitor")
        # what other tests left locked may be freed in the same tick
        assert run not in tick["skipReason"]
        assert live.lock(name).inspect() is not None
    ended.touch()
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    assert live.lock(name).history() == []
