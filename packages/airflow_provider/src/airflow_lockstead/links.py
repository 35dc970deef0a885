"""The link "Who holds the lock": to the log of the acquire task, in Airflow itself.

The log says which holder is waited for, since when and why, and later with which token the lock was acquired; lockstead
has no page of its own. Only the acquire and release tasks have the link: on the members it would change their
serialized form. No request is sent to the store: some versions compute links at every click, and a thousand waiters
would each send one.
"""

from __future__ import annotations

from typing import Any

from airflow_lockstead import compat
from airflow_lockstead.names import log_of


class HolderLink(compat.BaseOperatorLink):  # type: ignore[misc]  # the base class is found at run time
    """The link to the log of the acquire task."""

    name = "Who holds the lock"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of the log."""
        task_id = getattr(operator, "acquire_id", None) or ti_key.task_id
        there = log_of(ti_key.dag_id, ti_key.run_id, task_id, ti_key.map_index, is_new=compat.HAS_TASK_SDK)
        return compat.site_path() + there
