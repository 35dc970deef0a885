"""Names of Airflow's task instances in a lock's records and in URLs of the UI, and which tasks a body waits for. Pure.

Must not know Airflow's classes: a task instance is any object with these five attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote

PREFIX: Final = "airflow:"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one task of one run. map_index is -1 for a task that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int

    @classmethod
    def of(cls, ti: Any) -> Self:
        """Return the attempt of a task instance of any Airflow version."""
        return cls(ti.dag_id, ti.run_id, ti.task_id, index_of(ti), ti.try_number)

    def acquirer(self, scope: str) -> str:
        """Return the owner name for acquiring. It is the same for all tries, so that a retry takes over the lease of an
        earlier try.

        scope: the full id of the lock's group or task.
        """
        return f"{self._below(scope)}{self._index}".rstrip("/")

    @property
    def place(self) -> dict[str, Any]:
        """Return the identity of the task in its run, without the try: dag_id, run_id, task_id, map_index."""
        names = ("dag_id", "run_id", "task_id", "map_index")
        return {name: getattr(self, name) for name in names}

    @property
    def member(self) -> str:
        """Return the name of this try as a member of a lease."""
        return f"{self._below(self.task_id)}{self._index}{self.try_number}"

    def works_before(self, upstream: Iterable[str]) -> Callable[[str], bool]:
        """Return a filter, by owner, for the members that this body waits for: direct upstream tasks and earlier tries.

        If a user marks a running task, its downstream tasks start while its body still runs.
        """
        others = tuple(self._below(task_id) for task_id in upstream)
        own = f"{self._below(self.task_id)}{self._index}"
        this = self.member

        def is_before(owner: str) -> bool:
            return owner != this and owner.startswith((own, *others))

        return is_before

    @property
    def _index(self) -> str:
        return f"{self.map_index}/" if self.map_index >= 0 else ""

    def _below(self, name: str) -> str:
        text = f"{PREFIX}{self.dag_id}/{self.run_id}/{name}/"
        # a user may choose any run id, but an owner has to be printable
        return "".join(one if one.isprintable() else "?" for one in text)


def index_of(ti: Any) -> int:
    """Return the map index of a task instance; -1 for a task that is not mapped, where Airflow 3 may have None."""
    return -1 if ti.map_index is None else int(ti.map_index)


def log_of(dag_id: str, run_id: str, task_id: str, map_index: int | None, *, is_new: bool) -> str:
    """Return the path of a task's log in Airflow's UI. is_new: Airflow 3 or later."""
    dag, run, task = (quote(name, safe="") for name in (dag_id, run_id, task_id))
    is_mapped = map_index is not None and map_index >= 0
    if is_new:
        return f"/dags/{dag}/runs/{run}/tasks/{task}" + (f"/mapped/{map_index}" if is_mapped else "")
    mapped = f"&map_index={map_index}" if is_mapped else ""
    return f"/dags/{dag}/grid?dag_run_id={run}&task_id={task}{mapped}&tab=logs"
