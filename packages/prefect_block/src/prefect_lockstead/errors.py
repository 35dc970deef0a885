"""What a section is refused with, besides what lockstead itself raises. Must not know Prefect."""

from __future__ import annotations

from lockstead import LocksteadError, PreviousLeaseUnclean

__all__ = ["AlreadyHeld", "PreviousLeaseUnclean"]


class AlreadyHeld(LocksteadError):  # noqa: N818 - the state, as in the core's errors
    """A lock was asked for where it is held already: the work would wait for itself. Fix the code."""
