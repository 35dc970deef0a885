"""Whether an exception may be raised out of nowhere in a frame: never amid our own coming and going.

What comes between, an environment that is changed and a thread that starts, would be left half done. It may be raised
in the code of others, and in the functions of ours that run such code or wait, each of which says so. Must not know
Dagster, nor who raises.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

HERE: Final = f"{__file__.rpartition('/')[0]}/"

_OPEN: Final[set[CodeType]] = set()
"""The code of the functions that said so, as they were defined."""


def bears_interrupts(function: F) -> F:
    """Mark a function that runs the code of others, or waits, and bears whatever is raised in it."""
    _OPEN.add(function.__code__)
    return function


def may_raise_in(frame: FrameType | None) -> bool:
    """Whether what runs in a frame bears an exception: who of ours called it, by whatever others, expects one."""
    while frame is not None and not frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame is None or frame.f_code in _OPEN
