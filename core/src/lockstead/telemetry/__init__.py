"""Metrics and traces of this process, from the events of its clients: `prometheus`, `otel`, and what they share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Final

VARIABLE: Final = "LOCKSTEAD_TELEMETRY"
"""Names what to switch on, separated by commas."""

LABELS: Final = "LOCKSTEAD_LOCK_LABELS"
"""The names of locks, separated by commas."""

KINDS: Final = ("otel", "prometheus")

_log = logging.getLogger("lockstead")


def install_from_environment(
    environment: Mapping[str, str] = os.environ, warn: Callable[[str], object] = _log.warning
) -> None:
    """Install what LOCKSTEAD_TELEMETRY names: `otel`, `prometheus` or both; LOCKSTEAD_LOCK_LABELS names the locks.

    For entry points: the command line, and the wrappers in the processes where tasks run. What cannot be installed is
    passed to `warn` in one line, since no work may fail for it.
    """
    locks = lock_labels(environment)
    for kind in _words(environment.get(VARIABLE, "")):
        try:
            if kind not in KINDS:
                raise ValueError(f"it is not one of {', '.join(KINDS)}")
            import_module(f"lockstead.telemetry.{kind}").install(locks=locks)
        except Exception as error:  # noqa: BLE001 - see above
            warn(f"{VARIABLE}: {kind[:40]!r} is not switched on: {error}")


@cache
def install_once() -> None:
    """Install what the environment of this process names, at the first call."""
    install_from_environment()


def lock_labels(environment: Mapping[str, str]) -> list[str]:
    """Return the names of locks that LOCKSTEAD_LOCK_LABELS gives, as `LockNames.parse` takes them."""
    return _words(environment.get(LABELS, ""))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
