"""An interrupt at a chosen place: where a function is entered, or a call into C comes back.

These are the places at which Python runs signal handlers and raises asynchronous exceptions, but for jumps backwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


def interrupt_at(number: int, work: Callable[[], object]) -> bool:
    """Do some work and raise Interrupt in this thread at the place of that number; False if it ended before."""
    count = 0

    def profile(_frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event not in ("call", "c_return") or argument is sys.setprofile:
            return
        count += 1
        if count == number:
            sys.setprofile(None)
            raise Interrupt

    try:
        sys.setprofile(profile)
        work()
    except Interrupt:
        return True
    except RuntimeError as error:
        # what a condition of the standard library makes of it, as where a thread waits for another one to start
        if not isinstance(error.__context__, Interrupt):
            raise
        return True
    finally:
        sys.setprofile(None)
    return False


def everywhere_in(work: Callable[[], object], most: int = 20_000) -> Iterator[int]:
    """Do the work again and again, each time interrupted one place later, until it ends without; give the places."""
    for number in range(1, most):
        if not interrupt_at(number, work):
            return
        yield number
    raise AssertionError("the work has no end")
