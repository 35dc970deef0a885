"""The real Airflow that the other tests of this folder stand on does what they rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.airflow import Airflow
from tests.servers.airflow_parts import ROOT
from tests.servers.marked import MARK, is_alive

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

HEAD = """
import time
from datetime import datetime, timedelta
try:
    from airflow.sdk import BaseOperator, DAG, task
    from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
except ImportError:
    from airflow import DAG
    from airflow.decorators import task
    from airflow.models import BaseOperator
    from airflow.triggers.temporal import TimeDeltaTrigger
"""

SLEEPER = (
    HEAD
    + """
with DAG("{dag}", schedule=None, start_date=datetime(2024, 1, 1)):
    @task
    def sleep():
        print("awake")
        time.sleep(600)

    @task
    def after():
        print("after")

    sleep() >> after()
"""
)


def until(condition, seconds=60.0):
    """Wait for a condition of processes."""
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_a_value_passes_between_tasks_and_output_is_logged(airflow: Airflow):
    airflow.put(
        "values",
        HEAD
        + """
with DAG("values", schedule=None, start_date=datetime(2024, 1, 1)):
    @task
    def one():
        return "a word"

    @task
    def two(word, number):
        print(f"{word} and {number}")

    two.partial(word=one()).expand(number=[7, 8])
""",
    )
    run = airflow.trigger("values")
    assert airflow.finished(run) == "success"
    assert "a word and 8" in airflow.task_log(run, "two", map_index=1)


def test_a_deferred_task_comes_back_from_the_triggerer(airflow: Airflow):
    airflow.put(
        "deferred",
        HEAD
        + """
class Wait(BaseOperator):
    def execute(self, context):
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=3)), method_name="resumed")

    def resumed(self, context, event):
        print("resumed")

with DAG("deferred", schedule=None, start_date=datetime(2024, 1, 1)):
    # one that is resumed within a moment may be failed by the executor's stale event
    Wait(task_id="wait", retries=3, retry_delay=timedelta(seconds=1))
""",
    )
    run = airflow.trigger("deferred")
    airflow.reaches(run, "wait", "deferred")
    assert airflow.finished(run) == "success"
    assert any("resumed" in airflow.task_log(run, "wait", attempt=number) for number in range(1, 5))


def test_marking_a_task_ends_its_body_and_clearing_reruns_it(airflow: Airflow):
    airflow.put("marked", SLEEPER.replace("{dag}", "marked"))
    run = airflow.trigger("marked")
    body = airflow.body_of(run, "sleep")
    airflow.mark(run, "sleep", "success")
    until(lambda: not is_alive(body))
    assert airflow.finished(run) == "success"

    assert airflow.clear(run, ["sleep"], downstream=True) == ["after", "sleep"]
    assert airflow.body_of(run, "sleep") != body
    airflow.mark_run(run, "failed")
    airflow.reaches(run, "sleep", "failed", "skipped")


def test_a_killed_body_fails_its_task(airflow: Airflow):
    airflow.put("killed", SLEEPER.replace("{dag}", "killed"))
    run = airflow.trigger("killed")
    body = airflow.kill_body(run, "sleep")
    until(lambda: not is_alive(body))
    assert airflow.finished(run) == "failed"


def test_a_killed_supervisor_is_not_its_body(airflow: Airflow):
    airflow.put("orphaned", SLEEPER.replace("{dag}", "orphaned"))
    run = airflow.trigger("orphaned")
    # a body that speaks when nobody listens any more dies of that
    airflow.until(lambda: "awake" in airflow.task_log(run, "sleep"), "it does not sleep")
    supervisor, body = airflow.kill_supervisor(run, "sleep")
    assert supervisor != body
    assert not is_alive(supervisor)
    assert body in airflow.pids()
    os.kill(body, signal.SIGKILL)
    airflow.mark_run(run, "failed")


def test_a_killed_triggerer_starts_again(airflow: Airflow):
    triggerer = airflow.part("triggerer")
    triggerer.kill()
    assert not triggerer.is_running
    triggerer.start()
    assert triggerer.is_running


def test_whatever_was_started_ends_with_a_test_that_is_killed():
    code = """
import os, subprocess, sys, time
from tests.servers.marked import MARK, Watcher
Watcher("only-here")
child = subprocess.Popen(["setsid", "sleep", "600"], env={**os.environ, MARK: "only-here"})
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            child = int(started.stdout.readline())
            # for a moment within an exec a process has no environment yet
            until(lambda: f"{MARK}=only-here".encode() in Path(f"/proc/{child}/environ").read_bytes())
            assert is_alive(child)
        finally:
            # else leaving the block would wait for it
            started.kill()
    until(lambda: not is_alive(child))
