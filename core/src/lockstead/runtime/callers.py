"""Which line of code a record names as the one that asked for the lock.

It is whoever's code calls lockstead or one of its wrappers, and it is nobody's where a command line or an orchestrator
is next: their plumbing tells a reader nothing.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

_PASSED_OVER: Final = sys.stdlib_module_names | {
    "airflow_lockstead",
    "dagster_lockstead",
    "lockstead",
    "prefect_lockstead",
}
"""Packages whose code is between the caller and the engine."""

_HOSTS: Final = frozenset({"airflow", "anyio", "click", "dagster", "prefect"})
"""Packages that call what others wrote; beyond them are only those who started them."""


def caller() -> FrameType | None:
    """Return the innermost frame outside of lockstead, its wrappers and Python itself; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in _PASSED_OVER:
        frame = frame.f_back
    return frame


def where(frame: FrameType | None) -> str | None:
    """Name a frame as file:line; None for a host's, or for none."""
    return None if frame is None or _package(frame) in _HOSTS else _line(frame)


def backtrace(frame: FrameType | None) -> str | None:
    """Name a frame and its callers, the innermost first: a long text is cut at its end. None for none.

    Never source lines, with their secrets.
    """
    lines: list[str] = []
    while frame is not None:
        lines.append(f"{_line(frame)} in {frame.f_code.co_qualname}")
        frame = frame.f_back
    return "\n".join(lines) or None


def _package(frame: FrameType) -> str:
    name: object = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
