"""Where "Who holds the lock" leads: to the log of the task that acquires, in Airflow itself.

It says who is waited for, since when and why, and later with which token the lock was acquired; lockstead has no page
of its own to lead to. Only acquire and release carry the link: on the members it would change their serialized
form. No store is asked: some versions ask for links at every click, and a thousand waiters would each ask.
"""

from __future__ import annotations

from typing import Any

from airflow_lockstead import compat
from airflow_lockstead.names import log_of


class HolderLink(compat.BaseOperatorLink):  # type: ignore[misc]  # a class that is found when Airflow is there
    """The log of the task that acquires."""

    name = "Who holds the lock"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the log."""
        task_id = getattr(operator, "acquire_id", None) or ti_key.task_id
        there = log_of(ti_key.dag_id, ti_key.run_id, task_id, ti_key.map_index, is_new=compat.HAS_TASK_SDK)
        return compat.site_path() + there
