"""`LockResource` by itself: in an op, a sensor and anywhere else, with another's client, and for many keys at once."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LeaseLost, LockResource, LockStore, held_leases
from tests.dagster.runs import in_process, job_with
from tests.dagster.taking import Beside, Place, held_by_another, taken_away


@pytest.fixture
def lock(place: Place) -> LockResource:
    return LockResource(store=place.url, ttl="2s", purpose="tests")


def test_inspect_tells_who_holds_and_list_tells_all(lock: LockResource, place: Place) -> None:
    assert lock.inspect("k") is None
    assert lock.list() == []
    with lock.hold(None, "k", expected="5m") as lease:
        found = lock.inspect("k")
        assert found is not None
        assert (found.holder, found.purpose, found.expected) == (lease.holder, "tests", 300)
        assert [one.key for one in lock.list()] == ["k"]
    assert lock.inspect("k") is None


def test_try_many_takes_what_is_free_and_gives_it_back(lock: LockResource, place: Place) -> None:
    with held_by_another(place, "b"):
        with lock.try_many(["a", "b", "c"]) as batch:
            assert sorted(batch.leases) == ["a", "c"]
            assert list(batch.pending_keys) == ["b"]
            assert {one.key for one in lock.list()} == {"a", "b", "c"}
        assert [one.key for one in lock.list()] == ["b"]


def test_try_many_in_a_step_names_the_step(lock: LockResource) -> None:
    owners: list[str] = []

    @dg.op
    def many(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.try_many(["a", "b"], context=context):
            owners.extend(one.owner for one in lock.list())

    result = in_process(job_with(many, {"lock": lock}))
    assert result.success
    assert owners == [f"dagster:{result.run_id}:many:0"] * 2


def test_an_environment_variable_names_the_store(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE_LOCKS_ARE", place.url)

    @dg.op
    def holds(context: dg.OpExecutionContext, lock: LockResource) -> str:
        with lock.hold(context, "k"):
            return lockstead.current_lease().holder

    for resource in (
        LockResource(store=dg.EnvVar("WHERE_LOCKS_ARE")),
        LockResource(store=LockStore(url=dg.EnvVar("WHERE_LOCKS_ARE"))),
    ):
        result = in_process(job_with(holds, {"lock": resource}))
        assert result.output_for_node("holds").startswith(f"dagster:{result.run_id}:holds:0/")


def test_a_hold_in_a_sensor_has_no_handler_and_ends_no_process(lock: LockResource, place: Place) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)}
    started: list[subprocess.Popen[bytes]] = []

    @dg.sensor(job_name="j")
    def looks(context: dg.SensorEvaluationContext, lock: LockResource) -> dg.SkipReason:
        with lock.hold(context, "k"):
            during = {number: signal.getsignal(number) for number in before}
            assert during == before
            started.append(subprocess.Popen(["sleep", place.nap]))
            (place.folder / "in").write_text("here\n")
            while lock.inspect("k") is not None and not lockstead.current_lease().lost_reason:
                time.sleep(0.01)
        return dg.SkipReason("never")

    with Beside(taken_away(place)), pytest.raises(LeaseLost):
        looks(dg.build_sensor_context(resources={"lock": lock}))
    try:
        assert started[0].poll() is None, "a sensor's hold ended a process"
    finally:
        started[0].kill()
        started[0].wait()
    assert {number: signal.getsignal(number) for number in before} == before
    assert held_leases.count() == 0


def test_a_hold_that_is_left_well_leaves_its_processes_alone(place: Place, lock: LockResource) -> None:
    started: list[subprocess.Popen[bytes]] = []

    @dg.op
    def holds(context: dg.OpExecutionContext, lock: LockResource) -> None:
        started.append(subprocess.Popen(["sleep", place.nap]))
        with lock.hold(context, "k"):
            started.append(subprocess.Popen(["sleep", place.nap]))

    assert in_process(job_with(holds, {"lock": lock})).success
    try:
        assert [one.poll() for one in started] == [None, None]
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_a_lost_hold_ends_only_processes_started_within_it(place: Place, lock: LockResource) -> None:
    started: list[subprocess.Popen[bytes]] = []

    @dg.op
    def holds(context: dg.OpExecutionContext, lock: LockResource) -> None:
        started.append(subprocess.Popen(["sleep", place.nap]))
        with lock.hold(context, "k"):
            started.append(subprocess.Popen(["sleep", place.nap]))
            (place.folder / "in").write_text("here\n")
            time.sleep(60)

    with Beside(taken_away(place)):
        assert not in_process(job_with(holds, {"lock": lock})).success
    try:
        assert started[0].poll() is None, "a process from before the hold was ended"
        assert started[1].wait(5) is not None
    finally:
        started[0].kill()
        started[0].wait()


def test_a_hold_is_given_back_whatever_the_body_raises(lock: LockResource) -> None:
    @dg.op
    def fails(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.hold(context, "k"):
            raise ValueError("of the body")

    with pytest.raises(ValueError, match="of the body"):
        job_with(fails, {"lock": lock}).execute_in_process()
    assert lock.inspect("k") is None


def test_threads_of_a_code_server_exclude_one_another(lock: LockResource) -> None:
    at_once: list[int] = []
    inside: list[int] = []

    def hold() -> None:
        with lock.hold(None, "k"):
            inside.append(1)
            at_once.append(len(inside))
            time.sleep(0.05)
            inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert at_once == [1, 1, 1]


@pytest.fixture
def storage_client() -> Iterator[tuple[Any, str]]:
    storage = pytest.importorskip("google.cloud.storage")
    from google.auth import credentials

    from gcs_emulator import GcsServer

    with GcsServer(buckets=["locks"]) as server:
        client = storage.Client(
            project="test",
            credentials=credentials.AnonymousCredentials(),
            client_options={"api_endpoint": server.url},
        )
        yield client, "gs://locks/of/tests"
        client.close()


def test_a_client_of_cloud_storage_is_asked_for_once_and_used(storage_client: tuple[Any, str]) -> None:
    client, url = storage_client
    asked: list[int] = []

    class GcsLike(dg.ConfigurableResource):  # as dagster-gcp's GCSResource
        project: str = "test"

        def get_client(self) -> Any:
            asked.append(1)
            return client

    @dg.op
    def holds(context: dg.OpExecutionContext, lock: LockResource) -> int | None:
        with lock.hold(context, "k"):
            assert lock.inspect("k") is not None
        with lock.hold(context, "k") as lease:
            return lease.sequencer().token

    result = in_process(job_with(holds, {"lock": LockResource(store=url, ttl="20s", gcs=GcsLike())}))
    assert result.success
    assert isinstance(result.output_for_node("holds"), int)
    assert len(asked) == 1


def test_a_step_in_a_process_of_its_own_switches_telemetry_on(place: Place) -> None:
    script = (
        "import dagster_lockstead, sys\n"
        "from lockstead.listeners import LISTENERS\n"
        "dagster_lockstead.LockResource(store=sys.argv[1]).lock('k').inspect()\n"
        "print('listeners', len(LISTENERS.every))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, place.url],
        env={**os.environ, "LOCKSTEAD_TELEMETRY": "otel"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "listeners 2" in done.stdout or "'otel' is not switched on: traces need: pip install" in done.stderr
