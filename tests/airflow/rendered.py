"""What the words of a lock are rendered to in an Airflow, for the tests of `rendered`. No Airflow is started.

    python rendered.py FOLDER

Says on its last line, as JSON, what was seen.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

warnings.simplefilter("ignore")

import lockstead  # noqa: E402
from airflow_lockstead import (  # noqa: E402
    AcquireLockOperator,
    KeepLockOperator,
    LockNotifier,
    LockSensor,
    ReleaseLockOperator,
)
from airflow_lockstead.compat import DAG, execute_words  # noqa: E402

HOSTILE = "x?ttl=36500d&owner=me#y%"
DAG_OF_ALL = DAG("d", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC))


class TaskInstance:
    """What the operators need of a task instance: who it is, and XCom."""

    dag_id, run_id, map_index, try_number = "d", "r", -1, 1

    def __init__(self, task_id: str, acquired: dict[str, Any] | None = None) -> None:
        self.task_id = task_id
        self.acquired = acquired

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        return self.acquired if (task_ids, key, map_indexes) == ("a", "return_value", -1) else None


def context(task_id: str = "t", acquired: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    ti = TaskInstance(task_id, acquired)
    return {"ti": ti, "dag": DAG_OF_ALL, "dag_run": SimpleNamespace(conf={"pkg": HOSTILE}), **more}


def lock_of(one: Any, **more: Any) -> str:
    """Render whatever has the words of a lock, as Airflow does before it runs."""
    one.render_template_fields(context(**more))
    return str(one.lock)


def urls(folder: str) -> dict[str, Any]:
    """Insert what is hostile, harmless, or meant to be a whole URL."""
    store = f"sqlite:///{folder}/locks.db"
    told = {
        "key": (f"{store}#pkg-{{{{ dag_run.conf['pkg'] }}}}", {}),
        "setting": (f"{store}#pkg?purpose={{{{ dag_run.conf['pkg'] }}}}", {}),
        "whole": ("{{ url }}", {"url": f"{store}#apt?ttl=90"}),
        "beginning": ("{{ store }}#{{ dag_run.conf['pkg'] }}", {"store": "redis://h:7000/3?prefix=a"}),
        "host": ("redis://{{ host }}/{{ db }}#apt", {"host": "h:7000", "db": 3}),
        "safe": ("redis://h#apt{{ more | safe }}", {"more": "?ttl=90"}),
    }
    with DAG_OF_ALL:
        made = {
            "sensor": LockSensor(task_id="s", lock=told["key"][0]),
            "notifier": LockNotifier(lock=told["key"][0]),
            **{name: AcquireLockOperator(task_id=f"a_{name}", lock=text) for name, (text, _) in told.items()},
        }
    seen = {}
    for name, one in made.items():
        named = lockstead.Lock(lock_of(one, **told.get(name, ("", {}))[1]))
        seen[name] = [named.key, named.settings.ttl, named.settings.owner, named.settings.purpose]
    return seen


def undefined() -> dict[str, str]:
    """Leave out what a template names."""
    with DAG_OF_ALL:
        made = [
            AcquireLockOperator(task_id="u1", lock="gs://b/l#{{ missing }}"),
            AcquireLockOperator(task_id="u2", key="{{ missing }}"),
            LockSensor(task_id="u3", lock="gs://b/l#{{ missing }}"),
        ]
    seen = {}
    for one in made:
        try:
            one.render_template_fields(context())
        except Exception as error:
            seen[one.task_id] = f"{type(error).__name__}: {error}"
    return seen


def renamed(folder: str) -> dict[str, Any]:
    """Let keeper and release render another key than the acquire did."""
    store = f"sqlite:///{folder}/renamed.db"
    template = f"{store}#k-{{{{ ti.task_id }}}}"
    held = lockstead.Lock(f"{store}#k-a", ttl=120, owner="airflow:d/r/a/-1").acquire(5)
    ticket = held.detach()
    acquired = {"ticket": str(ticket), "token": None, "key": ticket.key, "holder": ticket.holder}
    with DAG_OF_ALL:
        keep = KeepLockOperator(task_id="keep", lock=template, acquire_id="a")
        release = ReleaseLockOperator(task_id="release", lock=template, acquire_id="a")
        fixed = ReleaseLockOperator(task_id="fixed", lock=f"{store}#another", acquire_id="a")
    seen: dict[str, Any] = {}
    for one in (fixed, keep, release):
        told = context(one.task_id, acquired)
        one.render_template_fields(told)
        try:
            seen[one.task_id] = one.execute(told, **execute_words(one))
        except BaseException as error:
            seen[one.task_id] = f"{type(error).__name__}: {error}"
            if trigger := getattr(error, "trigger", None):
                seen[one.task_id] = trigger.spec["lock"].rpartition("/")[2]
    return {**seen, "free": lockstead.Lock(f"{store}#k-a").inspect() is None}


def main(folder: str) -> dict[str, Any]:
    logging.disable()
    return {"urls": urls(folder), "undefined": undefined(), "renamed": renamed(folder)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])), flush=True)
