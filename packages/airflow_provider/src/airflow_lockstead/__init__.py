"""Locks for Airflow: one lease over the tasks of a group, on any number of workers, with a clean abort when it is lost.

    with LockedTaskGroup("publish", lock="gs://my-bucket/locks#apt", ttl="5m"):
        build() >> sign() >> upload()

Every name is imported on first use, so that a DAG file imports only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_lockstead.decorators import locked
    from airflow_lockstead.errors import LeaseLost, NotAcquired
    from airflow_lockstead.group import LockedTaskGroup, locked_task_group
    from airflow_lockstead.hook import LocksteadHook
    from airflow_lockstead.notifications import LockNotifier
    from airflow_lockstead.operators import AcquireLockOperator, KeepLockOperator, ReleaseLockOperator
    from airflow_lockstead.sensors import LockSensor
    from airflow_lockstead.spec import LockSpec

__version__ = "0.1.0"

__all__ = [
    "AcquireLockOperator",
    "KeepLockOperator",
    "LeaseLost",
    "LockNotifier",
    "LockSensor",
    "LockSpec",
    "LockedTaskGroup",
    "LocksteadHook",
    "NotAcquired",
    "ReleaseLockOperator",
    "__version__",
    "locked",
    "locked_task_group",
]

_PLACES: Final = {
    "AcquireLockOperator": "operators",
    "KeepLockOperator": "operators",
    "LeaseLost": "errors",
    "LockNotifier": "notifications",
    "LockSensor": "sensors",
    "LockSpec": "spec",
    "LockedTaskGroup": "group",
    "LocksteadHook": "hook",
    "NotAcquired": "errors",
    "ReleaseLockOperator": "operators",
    "locked": "decorators",
    "locked_task_group": "group",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"airflow_lockstead.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
