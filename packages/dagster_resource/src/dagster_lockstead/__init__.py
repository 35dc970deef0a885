"""Locks for Dagster: a lease around an op, an asset or a whole run, with a clean abort when it is lost.

    @asset
    @locked("apt")
    def repository(): ...

    defs = Definitions(assets=[repository], resources={"lock": LockResource(store="gs://my-bucket/locks")})

Every name is imported on first use, so that naming a lock imports no client library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dagster_lockstead.checks import fencing_token_check
    from dagster_lockstead.component import LockComponent
    from dagster_lockstead.decorator import locked
    from dagster_lockstead.errors import InvalidLockConfig, LockFailure, PreviousLeaseUnclean, StepLostLease
    from dagster_lockstead.leasing import leased
    from dagster_lockstead.resource import LockResource, LockStore
    from dagster_lockstead.sensors import lock_free_sensor, stale_lock_sensor
    from dagster_lockstead.spec import LockSpec
    from lockstead import LeaseLost, NotAcquired

__version__ = "0.1.0"

__all__ = [
    "InvalidLockConfig",
    "LeaseLost",
    "LockComponent",
    "LockFailure",
    "LockResource",
    "LockSpec",
    "LockStore",
    "NotAcquired",
    "PreviousLeaseUnclean",
    "StepLostLease",
    "__version__",
    "fencing_token_check",
    "leased",
    "lock_free_sensor",
    "locked",
    "stale_lock_sensor",
]

_PLACES: Final = {
    "InvalidLockConfig": "dagster_lockstead.errors",
    "LeaseLost": "lockstead",
    "LockComponent": "dagster_lockstead.component",
    "LockFailure": "dagster_lockstead.errors",
    "LockResource": "dagster_lockstead.resource",
    "LockSpec": "dagster_lockstead.spec",
    "LockStore": "dagster_lockstead.resource",
    "NotAcquired": "lockstead",
    "StepLostLease": "dagster_lockstead.errors",
    "PreviousLeaseUnclean": "dagster_lockstead.errors",
    "stale_lock_sensor": "dagster_lockstead.sensors",
    "leased": "dagster_lockstead.leasing",
    "lock_free_sensor": "dagster_lockstead.sensors",
    "locked": "dagster_lockstead.decorator",
    "fencing_token_check": "dagster_lockstead.checks",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
