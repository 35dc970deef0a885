"""Readers: steps that overlap, a writer that waits for all of them, and a run whose steps are readers."""

from collections.abc import Callable

import dagster as dg
import pytest

from dagster_lockstead import LockResource, LockSpec, locked
from tests.dagster.runs import events_of, failure_of, in_process, job_with, leased_run
from tests.dagster.taking import LIMIT, Beside, Place, until

SUCCESS = dg.DagsterRunStatus.SUCCESS


def writes(place: Place, after: Callable[[], object]) -> Callable[[], None]:
    """Write as soon as this is so, and say so in the same file as the readers."""

    def write() -> None:
        until(after, "the readers are in")
        with place.lock().hold(timeout=LIMIT), (place.folder / "order").open("a") as file:
            file.write("writer\n")

    return write


def order(place: Place) -> list[str]:
    return (place.folder / "order").read_text().split()


def test_steps_in_processes_of_their_own_overlap_and_a_writer_waits_for_all(
    place: Place, instance: dg.DagsterInstance
) -> None:
    with Beside(writes(place, lambda: place.count("in") == 4)):
        run = leased_run(instance, "reads", "apart", "plain many")
    assert run.status is SUCCESS
    assert order(place) == ["reader"] * 4 + ["writer"]
    assert place.lock().inspect() is None


@pytest.mark.parametrize("where", ["here", "apart"])
def test_a_step_of_a_shared_run_begins_although_a_writer_waits(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    with Beside(writes(place, lambda: place.has("in"))):
        run = leased_run(instance, "sleeps_until_a_writer_waits", where, "shared reads")
    assert run.status is SUCCESS
    assert order(place) == ["reader", "writer"]
    assert place.lock().inspect() is None


@pytest.mark.parametrize("where", ["here", "apart"])
def test_a_step_that_writes_in_a_shared_run_is_refused_and_does_not_wait_for_itself(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    run = leased_run(instance, "guarded_sleeps", where, "shared")
    [failure] = [event for event in events_of(instance, run) if event.event_type_value == "STEP_FAILURE"]
    assert "'k' is held here with mode='shared', and asked for exclusively" in str(failure.step_failure_data.error)
    assert place.count("in") == 0
    assert place.lock().inspect() is None


def test_a_section_within_a_readers_section_may_not_write(place: Place) -> None:
    @dg.op
    @locked("k", mode="shared")
    def nests(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.hold(context, "k", mode="shared") as inner:
            assert inner.mode == "shared"
        with lock.hold(context, "k"):
            pass

    failure = failure_of(in_process(job_with(nests, {"lock": LockResource(store=place.url)})), "nests")
    assert "'k' is held here with mode='shared', and asked for exclusively" in str(failure.error)


def test_the_mode_is_checked_where_it_is_declared_or_rendered() -> None:
    for words in ({"mode": "Shared"}, {"mode": "{how}", "is_named": True}):
        with pytest.raises(ValueError, match="mode must be 'exclusive' or 'shared', not"):
            LockSpec(key="k", **words)  # type: ignore[arg-type]
    spec = LockSpec(key="k", mode="{how}")
    assert not spec.is_final
    assert spec.named(None, {"how": "shared"}).settings == {"mode": "shared"}
    with pytest.raises(ValueError, match="mode must be 'exclusive' or 'shared', not 'write'"):
        spec.named(None, {"how": "write"})
