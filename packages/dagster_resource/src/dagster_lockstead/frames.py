"""Frames in which an asynchronous exception may be raised: never in our own code that must run to its end.

There it would leave a changed environment or a starting thread half done. It may be raised in other code, and in those
of our functions that call such code or wait, which are marked. Must not know Dagster, nor who raises.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

HERE: Final = f"{__file__.rpartition('/')[0]}/"

_OPEN: Final[set[CodeType]] = set()
"""The code objects of the marked functions."""


def bears_interrupts(function: F) -> F:
    """Mark a function that calls other code or waits: an exception may be raised in it at any point."""
    _OPEN.add(function.__code__)
    return function


def may_raise_in(frame: FrameType | None) -> bool:
    """Return whether an exception may be raised in a frame: its innermost function of this package is marked."""
    while frame is not None and not frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame is None or frame.f_code in _OPEN
