"""A notifier for tasks that failed because of their lock: it reports who holds the lock now, by default in the log.

A callback has little time and no lock: it reads once, does not wait, and does not fail if the store does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_lockstead import compat, connection
from airflow_lockstead.spec import WHICH, LockSpec
from airflow_lockstead.templates import RendersLock
from lockstead.wrapping.messages import is_held


class LockNotifier(RendersLock, compat.BaseNotifier):  # type: ignore[misc]  # the base class is found at run time
    """Reports who holds a lock, in a callback (`on_failure_callback`, `on_retry_callback`, ...).

    :param lock: the lock's URL, as in `gs://bucket/locks#apt`. (templated)
    :param key: instead of `lock`: the lock's name in the store of a connection. (templated)
    :param lockstead_conn_id: the connection of the type lockstead that names the store. (templated)
    :param message: a template that may contain `{{ lock_state }}`: who holds the lock, since when and why.
    :param tell: a function that is called with the text, for example to send it to a chat; by default it is logged.
    """

    template_fields: Sequence[str] = WHICH

    def __init__(
        self,
        *,
        lock: str | None = None,
        key: str | None = None,
        lockstead_conn_id: str | None = None,
        message: str = "{{ dag_id }}.{{ task_id }} of {{ run_id }}: {{ lock_state }}",
        tell: Any = None,
    ) -> None:
        super().__init__()
        spec = LockSpec(lock=lock, key=key, conn_id=lockstead_conn_id, keeper=False)
        lock, key, lockstead_conn_id = spec.lock, spec.key, spec.conn_id
        self.lock = lock
        self.key = key
        self.lockstead_conn_id = lockstead_conn_id
        self.message = message
        self.tell = tell

    def notify(self, context: Any) -> None:
        """Read who holds the lock, and report it."""
        ti = context.get("ti") or context.get("task_instance")
        # the callback of a whole DAG may have no task instance
        names = {name: getattr(ti, name, None) or context.get(name, "?") for name in ("dag_id", "task_id", "run_id")}
        context.update(lock_state=self._state(), **names)
        text = str(self.render_template(self.message, context, self.get_template_env(dag=context.get("dag"))))
        # the text must not be a format string: a run id may contain '%'
        self.tell(text) if self.tell else self.log.warning("%s", text)

    def _state(self) -> str:
        spec = LockSpec(
            lock=self.lock, key=self.key, conn_id=self.lockstead_conn_id if self.key else None, keeper=False
        )
        try:
            lock = connection.lock(spec)
            held = lock.inspect()
        except Exception as error:  # noqa: BLE001 - a callback reports the error instead
            return f"the holder of the lock is unknown: {error}"
        return f"{lock.key!r} is free" if held is None else is_held(lock.key, held)
