"""How the tests run a job, in this process or with a process for each step, and read what came of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.reconstruct import build_reconstructable_job


def in_process(job: dg.JobDefinition, **given: Any) -> Any:
    """Run a job in this process; what fails is in the result."""
    return job.execute_in_process(raise_on_error=False, **given)


def job_with(op: dg.OpDefinition, resources: dict[str, Any]) -> dg.JobDefinition:
    """Return a job of one op."""

    @dg.job(name="j", resource_defs=resources)
    def made() -> None:
        op()

    return made


def apart(instance: dg.DagsterInstance, name: str, *, retries: bool = False) -> Any:
    """Run a job of one op of `bodies`, whose step runs in a process of its own."""
    told = {name: value for name, value in os.environ.items() if name.startswith("LOCKSTEAD_TEST_")}
    return _executed(instance, "bodies", "apart", name, "retries" if retries else "once", json.dumps(told))


def in_leased_run(instance: dg.DagsterInstance, name: str) -> Any:
    """Run a job of one op of `bodies` in this process, in a run that holds a lease on "k"."""
    return _executed(instance, "bodies", "within_a_lease", name)


def leased_run(instance: dg.DagsterInstance, op: str, where: str, settings: str = "") -> dg.DagsterRun:
    """Run a job of `leased_jobs`, with this process as its run worker; the run as it has ended."""
    result = _executed(instance, "leased_jobs", "job_named", op, where, settings)
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    return run


def _executed(instance: dg.DagsterInstance, module: str, made_by: str, *given: str) -> Any:
    job = build_reconstructable_job(
        f"tests.dagster.{module}",
        made_by,
        reconstructable_args=given,
        reconstructor_working_directory=str(Path(__file__).parents[2]),
    )
    return dg.execute_job(job, instance=instance)


def events_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[Any]:
    """Return Dagster's events of a run so far."""
    return [one.dagster_event for one in instance.all_logs(run.run_id) if one.is_dagster_event]


def told_by(instance: dg.DagsterInstance, run: dg.DagsterRun, word: str) -> list[dict[str, Any]]:
    """Return the metadata of the lock's engine events of a run that begin with a word."""
    events = [one for one in events_of(instance, run) if one.event_type_value == "ENGINE_EVENT"]
    chosen = [one for one in events if (one.message or "").startswith(f"{word}: ")]
    return [{name: value.value for name, value in one.engine_event_data.metadata.items()} for one in chosen]


def error_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return what a run failed with."""
    failures = [event for event in events_of(instance, run) if event.event_type_value == "PIPELINE_FAILURE"]
    assert len(failures) == 1
    return str(failures[0].job_failure_data.error)


def failure_of(result: Any, step: str) -> Any:
    """Return what a step failed with; it was tried once."""
    assert not result.success
    events = [event for event in result.all_events if event.step_key == step]
    assert not [event for event in events if event.event_type_value == "STEP_UP_FOR_RETRY"], "it was tried again"
    failures = [event for event in events if event.event_type_value == "STEP_FAILURE"]
    assert len(failures) == 1
    return failures[0].step_failure_data


def metadata_of(failure: Any) -> dict[str, Any]:
    """Return the metadata of a failure as plain values."""
    assert failure.user_failure_data is not None, failure.error
    return {name: value.value for name, value in failure.user_failure_data.metadata.items()}
