"""How scenes on one Airflow are played beside one another, each in a thread: what they wait for takes long.

A scene is a function of a `Stage`; what it returns is what a test looks at. Must not know what a scene is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lockstead
from tests.airflow.sections import Notes
from tests.servers.airflow import Airflow, Run

PATIENCE = 800.0
"""Seconds for a run: many of them share two cores."""


@dataclass(frozen=True)
class Stage:
    """What a scene has for itself: DAG ids that begin with its name, a lock, and notes of the bodies."""

    airflow: Airflow
    name: str
    notes: Notes

    def put(self, text: str, dag_id: str | None = None, **more: object) -> str:
        """Put a DAG there, its id in place of `DAG_ID`; the id."""
        dag_id = dag_id or self.name
        self.airflow.put(dag_id, self.notes.dag(text.replace("DAG_ID", repr(dag_id)), **more))
        return dag_id

    def lock(self) -> lockstead.Lock:
        """Name the scene's lock for the test itself."""
        return lockstead.Lock(self.notes.url, ttl=60, owner="the test", purpose="being in the way")

    def is_free(self, url: str | None = None) -> bool:
        """Return whether nobody holds the lock."""
        return lockstead.Lock(url or self.notes.url).inspect() is None

    def ended(self, run: Run) -> str:
        """Wait for the end of a run; its state, and with a failure what its tasks came to."""
        return self.airflow.finished(run, PATIENCE)

    def until(self, condition: Callable[[], Any], otherwise: str) -> Any:
        """Wait for a condition."""
        return self.airflow.until(condition, otherwise, PATIENCE)

    @property
    def file(self) -> Path:
        """Return a file that bodies may wait for; DAGs know it as `SIGN`."""
        return Path(f"{self.notes.path}.sign")

    def said(self, run: Run, task_id: str) -> str:
        """Return what a task and its triggers said, in all attempts."""
        folder = self.airflow.home / "logs" / f"dag_id={run.dag_id}" / f"run_id={run.run_id}" / f"task_id={task_id}"
        return "\n".join(path.read_text("utf-8", errors="replace") for path in sorted(folder.rglob("*.log*")))


class Scenes:
    """Plays of several scenes that began at once."""

    def __init__(self, airflow: Airflow, scenes: Iterable[Callable[[Stage], Any]]) -> None:
        chosen = {scene.__name__: scene for scene in scenes}
        self._threads = ThreadPoolExecutor(len(chosen))
        self._plays: dict[str, Future[Any]] = {}
        for name, scene in chosen.items():
            folder = airflow.home / "scenes" / name
            folder.mkdir(parents=True)
            self._plays[name] = self._threads.submit(scene, Stage(airflow, name, Notes(folder, name)))

    def seen(self, scene: Callable[[Stage], Any]) -> Any:
        """Wait for the end of a scene and give what it returned, or raise what it raised."""
        return self._plays[scene.__name__].result()

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
