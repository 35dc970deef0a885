"""The death of a triggerer costs neither a lease that it keeps nor a place in the wait, on a real Airflow."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import lockstead
from tests.airflow.sections import Notes
from tests.servers.airflow import Airflow, Run

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

VERSIONS = ("3.3",)
"""Those whose ways to end a task differ; the others would say the same again."""

DAG = """
with DAG("kept", schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("section", lock=LOCK, ttl=240):
        @task(retries=1, retry_delay=timedelta(hours=1))
        def first(run_id=None):
            work(f"{run_id}/first")
            if run_id == "holds":
                raise RuntimeError("in the hour until the next try nobody but the keeper renews")

        @task
        def second(run_id=None):
            work(f"{run_id}/second")

        first() >> second()
"""


def test_a_killed_triggerer_loses_no_lease_and_no_waiter(airflow: Airflow, tmp_path: Path) -> None:
    if airflow.version.name not in VERSIONS:
        pytest.skip("the same as on the versions that it runs on")
    notes = Notes(tmp_path, "kept")
    airflow.put("kept", notes.dag(DAG))
    lock = lockstead.Lock(notes.url)
    holds = airflow.trigger("kept", "holds")
    airflow.reaches(holds, "section.first", "up_for_retry")
    airflow.reaches(holds, "section.lock_keep", "deferred")
    waits = [airflow.trigger("kept", f"waits-{number}") for number in (1, 2)]
    for run in waits:
        airflow.reaches(run, "section.lock_acquire", "deferred")
    airflow.until(lambda: len(in_charge(airflow)) == 1 and len(owned(airflow)) == 3, "not all triggers run")
    began = lock.inspect()
    assert began is not None

    triggerer = airflow.part("triggerer")
    for number in (signal.SIGKILL, signal.SIGTERM):
        [before] = in_charge(airflow)
        assert triggerer.process is not None
        triggerer.process.send_signal(number)
        if number == signal.SIGKILL:
            triggerer.kill()  # its child, too
        triggerer.process.wait(60)
        # one that was told to end may renew until it has
        last = lock.inspect()
        triggerer.start()
        airflow.until(lambda old=before: set(owned(airflow)) - {old} and old not in owned(airflow), "it is not back")
        airflow.until(lambda old=last: renewed_since(lock, old), "the keeper does not renew")
        found = lock.inspect()
        assert found is not None
        assert found.holder == began.holder
        assert [airflow.task(run, "section.lock_acquire").state for run in waits] == ["deferred", "deferred"]

    airflow.mark(holds, "section.first", "success")
    assert [airflow.finished(run) for run in (holds, *waits)] == ["success"] * 3
    assert notes.overlaps() == []
    assert notes.tokens_increase()
    assert len(notes.stays()) == 6
    tokens = [stay.token for stay in notes.stays()]
    assert tokens[0] == tokens[1] == began.token
    assert len(set(tokens)) == 3
    assert lock.inspect() is None


def renewed_since(lock: lockstead.Lock, old: lockstead.LockInfo | None) -> bool:
    now = lock.inspect()
    return bool(now and old and (now.expires_epoch or 0.0) > (old.expires_epoch or 0.0))


def owned(airflow: Airflow) -> list[int]:
    """Return the triggerer in charge of each trigger of our DAG."""
    return [
        row[0]
        for row in airflow.asked(
            "SELECT tr.triggerer_id FROM trigger tr JOIN task_instance ti ON ti.trigger_id = tr.id"
            " WHERE ti.dag_id = 'kept' AND tr.triggerer_id IS NOT NULL"
        )
    ]


def in_charge(airflow: Airflow) -> set[int]:
    return set(owned(airflow))


MISSED = """
OF_RUN = LOCK + "-{{ run_id }}"

with DAG("missed", schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("section", lock=OF_RUN, ttl=90):
        @task
        def first(run_id=None):
            work(run_id)
        first()
    LockSensor(task_id="free", lock=OF_RUN, poke_interval=1)
    @task.locked(lock=OF_RUN + "-alone", retries=3, retry_delay=timedelta(seconds=1))
    def alone(run_id=None):
        work(run_id + "/alone")
    alone()
"""
LINE = "no triggerer runs: this task waits until one does (start `airflow triggerer`)"


def test_whoever_waits_without_a_triggerer_says_so_in_one_line(airflow: Airflow, tmp_path: Path) -> None:
    if airflow.version.name not in ("2.10", "3.3"):
        pytest.skip("the one or the other way to see it")
    notes = Notes(tmp_path, "missed")
    airflow.put("missed", notes.dag(MISSED))
    held = [f"{notes.url}-{name}" for name in ("with", "with-alone", "without", "without-alone")]
    leases = [lockstead.Lock(url, ttl=600).acquire(timeout=10) for url in held]
    there = airflow.trigger("missed", "with")
    waiters = ("section.lock_acquire", "free", "alone")
    for name in waiters:
        assert LINE not in said_by(airflow, there, name)
    triggerer = airflow.part("triggerer")
    triggerer.kill()
    try:
        # as its row stands some minutes later
        airflow.asked(
            "UPDATE job SET latest_heartbeat = latest_heartbeat - interval '5 minutes' WHERE job_type = 'TriggererJob'"
        )
        missed, keeps = (airflow.trigger("missed", name) for name in ("without", "keeps"))
        acquires, looks, has_one = (said_by(airflow, missed, name) for name in waiters)
        keeper = said_by(airflow, keeps, "section.lock_keep")
    finally:
        triggerer.start()
    assert f"{LINE}, or set deferrable=False" in acquires
    assert f"{LINE}, or set deferrable=False" in looks
    assert LINE in has_one
    assert f"{LINE}, and nothing renews the lease meanwhile" in keeper
    for lease in leases:
        lease.release()
    assert [airflow.finished(run) for run in (there, missed, keeps)] == ["success"] * 3


def said_by(airflow: Airflow, run: Run, task_id: str) -> str:
    """Return what a task said in the try that deferred: on a busy machine an earlier one may fail before it begins."""
    return airflow.task_log(run, task_id, attempt=airflow.reaches(run, task_id, "deferred").try_number)
