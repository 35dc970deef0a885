"""A run that somebody ends by hand while it works is not tried again under its lock, whatever its RetryPolicy says."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_lockstead import watching
from lockstead import LeaseOutcome
from tests.dagster.program import program
from tests.dagster.taking import Place, until


@pytest.mark.parametrize(("op", "settings"), [("sleeps", "retries then"), ("guarded_sleeps", "plain retries then")])
def test_a_terminated_run_is_not_retried_and_frees_the_lock(
    place: Place, home: Path, instance: dg.DagsterInstance, op: str, settings: str
) -> None:
    with program(place, home, "one", op, "here", settings) as one:
        until(lambda: place.has("in"), "the body runs")
        one.terminate(instance)
        one.ended()
    assert one.run(instance).status is dg.DagsterRunStatus.CANCELED, one.log()
    assert (place.count("in"), place.count("finally"), place.count("after")) == (1, 1, 0)
    lease = place.lock().try_acquire()
    assert lease is not None
    assert lease.previous_lease.ending is LeaseOutcome.CLEAN
    lease.release()


def test_a_database_that_gives_no_answer_ends_no_run(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = instance.create_run_for_job(dg.GraphDefinition(name="empty").to_job(), status=dg.DagsterRunStatus.STARTED)
    assert not watching.is_ending(instance, run.run_id)
    instance.report_run_canceling(run)
    assert watching.is_ending(instance, run.run_id)
    assert not watching.is_ending(instance, "unknown")

    def down(_run_id: str) -> None:
        raise OSError("the database is down")

    monkeypatch.setattr(instance, "get_run_by_id", down)
    assert not watching.is_ending(instance, run.run_id)
