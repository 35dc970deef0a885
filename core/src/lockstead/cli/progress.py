"""The engine's events that the command line prints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from lockstead import unclean
from lockstead.cli.exits import say
from lockstead.errors import StoreError
from lockstead.events import (
    Acquired,
    Attached,
    CallbackFailed,
    Detached,
    EngineWarning,
    HolderChanged,
    LeaseDropped,
    LockEvent,
    Lost,
    NotGranted,
    Released,
    ReleaseFailed,
    RenewalFailed,
    Renewed,
    Waiting,
)
from lockstead.runtime.engine import duration_text
from lockstead.values import PreviousLease

if TYPE_CHECKING:
    from lockstead.lease import Lease


def warn_of_unclean(key: str, before: PreviousLease) -> None:
    """Print that the previous lease did not end cleanly."""
    found = unclean.last(key, before)
    if found is not None:
        say(f"{found}; check what it left")


def give_back(lease: Lease, *, unused: bool) -> None:
    """Release a lease; print that it was not released. unused: the next holder sees the same previous lease."""
    try:
        lease.release(unused=unused)
    except StoreError as error:
        _say_not_released(lease.key, error)


def _say_not_released(key: str, error: BaseException) -> None:
    say(f"{key!r} was not released; its ttl will free it: {error}")


class ProgressListener:
    """A listener for one lock. Prints progress on a terminal or if verbose, and problems always.

    on_granted is called in the thread that acquired, before it has the lease; on_renewed with each new deadline.
    """

    def __init__(
        self,
        *,
        verbose: bool = False,
        on_granted: Callable[[], None] = lambda: None,
        on_renewed: Callable[[float], None] = lambda _deadline: None,
    ) -> None:
        self._talks = verbose or sys.stderr.isatty()
        self._verbose = verbose
        self._on_granted = on_granted
        self._on_renewed = on_renewed
        self._failing = False
        self._waited = False

    def __call__(self, event: LockEvent) -> None:
        """Handle one event."""
        match event:
            case Waiting():
                self._wait(event)
            case Acquired():
                self._on_granted()
                self._progress(f"acquired {event.key!r} after {duration_text(event.waited)}" if self._waited else "")
            case Renewed():
                self._on_renewed(event.deadline)
                if self._failing:
                    self._failing = False
                    say(f"the lease on {event.key!r} is renewed again")
            case RenewalFailed():
                # one line for an outage, not one for each attempt
                if self._verbose or not self._failing:
                    say(f"a renewal of {event.key!r} failed, {event.left:.3g} s left: {event.error}")
                self._failing = True
            case EngineWarning():
                say(f"{event.key!r}: {event.message}")
            case Released():
                if self._verbose:
                    say(f"released {event.key!r}" if event.removed else f"{event.key!r}: {event.detail}")
            case ReleaseFailed() | CallbackFailed():
                _say_not_released(event.key, event.error)
            case Lost() | NotGranted() | HolderChanged() | Attached() | Detached() | LeaseDropped():
                pass  # the command prints an end itself
            case _:
                assert_never(event)

    def _wait(self, event: Waiting) -> None:
        self._waited = True
        since = "" if event.held_for is None else f" for {duration_text(event.held_for)}"
        purpose = f" (purpose: {event.purpose})" if event.purpose else ""
        writer = "" if event.wanted_by in (None, event.holder) else f", and {event.wanted_by!r} waits for them"
        self._progress(f"waiting for {event.key!r}, held by {event.held_by!r}{since}{purpose}{writer}")

    def _progress(self, line: str) -> None:
        if self._talks and line:
            say(line)
