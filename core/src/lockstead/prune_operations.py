"""Pruning a store, for blocking and awaiting callers alike: `protocol.pruning` with the arguments of a call."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from lockstead import registry
from lockstead.errors import StoreRefused
from lockstead.operations import PLAIN
from lockstead.protocol.commands import Script
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.pruning import NAMES_MAX, Leftover, PruneRequest, prune
from lockstead.reading import clean
from lockstead.runtime.engine import Engine, fresh_nonce
from lockstead.runtime.run import Limits
from lockstead.stores.port import ClearsQueues
from lockstead.values import Duration, seconds
from lockstead.views import PruneResult, pruning

PER_SECOND_MAX: Final = 10_000.0
QUEUES_LIMIT: Final = 30.0
"""Seconds for clearing all queues of a store."""


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


def with_queues(engine: Engine, result: PruneResult, at_most: int) -> PruneResult:
    """Remove what is left in the store's queues, if it has any that are left; blocks. Return the result with it."""
    store, left = engine.store, at_most - sum(result.removed.values())
    if not isinstance(store, ClearsQueues) or left <= 0:
        return result
    try:
        gone = store.clear_queues(left, QUEUES_LIMIT, dry_run=result.dry_run)
    except StoreRefused as error:
        return replace(result, refused=(*result.refused, clean(str(error))))
    kind = Leftover.QUEUE.value
    names = (*result.names, *((kind, clean(name)) for name in gone))[:NAMES_MAX]
    return replace(result, removed={**result.removed, kind: len(gone)}, names=names)


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
