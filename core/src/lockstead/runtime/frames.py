"""Decides how an exception is thrown into another thread: looked at and thrown at in one step, or not at all.

The interpreter lets another thread run between two steps of Python code, so a look and a throw in Python would find the
thread elsewhere. Here both are one call into C, made of iterators that run no Python code.

Up to Python 3.11 `sys._current_frames` holds the lock of the interpreter's list of threads while it makes objects. If
that starts a collection, what is collected may ask for the lock itself (a `threading.local` does), or let a thread run
that does (one that starts another). Then the whole process stands still for good, keeper and all. That is
https://github.com/python/cpython/issues/106883, which 3.11 was not mended of. So the collector is stopped in that step.
From 3.12 on nothing is collected there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, chain, repeat, takewhile, tee
from operator import attrgetter, is_not, itemgetter, methodcaller
from types import CodeType
from typing import Any, TypeVar

T = TypeVar("T")


def throws(
    ident: int, thrown: type[BaseException], never_in: Iterable[CodeType], *only_if: Iterator[bool]
) -> Iterator[int]:
    """Give an endless iterator: each step throws a class into a thread and gives 1, or gives 0.

    It does not throw while one of some functions runs there, or one that such a function called. only_if: further
    conditions, asked anew in each step, which have to run no Python code.
    """
    import ctypes

    throw = partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(ident), ctypes.py_object(thrown))
    tops = map(methodcaller("get", ident), iter(sys._current_frames, None))
    # each frame and the one that called it, and so on; where the thread is gone there is none, and nobody is hit
    stacks: Iterator[Any] = map(accumulate, map(chain, zip(tops), repeat(repeat("f_back"))), repeat(getattr))
    frames: Iterator[Any] = map(takewhile, repeat(partial(is_not, None)), stacks)
    # by identity: the hash of a code object takes long
    codes: Iterator[Any] = map(map, repeat(id), map(map, repeat(attrgetter("f_code")), frames))
    may = map(frozenset(map(id, never_in)).isdisjoint, codes)
    does: Callable[[bool], Callable[[], int]] = (int, throw).__getitem__
    return uncollected(map(methodcaller("__call__"), map(does, map(all, zip(may, *only_if, strict=True)))))


def uncollected(steps: Iterator[T]) -> Iterator[T]:
    """Give an iterator that takes the same steps, and no garbage is collected in any of them. No step may raise.

    It takes no mutex, and nobody has to put the collector right after an exception or a fork.
    """
    if sys.version_info >= (3, 12):
        return steps
    back = map({True: gc.enable, False: gc.disable}.__getitem__, iter(gc.isenabled, None))
    before, after = tee(back)  # asked before the step, called after it
    stopped = zip(before, iter(gc.disable, ...), steps, map(methodcaller("__call__"), after), strict=True)
    return map(itemgetter(2), stopped)
