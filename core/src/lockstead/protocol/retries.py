"""How often a conversation is held again that a caller waits for, while the store is silent for a moment.

The keeper renews again and again by itself. A token, a registration or a renewal by ticket is asked for once, by
somebody whose step fails with it: one answer that says "too many requests" must not be the end of that.
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
"""Attempts until the store's silence is raised: about 7 s at the defaults, if each is refused at once."""


def with_retries(
    hold: Callable[[], Script[T]], name: Name, context: ProtocolContext, *, until: float = inf
) -> Script[T]:
    """Hold a conversation anew while the store is silent. until: when it is of no use any more (boot clock).

    hold gives the script from its beginning, which must do no harm if an earlier one was carried out in part. Raises
    StoreUnavailable or OutcomeUnknown, as the last attempt did.
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
