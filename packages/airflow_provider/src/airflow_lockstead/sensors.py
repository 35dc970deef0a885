"""The sensor that waits until a lock is free. It never acquires the lock, so later tasks may find it held again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import lockstead
from airflow_lockstead import compat
from airflow_lockstead.operators import INSTEAD, RETRIES, RETRY_DELAY
from airflow_lockstead.spec import WHICH, LockSpec
from airflow_lockstead.templates import RendersLock
from lockstead.wrapping.locks import keeps_out
from lockstead.wrapping.messages import waiting_for


class LockSensor(RendersLock, compat.BaseSensorOperator):  # type: ignore[misc]  # the base class is found at run time
    """Waits until nobody holds a lock: in the triggerer by default, or poking with deferrable=False.

    timeout, poke_interval, mode and soft_fail are those of every sensor; `lock_mode` is the lock's. Unless retries are
    given, it has those of the acquire operator, regardless of default_args: a stale event of the executor may fail it
    when it is resumed.

    :param lock: the lock's URL, as in `gs://bucket/locks#apt`. (templated)
    :param key: instead of `lock`: the lock's name in the store of a connection. (templated)
    :param lockstead_conn_id: the connection of the type lockstead that names the store. (templated)
    :param lock_mode: "shared" waits until it is free for a reader; other readers then do not count. (templated)
    :param permits: the limit of a semaphore, which is free while a permit is.
    :param deferrable: wait in the triggerer; if False, poke in the worker.
    """

    template_fields: Sequence[str] = (*WHICH, "lock_mode")

    def __init__(
        self,
        *,
        lock: str | None = None,
        key: str | None = None,
        lockstead_conn_id: str | None = None,
        lock_mode: str | None = None,
        permits: int | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", RETRIES)
        kwargs.setdefault("retry_delay", RETRY_DELAY)
        super().__init__(**kwargs)
        self._spec = LockSpec(
            lock=lock, key=key, conn_id=lockstead_conn_id, mode=lock_mode, permits=permits, keeper=False
        )
        lock, key, lockstead_conn_id = self._spec.lock, self._spec.key, self._spec.conn_id
        self.lock = lock
        self.key = key
        self.lockstead_conn_id = lockstead_conn_id
        self.lock_mode = lock_mode
        self.deferrable = deferrable

    @property
    def spec(self) -> LockSpec:
        """Return the lock's spec with the current field values: in a running task, with templates rendered."""
        return self._spec.named({**{name: getattr(self, name) for name in WHICH}, "mode": self.lock_mode})

    def execute(self, context: Any) -> Any:
        """Check once, and defer if the lock is held."""
        from airflow_lockstead import acquiring
        from airflow_lockstead.triggers import FreeTrigger, plain

        if not self.deferrable or compat.runs_inline():
            return super().execute(context)
        if self.poke(context):
            return None
        acquiring.warn_without_triggerer(self.log, INSTEAD)
        gives_up_at = time.time() + self.timeout if self.timeout else None
        self.defer(trigger=FreeTrigger(plain(self.spec), gives_up_at), method_name="woken")
        return None

    def poke(self, context: Any) -> bool:  # noqa: ARG002 - Airflow passes it
        """Return whether the lock is free; a store error other than a refusal counts as held."""
        from airflow_lockstead import connection, errors

        with errors.refusing():
            lock = connection.lock(self.spec)
            try:
                held = lock.inspect()
            except (lockstead.StoreRefused, ValueError, TypeError):
                raise
            except Exception as error:  # noqa: BLE001 - if it cannot be read, the sensor continues to wait until its timeout
                self.log.warning("could not see who holds %r: %s", lock.key, error)
                return False
        if not keeps_out(lock, held):
            self.log.info("%r is free", lock.key)
            return True
        self.log.info("%s", waiting_for(lock.key, held))
        return False

    def woken(self, context: Any, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - Airflow passes it
        """End the task as Airflow's sensors do: succeed, time out, skip or fail."""
        from airflow_lockstead import grants

        match event.get("state"):
            case "free":
                self.log.info("the lock is free")
            case "held":
                message = f"lockstead: still held after {self.timeout:.0f} s: {event.get('message')}"
                if self.soft_fail:
                    self.log.info("%s", message)  # the log of a skip does not have this message
                    raise compat.AirflowSkipException(message)
                raise compat.AirflowSensorTimeout(message)
            case grants.REFUSED:
                raise compat.AirflowFailException(f"lockstead: {event.get('message')}")
            case _:
                raise compat.AirflowException(f"lockstead: {event.get('message')}")
