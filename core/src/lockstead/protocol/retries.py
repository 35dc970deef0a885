"""Retries of a script that a caller waits for, while the store does not answer.

The keeper repeats renewals anyway. But a token, a registration or a renewal by ticket is requested only once, and the
caller fails if that fails: a single "too many requests" must not be enough for that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, TypeVar

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.commands import Pause, Script, ask
from lockstead.protocol.context import ProtocolContext
from lockstead.values import Name

T = TypeVar("T")

ATTEMPTS_MAX: Final = 8
"""Maximum number of attempts: they take about 7 s with the default settings, if each fails at once."""


def with_retries(
    hold: Callable[[], Script[T]], name: Name, context: ProtocolContext, *, until: float = inf
) -> Script[T]:
    """Run a script, and retry while the store does not answer. until: when to stop retrying (boot clock).

    hold returns a new script, which must do no harm if an earlier one was performed in part. Raises the last attempt's
    StoreUnavailable or OutcomeUnknown.
    """
    settings, longest = context.settings, context.settings.backoff_min
    attempt = 1
    while True:
        try:
            return (yield from hold())
        except (StoreUnavailable, OutcomeUnknown):
            if attempt == ATTEMPTS_MAX:
                raise
            pause = yield from ask(Pause(name, settings.backoff_min, longest, wake_on_change=False))
            if pause.received_at >= until:
                raise
            attempt, longest = attempt + 1, min(settings.backoff_max, longest * 2)
