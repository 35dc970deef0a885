"""Acquire, keep and release hand one lease from task to task of a run, and from run to run, on a real Airflow."""

from __future__ import annotations

import time

import pytest

import lockstead
from tests.servers.airflow import Airflow, Run
from tests.servers.marked import is_alive

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

DAG = """
import os
import time
from datetime import datetime, timedelta
try:
    from airflow.sdk import DAG, task
except ImportError:
    from airflow import DAG
    from airflow.decorators import task
from airflow_lockstead.operators import AcquireLockOperator, KeepLockOperator, ReleaseLockOperator
from airflow_lockstead.spec import LockSpec, Section
from airflow_lockstead.wrap import wrap

URL = "{url}"
with DAG("{dag}", schedule=None, start_date=datetime(2024, 1, 1)):
    why = "of {{{{ dag.dag_id }}}}"
    acquire = AcquireLockOperator(task_id="acquire", lock=URL, ttl="{ttl}", purpose=why).as_setup()
    release = ReleaseLockOperator(task_id="release", acquire_id="acquire", lock=URL).as_teardown(setups=acquire)
    if {keeps}:
        keep = KeepLockOperator(task_id="keep", acquire=acquire)

    @task(retries=2, retry_delay=timedelta(seconds=1))
    def work(lockstead=None):
        print(f"works with token {{lockstead.token}}")
        ends_at = time.monotonic() + {works}
        while time.monotonic() < ends_at and not os.path.exists("{enough}"):
            with open("{enough}.beats", "a") as beats:
                print(time.monotonic(), file=beats)
            time.sleep(0.1)
        return lockstead.token

    acquire >> (body := work()) >> release
    wrap(body.operator, Section(LockSpec(lock=URL, ttl="{ttl}", keeper={keeps}), "", "acquire"))
"""


def dag(
    airflow: Airflow, name: str, *, ttl: str = "2m", works: float = 1.0, keeps: bool = True
) -> tuple[str, lockstead.Lock]:
    """Put a DAG with a lock of its own there; the DAG's id, and the lock. Its body also ends with a file `enough`."""
    url = f"sqlite:///{airflow.home / 'locks.db'}#{name}"
    airflow.put(name, DAG.format(dag=name, url=url, ttl=ttl, works=works, keeps=keeps, enough=airflow.home / name))
    return name, lockstead.Lock(url, ttl=60, owner="the test", purpose="being in the way")


def said(airflow: Airflow, run: Run, task_id: str) -> str:
    """Return what a task and its triggers said in all attempts."""
    folder = airflow.home / "logs" / f"dag_id={run.dag_id}" / f"run_id={run.run_id}" / f"task_id={task_id}"
    return "\n".join(path.read_text("utf-8", errors="replace") for path in sorted(folder.rglob("*.log*")))


def test_a_run_defers_until_the_lock_is_free_and_logs_the_holder(airflow: Airflow):
    dag_id, lock = dag(airflow, "waits")
    with lock.hold(timeout=30):
        run = airflow.trigger(dag_id)
        airflow.reaches(run, "acquire", "deferred")
        airflow.until(lambda: "held by 'the test'" in said(airflow, run, "acquire"), "nobody says whom")
        time.sleep(1)
        assert airflow.task(run, "work").state is None
    assert airflow.finished(run) == "success"
    everything = said(airflow, run, "acquire")
    assert "being in the way" in everything
    assert "acquired 'waits' with token" in everything
    assert {one.task_id: one.state for one in airflow.tasks(run)} == dict.fromkeys(
        ("acquire", "keep", "release", "work"), "success"
    )
    assert lock.inspect() is None


def test_a_body_with_a_revoked_lease_fails_for_good_with_details(airflow: Airflow):
    dag_id, lock = dag(airflow, "taken", ttl="20s", works=600, keeps=False)
    run = airflow.trigger(dag_id)
    body = airflow.body_of(run, "work")
    airflow.until(lambda: "works with token" in said(airflow, run, "work"), "it does not work")
    held = lock.inspect()
    assert held is not None
    lock.break_lease(reason="a test takes it away", now=True)
    airflow.reaches(run, "work", "failed", seconds=60)
    # in version 2 it is the body's own process that has written so, and ends after that
    airflow.until(lambda: not is_alive(body), "the body's process lives on")
    assert airflow.finished(run) == "failed"
    told = said(airflow, run, "work")
    for word in ("lease lost: key 'taken'", held.holder, f"token {held.token}", "reason REVOKED"):
        assert word in told
    assert airflow.task(run, "work").try_number == 1
    assert airflow.task(run, "release").state == "success"


def test_a_release_waits_for_a_body_that_was_marked_and_lives_on(airflow: Airflow):
    # version 3 kills the body, and its registration has to expire; version 2 interrupts it, within half a minute
    ttl = "20s" if airflow.version.has_task_sdk else "90s"
    dag_id, lock = dag(airflow, "marked_body", ttl=ttl, works=600, keeps=False)
    run = airflow.trigger(dag_id)
    body = airflow.body_of(run, "work")
    airflow.until(lambda: "works with token" in said(airflow, run, "work"), "it does not work")
    airflow.mark(run, "work", "success")
    assert lock.wait_until_free(300)
    free_at = time.monotonic()
    assert airflow.finished(run) == "success"
    assert lock.inspect() is None
    airflow.until(lambda: not is_alive(body), "the body does not end")
    beats = [float(line) for line in (airflow.home / "marked_body.beats").read_text().splitlines()]
    assert len(beats) > 1
    assert beats[-1] <= free_at, "it worked when the lock was free"
