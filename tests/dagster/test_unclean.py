"""The holder before did not end cleanly: a step is told so, or refuses to run until somebody has repaired it."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

import lockstead
from dagster_lockstead import LockResource, leased, locked
from tests.dagster import bodies
from tests.dagster.runs import apart, failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import Beside, Place, until
from tests.servers.base import dies_with_us


def leave_unclean(place: Place) -> None:
    lease = lockstead.Lock(f"{place.url}#k", owner="somebody/else").acquire()
    place.lock().break_lease(reason="taken away by a test", now=True)
    del lease


def op_of(on_unclean: str, ran: list[int], **given: Any) -> dg.OpDefinition:
    @dg.op(**given)
    @locked("k", on_unclean=on_unclean)  # type: ignore[arg-type]
    def careful() -> int:
        ran.append(1)
        return 1

    return careful


@pytest.mark.parametrize("given", [{}, {"retry_policy": dg.RetryPolicy(max_retries=3)}], ids=["once", "retries"])
def test_on_unclean_fail_refuses_after_an_unclean_end_for_good(place: Place, given: dict[str, Any]) -> None:
    leave_unclean(place)
    ran: list[int] = []
    op = op_of("fail", ran, **given)
    for _ in range(2):
        failed = failure_of(in_process(job_with(op, {"lock": LockResource(store=place.url)})), "careful")
        assert metadata_of(failed)["lockstead/reason"] == "REVOKED"
        assert "repair what it left" in failed.user_failure_data.description
        assert "\n" not in failed.user_failure_data.description
    assert ran == []
    # repaired, and said so
    with place.lock().hold():
        pass
    assert in_process(job_with(op, {"lock": LockResource(store=place.url)})).success
    assert ran == [1]


def test_a_refusal_comes_after_a_wait_too_and_leaves_no_thread(place: Place) -> None:
    def threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name in ("lockstead-run", "lockstead-abort")}

    before = threads()
    ran: list[int] = []
    holders: list[lockstead.Lease] = []
    with Beside(lambda: holders.append(lockstead.Lock(f"{place.url}#k", owner="somebody/else").acquire())):
        pass
    waits = threading.Event()

    @dg.op
    @locked(lambda context: waits.set() or "k", on_unclean="fail")
    def careful() -> int:
        ran.append(1)
        return 1

    def take_away() -> None:
        waits.wait(60)
        time.sleep(0.3)
        place.lock().break_lease(reason="taken away by a test", now=True)

    with Beside(take_away):
        failed = failure_of(in_process(job_with(careful, {"lock": LockResource(store=place.url)})), "careful")
    assert metadata_of(failed)["lockstead/predecessor"] == "somebody/else"
    assert ran == []
    until(lambda: threads() <= before, "the threads end", 15)


def test_a_body_that_may_follow_an_unclean_end_is_warned(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    leave_unclean(place)
    ran: list[int] = []
    with dg.DagsterInstance.ephemeral() as instance:
        result = in_process(job_with(op_of("warn", ran), {"lock": LockResource(store=place.url)}), instance=instance)
        assert result.success
        lines = [one.user_message for one in instance.all_logs(result.run_id)]
    assert ran == [1]
    assert "the lease of 'somebody/else' on 'k' ended REVOKED: what it left may need repair" in lines


def test_a_call_outside_of_a_run_is_refused_likewise(place: Place) -> None:
    from dagster_lockstead import PreviousLeaseUnclean

    leave_unclean(place)
    ran: list[int] = []
    for _ in range(2):
        with pytest.raises(PreviousLeaseUnclean):
            op_of("fail", ran)(dg.build_op_context(resources={"lock": LockResource(store=place.url)}))
    assert ran == []


def leave_expired(place: Place) -> None:
    """Let somebody be killed who holds the lock."""
    holds = f"import lockstead, time; lockstead.Lock({place.url + '#k'!r}, owner='somebody/else', ttl=1).acquire(); "
    one = subprocess.Popen(
        [*dies_with_us(), sys.executable, "-c", holds + "print('held', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    assert one.stdout is not None
    with one.stdout as said:
        assert said.readline() == b"held\n"
        one.kill()
        one.wait()
    assert not place.is_free()


@pytest.mark.parametrize("where", ["here", "apart"])
def test_on_unclean_fail_refuses_after_a_kill_for_good(place: Place, instance: dg.DagsterInstance, where: str) -> None:
    leave_expired(place)
    result = in_process(bodies.job_of(bodies.careful)) if where == "here" else apart(instance, "careful")
    said = metadata_of(failure_of(result, "careful"))
    assert (said["lockstead/predecessor"], said["lockstead/reason"]) == ("somebody/else", "EXPIRED")
    assert not place.has("in")
    with place.lock().hold(timeout=5) as lease:
        assert lease.previous_lease.ending is not lockstead.LeaseOutcome.CLEAN, "the next one is refused as well"


def test_on_unclean_warn_logs_the_unclean_end_of_a_leased_run(place: Place, instance: dg.DagsterInstance) -> None:
    leave_unclean(place)
    ran: list[int] = []

    @dg.op
    def works() -> None:
        ran.append(1)

    @dg.job(executor_def=leased(dg.in_process_executor, key="k"), resource_defs={"lock": LockResource(store=place.url)})
    def made() -> None:
        works()

    run = instance.create_run_for_job(made)
    assert execute_run(InMemoryJob(made), run, instance).success
    lines = [one.user_message for one in instance.all_logs(run.run_id)]
    assert ran == [1]
    assert [one for one in lines if "the lease of 'somebody/else' on 'k' ended REVOKED" in one]


@pytest.mark.parametrize("leave", [leave_unclean, leave_expired], ids=["revoked", "expired"])
def test_every_refusal_names_the_first_unclean_holder(place: Place, leave: Callable[[Place], None]) -> None:
    leave(place)
    ran: list[int] = []
    op = op_of("fail", ran)
    ended = "REVOKED" if leave is leave_unclean else "EXPIRED"
    for _ in range(3):
        failed = failure_of(in_process(job_with(op, {"lock": LockResource(store=place.url)})), "careful")
        said = metadata_of(failed)
        assert (said["lockstead/predecessor"], said["lockstead/reason"]) == ("somebody/else", ended)
        assert failed.user_failure_data.description.startswith(f"the lease of 'somebody/else' on 'k' ended {ended}: ")
    assert ran == []
    assert len(place.lock().history()) == (1 if leave is leave_unclean else 0), "a refusal broke a lease"
    assert previous_lease(place) == ("somebody/else", ended)


def test_a_warning_after_a_refusal_names_who_left_it_unclean(place: Place, instance: dg.DagsterInstance) -> None:
    leave_unclean(place)
    ran: list[int] = []
    resources = {"lock": LockResource(store=place.url)}
    assert not in_process(job_with(op_of("fail", ran), resources)).success
    result = in_process(job_with(op_of("warn", ran), resources), instance=instance)
    lines = [one.user_message for one in instance.all_logs(result.run_id)]
    assert ran == [1]
    assert [one for one in lines if one.startswith("the lease of")] == [
        "the lease of 'somebody/else' on 'k' ended REVOKED: what it left may need repair"
    ]


def previous_lease(place: Place) -> tuple[str, str]:
    """Take the lock, and give who held it before, and how that ended."""
    with place.lock().hold(timeout=5) as lease:
        return lease.previous_lease.owner, lease.previous_lease.ending.value


def fail_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread be had to tell Dagster, and no warning be logged."""
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "lockstead-reporting":
            raise RuntimeError("can't start new thread")
        start(thread)

    def full(record: logging.LogRecord) -> bool:
        raise OSError("no space left on device")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    monkeypatch.setattr(logging.getLogger("dagster_lockstead"), "filters", [full])


@pytest.mark.parametrize("where", ["a step", "a call", "an awaited call", "a leased run"])
def test_a_failure_before_the_body_passes_the_unclean_end_on(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    leave_unclean(place)
    ran: list[int] = []
    resources = {"lock": LockResource(store=place.url)}

    @locked("k")
    async def awaits() -> None:
        ran.append(1)

    @dg.op
    def works() -> None:
        ran.append(1)

    @dg.job(executor_def=leased(dg.in_process_executor, key="k"), resource_defs=resources)
    def made() -> None:
        works()

    with monkeypatch.context() as patched:
        fail_to_tell(patched)
        if where == "a step":
            failed = failure_of(in_process(job_with(op_of("warn", ran), resources), instance=instance), "careful")
            assert "no space left on device" in failed.error.to_string()
        elif where == "a leased run":
            run = instance.create_run_for_job(made)
            with pytest.raises(OSError, match="no space left on device"):
                execute_run(InMemoryJob(made), run, instance, raise_on_error=True)
        else:
            context = dg.build_op_context(resources=resources)
            with pytest.raises(OSError, match="no space left"):
                if where == "a call":
                    op_of("warn", ran)(context)
                else:
                    asyncio.run(awaits(context, lock=resources["lock"]))  # type: ignore[call-arg]
    assert ran == []
    assert place.lock().inspect() is None
    assert previous_lease(place) == ("somebody/else", "REVOKED")
