"""Readers on a real Airflow: groups of two runs overlap, and a run that writes waits for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.airflow.scenes import Scenes, Stage
from tests.airflow.test_body import NEWEST
from tests.servers.airflow import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

MODES = """
def put(name, mode):
    with DAG(name, schedule=None, start_date=datetime(2024, 1, 1)) as dag:
        with LockedTaskGroup("section", lock=LOCK, ttl="5m", mode=mode):
            @task
            def first(run_id=None):
                note("in", run=run_id)
                while mode == "shared" and not os.path.exists(SIGN):
                    time.sleep(0.1)
                work(f"{run_id}/first")

            @task
            def second(run_id=None):
                work(f"{run_id}/second")

            first() >> second()
    return dag

readers, writer = put(DAG_ID, "shared"), put(DAG_ID + "_writer", "exclusive")
"""


def modes(stage: Stage) -> dict[str, Any]:
    """Two runs read together; a run that writes waits for both, whose second tasks begin while it waits."""
    dag_id = stage.put(MODES)
    readers = [stage.airflow.trigger(dag_id, f"reader-{number}") for number in range(2)]
    stage.until(lambda: len(stage.notes.lines("in")) == 2, "two readers do not overlap")
    writer = stage.airflow.trigger(f"{dag_id}_writer", "writer")
    lock = stage.lock()
    stage.until(lambda: (held := lock.inspect()) is not None and held.wanted_by is not None, "no writer waits")
    stage.file.touch()
    return {
        "ended": [stage.ended(run) for run in (*readers, writer)],
        "free": stage.is_free(),
        "stays": stage.notes.stays(),
    }


def played(airflow: Airflow) -> tuple[Callable[[Stage], Any], ...]:
    """Return the scene, on the newest Airflow: nothing of it differs on another."""
    return (modes,) if airflow.version.name == NEWEST else ()


@pytest.mark.usefixtures("newest")
def test_readers_overlap_and_a_writer_waits_for_all_their_tasks(scenes: Scenes) -> None:
    seen = scenes.seen(modes)
    assert (set(seen["ended"]), seen["free"]) == ({"success"}, True)
    names = [stay.name.partition("-")[0].partition("/")[0] for stay in seen["stays"]]
    assert names == ["reader"] * 4 + ["writer"] * 2
    tokens = [stay.token for stay in seen["stays"]]
    assert len(set(tokens[:4])) == len(set(tokens[4:])) == 1
    assert tokens[0] < tokens[4]
