"""Decides how the frames of all threads are looked at: in one step, in which nothing is collected as garbage.

Up to Python 3.11 `sys._current_frames` holds the lock of the interpreter's list of threads while it makes objects. If
that starts a collection, what is collected may ask for the lock itself (a `threading.local` does), or let a thread run
that does (one that starts another). Then the whole process stands still for good, keeper and all. That is
https://github.com/python/cpython/issues/106883, which 3.11 was not mended of. From 3.12 on nothing is collected there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import tee
from operator import itemgetter, methodcaller
from types import FrameType


def looks() -> Iterator[dict[int, FrameType]]:
    """Give an endless iterator: each step is a look at what every thread runs now, by the thread's identifier.

    A step runs no Python code and lets no other thread run, so it is one instant for the whole interpreter. That is why
    the collector is stopped without a mutex, and why nobody has to put it right after an exception or a fork.
    """
    if sys.version_info >= (3, 12):
        return iter(sys._current_frames, None)
    back = map({True: gc.enable, False: gc.disable}.__getitem__, iter(gc.isenabled, None))
    before, after = tee(back)  # asked before the look, called after it
    frames = iter(sys._current_frames, None)
    steps = zip(before, iter(gc.disable, ...), frames, map(methodcaller("__call__"), after), strict=True)
    return map(itemgetter(2), steps)
