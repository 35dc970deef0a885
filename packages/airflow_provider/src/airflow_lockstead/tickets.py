"""Storage of a lease's ticket between the tasks of a run: in the XCom of the task that acquired it."""

from __future__ import annotations

from typing import Any, Final

from airflow_lockstead.grants import Grant
from airflow_lockstead.names import index_of

OWN_KEY: Final = "lockstead"
"""The XCom key of the ticket of a task with a lock of its own, for when it is resumed; a new try starts without it."""


def grant_of(ti: Any, acquire_id: str, *, mapped: bool | None = None) -> Grant | None:
    """Return the grant of an acquire task; None if it acquired nothing.

    mapped: whether it is in a mapped group, with a lease for each index; None if that is not known.
    """
    own = index_of(ti)
    # in Airflow 3.0 a mapped task gets no XCom of an unmapped task unless it gives the index
    indexes = {True: (own,), False: (-1,), None: (own,) if own < 0 else (own, -1)}[mapped]
    for index in indexes:
        said = ti.xcom_pull(task_ids=acquire_id, key="return_value", map_indexes=index)
        if said:
            return Grant.read(said)
    return None


def own_grant(ti: Any) -> Grant | None:
    """Return the grant that this task stored before it deferred; None if there is none."""
    said = ti.xcom_pull(task_ids=ti.task_id, key=OWN_KEY, map_indexes=index_of(ti))
    return Grant.read(said) if said else None


def note_own(ti: Any, grant: Grant) -> None:
    """Store the grant of this task's own lease."""
    ti.xcom_push(key=OWN_KEY, value=grant.xcom)
