"""Where the ticket of a lease stands between the tasks of a run: in the XCom of who acquired it."""

from __future__ import annotations

from typing import Any, Final

from airflow_lockstead.grants import Grant
from airflow_lockstead.names import index_of

OWN_KEY: Final = "lockstead"
"""Under which a task with a lock of its own notes the ticket, for when it is resumed; a new try begins without it."""


def grant_of(ti: Any, acquire_id: str, *, mapped: bool | None = None) -> Grant | None:
    """Return what a task acquired; None if it acquired nothing.

    mapped: whether it stands in a mapped group, with a lease for each index; None if that is not known.
    """
    own = index_of(ti)
    # version 3.0 gives a mapped task nothing of one that is not, unless it names the index
    indexes = {True: (own,), False: (-1,), None: (own,) if own < 0 else (own, -1)}[mapped]
    for index in indexes:
        said = ti.xcom_pull(task_ids=acquire_id, key="return_value", map_indexes=index)
        if said:
            return Grant.read(said)
    return None


def own_grant(ti: Any) -> Grant | None:
    """Return what this task noted before it deferred."""
    said = ti.xcom_pull(task_ids=ti.task_id, key=OWN_KEY, map_indexes=index_of(ti))
    return Grant.read(said) if said else None


def note_own(ti: Any, grant: Grant) -> None:
    """Note the ticket of this task's own lease."""
    ti.xcom_push(key=OWN_KEY, value=grant.xcom)
