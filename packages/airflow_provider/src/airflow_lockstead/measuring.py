"""Metrics of locks in Airflow's own statistics, and what LOCKSTEAD_TELEMETRY names, in processes that use locks."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from functools import cache
from typing import Any, Final

from airflow_lockstead import compat
from lockstead import add_listener
from lockstead.monitor.names import LockNames
from lockstead.telemetry import install_once, lock_labels
from lockstead.telemetry.measures import Meter

_NOT_IN_A_TAG: Final = re.compile(r"[^A-Za-z0-9_./-]+")
"""In the lines of StatsD a colon ends the name."""


class StatsSink:
    """A sink that records measures in Airflow's statistics. It has no gauge of leases: a process may end without
    lowering it."""

    def acquired(self, store: str, lock: str, result: str, waited: float) -> None:
        """Record the end of an acquisition."""
        _timing("wait", waited, store=store, lock=lock)
        _incr("acquired", store=store, lock=lock, result=result)

    def began(self, store: str, lock: str) -> None:
        """Record nothing."""

    def ended(self, store: str, lock: str, held: float) -> None:
        """Record the end of a lease in this process."""
        _timing("hold", held, store=store, lock=lock)

    def renewal(self, store: str, lock: str, result: str) -> None:
        """Record a renewal."""
        _incr("renewals", store=store, lock=lock, result=result)

    def lost(self, store: str, lock: str, reason: str) -> None:
        """Record a lost lease."""
        _incr("lost", store=store, lock=lock, reason=reason)

    def request(self, store: str, command: str, result: str, seconds: float) -> None:
        """Record a request to the store."""
        _timing("store_request", seconds, store=store, command=command, result=result)

    def forked(self) -> None:
        """Record nothing."""


def _incr(name: str, **tags: str) -> None:
    compat.stats().incr(f"lockstead.{name}", tags=_tags(tags))


def _timing(name: str, seconds: float, **tags: str) -> None:
    compat.stats().timing(f"lockstead.{name}", timedelta(seconds=seconds), tags=_tags(tags))


def _tags(said: dict[str, str]) -> dict[str, Any]:
    return {name: _NOT_IN_A_TAG.sub("_", text) for name, text in said.items()}


@cache
def install() -> None:
    """Measure the locks of this process from now on, once; whatever fails here must not fail a task."""
    install_once()
    try:
        names = LockNames.parse(lock_labels(os.environ))
    except ValueError:
        names = LockNames()
    add_listener(Meter(StatsSink(), names))
