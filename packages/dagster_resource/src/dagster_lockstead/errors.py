"""The Failures of a step because of its lock, which Dagster does not retry, each with one clear line."""

from __future__ import annotations

from typing import Any

import dagster

from dagster_lockstead import names
from lockstead import LeaseLost
from lockstead import PreviousLeaseUnclean as CorePreviousLeaseUnclean


class LockFailure(dagster.Failure):
    """Base class of the failures of a step because of its lock: never retried."""

    def __init__(self, description: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(description=description, metadata=metadata or {}, allow_retries=False)


class StepLostLease(LockFailure):
    """The lease was lost while the step worked under it, or its run had ended. `__cause__`: `lockstead.LeaseLost`."""


class PreviousLeaseUnclean(LockFailure, CorePreviousLeaseUnclean):
    """The previous lease did not end cleanly, and on_unclean="fail": repair what it left first."""


class InvalidLockConfig(LockFailure):
    """The lock's parameters in a step are invalid: an empty key, for example, or a missing resource. Fix the code."""


def lost(error: LeaseLost) -> StepLostLease:
    """Return the failure for a loss; key, holder, token and reason are in its metadata."""
    said: dict[str, Any] = {
        names.KEY: error.key,
        names.HOLDER: error.holder,
        names.REASON: error.reason.value,
    }
    if error.token is not None:
        said[names.TOKEN] = error.token
    made = StepLostLease(f"LeaseLost: {error}", said)
    made.__cause__ = error
    return made
