"""What a notifier says when a task failed for its lock: who holds it now. It says it in the log.

A callback's place has little time and no lock: one look, no wait, and a store that is silent is not a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_lockstead import compat, connection, grants
from airflow_lockstead.spec import WHICH, LockSpec
from airflow_lockstead.templates import RendersLock


class LockNotifier(RendersLock, compat.BaseNotifier):  # type: ignore[misc]  # a class that is found when Airflow is there
    """Tells who holds a lock, in a callback (`on_failure_callback`, `on_retry_callback`, ...).

    :param lock: the lock's URL, as in `gs://bucket/locks#apt`. (templated)
    :param key: instead of `lock`: the lock's name in the store of a connection. (templated)
    :param lockstead_conn_id: the connection of the type lockstead that names the store. (templated)
    :param message: a template that may also say `{{ lock_state }}`: who holds the lock, since when and why.
    :param tell: is called with the text: by default it goes to the log; pass what sends it to your chat.
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
        """Look who holds the lock, and tell."""
        ti = context.get("ti") or context.get("task_instance")
        # a callback of a whole DAG may be told of no task
        names = {name: getattr(ti, name, None) or context.get(name, "?") for name in ("dag_id", "task_id", "run_id")}
        context.update(lock_state=self._state(), **names)
        text = str(self.render_template(self.message, context, self.get_template_env(dag=context.get("dag"))))
        # the text is not a format: a run may be called 100%
        self.tell(text) if self.tell else self.log.warning("%s", text)

    def _state(self) -> str:
        spec = LockSpec(
            lock=self.lock, key=self.key, conn_id=self.lockstead_conn_id if self.key else None, keeper=False
        )
        try:
            lock = connection.lock(spec)
            held = lock.inspect()
        except Exception as error:  # noqa: BLE001 - a callback tells what it can
            return f"nobody can tell who holds the lock: {error}"
        if held is None:
            return f"nobody holds {lock.key!r}"
        return grants.waiting(lock.key, held).removeprefix("waiting for ").replace(", who holds", " holds", 1)
