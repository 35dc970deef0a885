"""Pruning a store, for blocking and awaiting callers alike: `protocol.pruning` with the arguments of a call."""

from __future__ import annotations

import math
from typing import Final

from lockstead import registry
from lockstead.operations import PLAIN
from lockstead.protocol.commands import Script
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.pruning import PruneRequest, prune
from lockstead.runtime.engine import Engine, fresh_nonce
from lockstead.runtime.run import Limits
from lockstead.values import Duration, seconds
from lockstead.views import PruneResult, pruning

PER_SECOND_MAX: Final = 10_000.0


def pruned(
    engine: Engine,
    *,
    older_than: Duration,
    history_older_than: Duration,
    dry_run: bool,
    forget_unclean: bool,
    per_second: float,
    at_most: int,
) -> Script[PruneResult]:
    """Remove the leftovers of a store. ValueError or TypeError for a wrong argument."""
    engine.refuse_if_closed()
    request = PruneRequest(
        older_than=seconds(older_than, "older_than"),
        history_older_than=seconds(history_older_than, "history_older_than"),
        between=1 / _checked_rate(per_second),
        wall_now=engine.clock.wall(),
        salt=fresh_nonce(),
        by=registry.person(),
        is_dry=dry_run,
        forgets=forget_unclean,
        removals_max=_checked_count(at_most),
    )
    return _pruned(engine, request)


def limits(engine: Engine) -> Limits:
    """Return the limits of a call: it ends when the client is closed."""
    return Limits(PLAIN.request_timeout, refuse_if_closed=engine.refuse_if_closed)


def _pruned(engine: Engine, request: PruneRequest) -> Script[PruneResult]:
    # observations of its own: those of waiters must not be displaced by a whole store
    done = yield from prune(request, ProtocolContext(engine.traits, PLAIN, engine.pruning))
    return pruning(done, dry_run=request.is_dry)


def _checked_rate(per_second: float) -> float:
    if isinstance(per_second, bool) or not isinstance(per_second, int | float):
        raise TypeError(f"per_second must be a number, not {type(per_second).__name__}")
    if not (math.isfinite(per_second) and 0 < per_second <= PER_SECOND_MAX):
        raise ValueError(f"per_second must be above 0 and at most {PER_SECOND_MAX:g}, not {per_second!r}")
    return float(per_second)


def _checked_count(at_most: int) -> int:
    if isinstance(at_most, bool) or not isinstance(at_most, int):
        raise TypeError(f"at_most must be a whole number, not {type(at_most).__name__}")
    if at_most < 1:
        raise ValueError(f"at_most must be at least 1, not {at_most}")
    return at_most
