"""What the tasks of an Airflow are heard to say of their lock, in its log files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.publishing.demo.on_airflow import LOST
from examples.publishing.demo.task_logs import TaskLogs

WHY = "the lease of 'airflow:d/r/yum/ab' on 'yum' is lost, EXPIRED: it was not renewed in time"
STOPPED = f"lease lost: key 'yum', holder 'airflow:d/r/yum/ab', token 7, reason EXPIRED: {WHY}; the body was stopped"
GONE = STOPPED.replace(f"{WHY}; the body was stopped", f"it was gone before this task began ({WHY}); clear it")


@pytest.mark.parametrize(("failure", "why"), [(STOPPED, WHY), (GONE, None)], ids=["at-work", "before-it-began"])
def test_a_lost_lease_is_reported_even_without_an_event(failure: str, why: str | None, tmp_path: Path) -> None:
    log = tmp_path / "dag_id=d" / "run_id=airflow" / "task_id=yum.commit" / "attempt=1.log"
    log.parent.mkdir(parents=True)
    caused = [{"exc_type": "LeaseLost", "exc_value": failure}, {"exc_type": "LeaseLost", "exc_value": WHY}]
    lines = ({"event": "Executing"}, {"event": "Task failed with exception", "error_detail": caused}, "no line", None)
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    heard = TaskLogs(tmp_path).news()
    assert [(one.run, one.task, one.attempt, one.text) for one in heard] == [("airflow", "yum.commit", 1, failure)]
    found = LOST.match(heard[0].text)
    assert (found and found["why"]) == why
