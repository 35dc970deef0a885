"""Errors of this package. Must not import Prefect."""

from __future__ import annotations

from lockstead import LocksteadError, PreviousLeaseUnclean

__all__ = ["AlreadyHeld", "PreviousLeaseUnclean"]


class AlreadyHeld(LocksteadError):  # noqa: N818 - the state, as in the core's errors
    """The code already runs under this lock and would wait for itself. Fix the code."""
