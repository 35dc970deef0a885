"""What a section is refused with, besides what lockstead itself raises. Must not know Prefect."""

from __future__ import annotations

from lockstead import LocksteadError


class AlreadyHeld(LocksteadError):  # noqa: N818 - the state, as in the core's errors
    """A lock was asked for where it is held already: the work would wait for itself. Fix the code."""


class PreviousLeaseUnclean(LocksteadError):  # noqa: N818 - the field's word
    """The holder before did not end cleanly, and on_unclean="fail": repair what it left, then say so."""
