"""Permits: steps that hold a slot each, and a run whose steps work under the permit of the run."""

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource, LockSpec, locked
from tests.dagster.runs import failure_of, in_process, job_with, leased_run
from tests.dagster.taking import Place

SUCCESS = dg.DagsterRunStatus.SUCCESS


@dg.op
@locked("k", permits=2, timeout=0)
def takes_a_slot(context: dg.OpExecutionContext) -> int | None:
    """Return the slot."""
    return lockstead.current_lease().slot


def test_a_step_takes_a_slot_that_nobody_else_has_and_its_output_names_it(place: Place) -> None:
    job = job_with(takes_a_slot, {"lock": LockResource(store=place.url)})
    semaphore = lockstead.Semaphore(f"{place.url}#k", permits=2)
    with semaphore.hold() as other:
        result = in_process(job)
        assert result.success
        assert {result.output_for_node("takes_a_slot"), other.slot} == {0, 1}
        [said] = [one.step_output_data.metadata for one in result.all_events if one.is_successful_output]
        assert said["lockstead/slot"].value == 1 - (other.slot or 0)
        with lockstead.Semaphore(f"{place.url}#k", permits=2).hold():
            assert "all 2 permits are held by" in str(failure_of(in_process(job), "takes_a_slot").error)
    state = semaphore.inspect()
    assert state is not None
    assert state.held == ()


def test_another_limit_than_the_stored_one_fails_the_step_with_both_numbers(place: Place) -> None:
    lockstead.Semaphore(f"{place.url}#k", permits=3).acquire(0).release()
    failure = failure_of(in_process(job_with(takes_a_slot, {"lock": LockResource(store=place.url)})), "takes_a_slot")
    assert "3 permits" in str(failure.error)
    assert "2" in str(failure.error)


@pytest.mark.parametrize("where", ["here", "apart"])
def test_a_step_of_a_run_that_holds_a_permit_takes_no_second_one(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    run = leased_run(instance, "uses_a_permit", where, "permits")
    assert run.status is SUCCESS
    slot, _, held = (place.folder / "seen").read_text().strip().partition(" ")
    assert held == f"[{slot}]"
    state = lockstead.Semaphore(f"{place.url}#k").inspect()
    assert state is not None
    assert state.held == ()


def test_permits_are_checked_where_they_are_declared() -> None:
    for words, line in (
        ({"permits": 0}, "permits is 0; it must be at least 1"),
        ({"permits": 2, "mode": "{how}"}, "permits and mode exclude each other"),
        ({"permits": 2, "on_unclean": "fail"}, "on_unclean='fail' is for locks"),
    ):
        with pytest.raises(ValueError, match=line):
            LockSpec(key="k", **words)  # type: ignore[arg-type]
