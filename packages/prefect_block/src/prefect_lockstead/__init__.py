"""Locks for Prefect: a lease around a flow or a task, with a clean abort when it is lost; blocks, and a lock manager.

    @flow
    @locked("gs://my-bucket/locks/apt-{dist}", ttl="5m")
    def publish(dist: str): ...

Every name is imported on first use: naming a lock imports neither Prefect nor a client library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockstead import LeaseLost, NotAcquired
    from prefect_lockstead.attaching import attached
    from prefect_lockstead.blocks import LocksteadLock, LocksteadStore
    from prefect_lockstead.decorator import locked
    from prefect_lockstead.errors import AlreadyHeld, PreviousLeaseUnclean
    from prefect_lockstead.manager import LocksteadLockManager
    from prefect_lockstead.spec import LockSpec

__version__ = "0.1.0"

__all__ = [
    "AlreadyHeld",
    "LeaseLost",
    "LockSpec",
    "LocksteadLock",
    "LocksteadLockManager",
    "LocksteadStore",
    "NotAcquired",
    "PreviousLeaseUnclean",
    "__version__",
    "attached",
    "locked",
]

_PLACES: Final = {
    "AlreadyHeld": "prefect_lockstead.errors",
    "LeaseLost": "lockstead",
    "LockSpec": "prefect_lockstead.spec",
    "LocksteadLock": "prefect_lockstead.blocks",
    "LocksteadLockManager": "prefect_lockstead.manager",
    "LocksteadStore": "prefect_lockstead.blocks",
    "NotAcquired": "lockstead",
    "PreviousLeaseUnclean": "prefect_lockstead.errors",
    "attached": "prefect_lockstead.attaching",
    "locked": "prefect_lockstead.decorator",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
