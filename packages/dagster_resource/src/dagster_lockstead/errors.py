"""What a step fails with for its lock's sake: Failures that Dagster does not retry, with one clear line."""

from __future__ import annotations

from typing import Any

import dagster

from dagster_lockstead import names
from lockstead import LeaseLost
from lockstead import PreviousLeaseUnclean as CorePreviousLeaseUnclean


class LockFailure(dagster.Failure):
    """Base of what ends a step for the sake of its lock: never retried."""

    def __init__(self, description: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(description=description, metadata=metadata or {}, allow_retries=False)


class StepLostLease(LockFailure):
    """The lease was lost while the step worked under it, or its run was over. `__cause__`: `lockstead.LeaseLost`."""


class PreviousLeaseUnclean(LockFailure, CorePreviousLeaseUnclean):
    """The lease before did not end cleanly, and on_unclean="fail": repair what it left, then say so."""


class InvalidLockConfig(LockFailure):
    """What the step says of its lock cannot be: a key that is empty, say, or a resource that is none. Fix the code."""


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
