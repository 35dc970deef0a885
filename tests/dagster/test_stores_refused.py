"""A store that could not do what is asked of it is refused in one line, before anybody works under its lock."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import build_reconstructable_job

from dagster_lockstead import InvalidLockConfig, LockResource, leased, locked
from tests.dagster import bodies
from tests.dagster.runs import failure_of, in_process, job_with
from tests.dagster.taking import Place

MEMORY = "a memory: lock lives in one process, and each step has a process of its own here"
UNTOLD = "etcd: cannot tell how a holder ended, so on_unclean='fail' would never fail"
NOBODY = "etcd://127.0.0.1:9"
"""A port where nobody listens."""


@dg.op
@locked("own")
def noting() -> None:
    bodies.note("in")


@dg.op
@locked("own", on_unclean="fail")
def strict() -> None:
    bodies.note("in")


def made(executor: str) -> dg.JobDefinition:
    """Return a job of one op whose lock is in memory; `build_reconstructable_job` calls this in every process of it."""
    executors = {
        "here": dg.in_process_executor,
        "apart": dg.multiprocess_executor,
        "leased": leased(dg.multiprocess_executor, key="k"),
        "leased here": leased(dg.in_process_executor, key="k"),
    }

    @dg.job(resource_defs={"lock": LockResource(store="memory:")}, executor_def=executors[executor])
    def job() -> None:
        noting()

    return job


def executed(instance: dg.DagsterInstance, executor: str) -> Any:
    root = str(Path(__file__).parents[2])
    job = build_reconstructable_job(
        __name__, "made", reconstructable_args=(executor,), reconstructor_working_directory=root
    )
    return dg.execute_job(job, instance=instance)


def test_a_memory_lock_is_refused_if_steps_have_own_processes(place: Place, instance: dg.DagsterInstance) -> None:
    failed = failure_of(executed(instance, "apart"), "noting")
    assert MEMORY in failed.user_failure_data.description
    assert "\n" not in failed.user_failure_data.description
    assert not place.has("in")


def test_a_leased_run_with_step_processes_refuses_a_memory_lock(place: Place, instance: dg.DagsterInstance) -> None:
    result = executed(instance, "leased")
    assert not result.success
    [failed] = [event for event in result.all_events if event.event_type_value == "PIPELINE_FAILURE"]
    assert MEMORY in str(failed.event_specific_data)
    assert not place.has("in")


@pytest.mark.parametrize("executor", ["here", "leased here"])
def test_a_memory_lock_is_accepted_if_steps_share_a_process(
    place: Place, instance: dg.DagsterInstance, executor: str
) -> None:
    assert executed(instance, executor).success
    assert place.count("in") == 1


def test_on_unclean_fail_needs_a_store_that_detects_it(place: Place) -> None:
    failed = failure_of(in_process(job_with(strict, {"lock": LockResource(store=NOBODY)})), "strict")
    assert failed.user_failure_data.description.startswith(UNTOLD)
    assert not place.has("in")
    with (
        pytest.raises(InvalidLockConfig, match=UNTOLD),
        LockResource(store=NOBODY).hold(dg.build_op_context(), "k", on_unclean="fail"),
    ):
        pass
