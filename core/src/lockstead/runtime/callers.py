"""The source line that a record names as the caller.

That is the code that calls lockstead or one of its wrappers; none if the caller is a command line or an orchestrator,
whose internals do not help a reader.
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
"""Packages that are skipped: their code is between the caller and the engine."""

_HOSTS: Final = frozenset({"airflow", "anyio", "click", "dagster", "prefect"})
"""Packages that call user code; their own frames are not named."""


def caller() -> FrameType | None:
    """Return the innermost frame outside of lockstead, its wrappers and Python itself; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    # every acquisition looks at about ten frames, so `_package` is written out
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        frame = frame.f_back
    return frame


def where(frame: FrameType | None) -> str | None:
    """Return a frame as file:line; None for a host's frame or for None."""
    return None if frame is None or _package(frame) in _HOSTS else _line(frame)


def backtrace(frame: FrameType | None) -> str | None:
    """Return a frame and its callers, the innermost first; None for None.

    Without source lines, which may contain secrets.
    """
    lines: list[str] = []
    while frame is not None:
        lines.append(f"{_line(frame)} in {frame.f_code.co_qualname}")
        frame = frame.f_back
    return "\n".join(lines) or None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
