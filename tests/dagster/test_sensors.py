"""What the sensors decide, each evaluated as the code server does: the gate, and whom the janitor frees."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

import lockstead
from dagster_lockstead import names
from dagster_lockstead.resource import LockResource, LockStore
from dagster_lockstead.sensors import is_gone, lock_free_sensor, stale_lock_sensor
from lockstead import LeaseLost, LossReason
from tests.servers.base import dies_with_us

LONG = 30.0


@dg.op
def nothing() -> None:
    """Do nothing."""


@dg.job
def publish() -> None:
    """Run one op."""
    nothing()


HOLDS = """
import sys, time
import lockstead
url, owner, ttl = sys.argv[1:]
lease = lockstead.Lock(url, owner=owner, ttl=float(ttl)).acquire()
print("held", flush=True)
time.sleep(600)
"""


class World:
    """An instance and a store of locks."""

    def __init__(self, directory: Path) -> None:
        self.instance = dg.DagsterInstance.ephemeral()
        self.url = f"sqlite:///{directory / 'locks.db'}"
        self.locks = LockResource(store=LockStore(url=self.url))

    def evaluate(self, sensor: dg.SensorDefinition, resource: Any = None) -> Any:
        """Evaluate a sensor, with a resource that is made for it, as for each tick."""
        locks = resource if resource is not None else LockResource(store=LockStore(url=self.url))
        definitions = dg.Definitions(jobs=[publish], sensors=[sensor], resources={"lock": locks})
        with dg.build_sensor_context(
            instance=self.instance, resources={"lock": locks}, definitions=definitions
        ) as context:
            return sensor.evaluate_tick(context)

    def skipped(self, sensor: dg.SensorDefinition) -> str:
        """Evaluate a sensor that asks for no run, and give what it says."""
        found = self.evaluate(sensor)
        assert not found.run_requests
        assert found.skip_message is not None
        return str(found.skip_message)

    def run(self, *, is_over: bool = False, **tags: str) -> str:
        """Return a run that has begun, or has failed just now; nobody executes it."""
        named = {name.replace("__", "/"): value for name, value in tags.items()}
        run = create_run_for_test(self.instance, job_name="publish", status=dg.DagsterRunStatus.STARTED, tags=named)
        if is_over:
            self.instance.report_run_failed(run)
        return str(run.run_id)

    @contextmanager
    def held_by(self, run: str, ttl: float) -> Iterator[subprocess.Popen[str]]:
        """Have a process of its own hold the lock for a step of a run."""
        words = [*dies_with_us(), sys.executable, "-c", HOLDS, f"{self.url}#apt", names.step_owner(run, "one", 0)]
        with subprocess.Popen([*words, str(ttl)], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "held\n"
                yield process
            finally:
                process.kill()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def until(condition: Callable[[], Any], seconds: float = LONG) -> Any:
    ends_at = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    return found


# --- the gate -------------------------------------------------------------------------------------------------------


def test_a_run_is_asked_for_when_the_lock_is_free(world: World):
    found = world.evaluate(lock_free_sensor("gate", key="apt", target=publish))
    assert len(found.run_requests) == 1
    assert world.locks.inspect("apt") is None


def test_a_held_lock_skips_the_tick_and_names_the_holder(world: World):
    gate = lock_free_sensor("gate", key=lambda _context: "apt", target=publish)
    with world.locks.lock("apt", ttl=60, owner="somebody", purpose="publish APT").hold() as lease:
        told = world.skipped(gate)
        assert told.startswith("'apt' is held by 'somebody' since ")
        assert "(purpose: publish APT)" in told
        assert lease.is_held
    assert world.evaluate(gate).run_requests


def test_the_gate_of_a_reader_is_open_beside_readers_and_that_of_a_writer_is_not(world: World):
    reader, writer = (
        lock_free_sensor("gate", key="apt", target=publish, mode=mode) for mode in ("shared", "exclusive")
    )
    with world.locks.lock("apt", ttl=60, mode="shared").hold():
        assert world.evaluate(reader).run_requests
        assert world.skipped(writer).startswith("'apt' is held by 1 reader since ")
    with world.locks.lock("apt", ttl=60).hold():
        assert "is held by" in world.skipped(reader)
    with pytest.raises(ValueError, match="mode must be 'exclusive' or 'shared', not 'write'"):
        lock_free_sensor("gate", key="apt", target=publish, mode="write")


def test_a_semaphore_is_free_while_a_permit_is(world: World):
    gate = lock_free_sensor("gate", key="apt", target=publish, permits=2)
    one, other = (lockstead.Semaphore(f"{world.url}#apt", 2, owner=f"ci/{number}") for number in range(2))
    with one.hold():
        assert world.evaluate(gate).run_requests
        with other.hold():
            told = world.skipped(gate)
            assert told.startswith("'apt' is held by ci/")
            assert {"ci/0", "ci/1"} <= set(told.replace(",", "").split())
        assert world.evaluate(gate).run_requests
    with pytest.raises(ValueError, match="permits and mode exclude each other"):
        lock_free_sensor("gate", key="apt", target=publish, permits=2, mode="shared")


def test_an_expired_lease_opens_the_gate(world: World):
    gate = lock_free_sensor("gate", key="apt", target=publish)
    with world.held_by("elsewhere", ttl=1.0) as process:
        process.kill()
        assert "is held by" in world.skipped(gate)
        until(lambda: world.evaluate(gate).run_requests)


def test_a_run_that_was_asked_for_is_under_way_until_it_ends(world: World):
    gate = lock_free_sensor("gate", key="apt", target=publish)
    run = world.run(dagster__sensor_name="gate")
    assert f"run {run}, which will acquire it, has not ended" in world.skipped(gate)
    assert world.evaluate(lock_free_sensor("other", key="apt", target=publish)).run_requests
    over = world.instance.get_run_by_id(run)
    assert over is not None
    world.instance.report_run_failed(over)
    assert world.evaluate(gate).run_requests


def test_requests_are_computed_only_when_the_lock_is_free(world: World):
    asked = []

    def requests(context: dg.SensorEvaluationContext) -> dg.RunRequest:
        asked.append(context.cursor)
        return dg.RunRequest(run_key="one", tags={"why": "new files"})

    gate = lock_free_sensor("gate", key="apt", target=publish, requests=requests)
    with world.locks.lock("apt", ttl=60).hold():
        world.skipped(gate)
    assert asked == []
    (found,) = world.evaluate(gate).run_requests
    assert (found.run_key, found.tags["why"]) == ("one", "new files")


def test_a_resource_that_is_not_for_locks_is_refused_in_one_line(world: World):
    gate = lock_free_sensor("gate", key="apt", target=publish)
    with pytest.raises(Exception, match="the resource 'lock' must be a LockResource, and is int") as raised:
        world.evaluate(gate, resource=dg.ResourceDefinition.hardcoded_resource(7))
    assert "\n" not in str(raised.value.__cause__ or raised.value)


def test_ticks_leave_nothing_behind(world: World):
    gate, janitor = lock_free_sensor("gate", key="apt", target=publish), stale_lock_sensor(grace=0)
    # a renewal within the test would start a thread of the keeper's
    with world.locks.lock("apt", ttl=3600, owner=names.run_owner(world.run())).hold():

        def tick() -> tuple[int, int]:
            world.skipped(gate)
            world.skipped(janitor)
            gc.collect()
            return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

        handlers = [signal.getsignal(number) for number in signal.Signals]
        tick()
        before = tick()
        for _ in range(10):
            tick()

        def is_as_before() -> bool:
            return all(now <= then for now, then in zip(tick(), before, strict=True))

        # what ends by itself has a moment for it; what stays, stays
        until(is_as_before)
    assert [signal.getsignal(number) for number in signal.Signals] == handlers


# --- the janitor ----------------------------------------------------------------------------------------------------


def test_the_reader_of_an_ended_run_is_revoked_and_no_other(world: World):
    left, other = (names.step_owner(world.run(is_over=is_over), "one", 0) for is_over in (True, False))
    with world.locks.lock("apt", ttl=60, mode="shared", owner=other).hold() as lives:
        with ThreadPoolExecutor(1) as pool:
            dead = pool.submit(world.locks.lock("apt", ttl=60, mode="shared", owner=left).acquire).result()
        assert f"revoked the lease of '{left}' on 'apt'" in world.skipped(stale_lock_sensor(grace=0))
        held = world.locks.inspect("apt")
        assert held is not None
        assert {one.owner: one.revoked_by is not None for one in held.readers} == {left: True, other: False}
        assert lives.renew() > 0
        dead.release()


def test_the_permit_of_an_ended_run_is_revoked_and_no_other(world: World):
    left, other = (names.step_owner(world.run(is_over=is_over), "one", 0) for is_over in (True, False))
    with lockstead.Semaphore(f"{world.url}#apt", 2, owner=other).hold() as lives:
        dead = lockstead.Semaphore(f"{world.url}#apt", 2, owner=left).acquire(0)
        assert f"revoked the lease of '{left}' on 'apt'" in world.skipped(stale_lock_sensor(grace=0))
        assert lives.renew() > 0
        with pytest.raises(LeaseLost):
            dead.renew()
        dead.release()


def test_a_live_holder_of_an_ended_run_is_revoked_not_removed(world: World):
    run = world.run(is_over=True)
    owner = names.step_owner(run, "one", 0)
    lease = world.locks.lock("apt", ttl=4, owner=owner).acquire()
    told = world.skipped(stale_lock_sensor(grace=0))
    assert told == f"revoked the lease of '{owner}' on 'apt': run {run} ended FAILURE and left it locked"
    assert world.locks.inspect("apt") is not None
    until(lambda: not lease.is_held)
    assert lease.lost_reason is LossReason.REVOKED
    lease.release()


def test_who_is_gone_is_removed_before_its_lease_runs_out(world: World):
    run = world.run(is_over=True)
    janitor = stale_lock_sensor(grace=0)
    with world.held_by(run, ttl=60.0) as process:
        began_at = time.monotonic()
        process.kill()
        process.wait()
        until(lambda: "removed" in world.skipped(janitor))
        assert world.locks.inspect("apt") is None
        assert 15.0 <= time.monotonic() - began_at < 59.0
    (entry,) = world.locks.lock("apt").history()[-1:]
    assert entry.by == "dagster:lockstead_janitor"
    assert entry.what == "removed"


def test_what_is_no_business_of_the_janitors_is_left_alone(world: World):
    owners = {
        "begun": names.run_owner(world.run()),
        "elsewhere": names.run_owner("00000000-0000-0000-0000-000000000000"),
        "foreign": f"airflow:{world.run(is_over=True)}",
    }
    leases = [world.locks.lock(key, ttl=60, owner=owner).acquire() for key, owner in owners.items()]
    assert world.skipped(stale_lock_sensor(grace=0)) == "2 locks are held by runs, none of which has ended"
    recent = world.locks.lock("recent", ttl=60, owner=names.run_owner(world.run(is_over=True))).acquire()
    assert world.skipped(stale_lock_sensor(grace=60)) == "3 locks are held by runs, none of which has ended"
    assert all(one.revoked_by is None for one in world.locks.list())
    for lease in (*leases, recent):
        lease.release()


def test_it_is_revoked_once(world: World):
    lease = world.locks.lock("apt", ttl=60, owner=names.run_owner(world.run(is_over=True))).acquire()
    janitor = stale_lock_sensor(grace=0)
    assert "revoked" in world.skipped(janitor)
    assert "revoked" not in world.skipped(janitor)
    assert len(world.locks.lock("apt").history()) == 1
    lease.release()


def test_gone_means_local_without_a_process_and_without_renewals(world: World):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with world.locks.lock("apt", ttl=60).hold():
        held = world.locks.inspect("apt")
    assert held is not None
    assert not is_gone(held)
    dead = replace(held, pid=gone.pid, age=30.0)
    assert is_gone(dead)
    assert held.host == socket.gethostname()
    for alive in (
        {"pid": os.getpid()},
        {"pid": None},
        {"age": 1.0},
        {"age": None},
        {"host": "elsewhere"},
        {"ttl": None},
    ):
        assert not is_gone(replace(dead, **alive))  # type: ignore[arg-type]
