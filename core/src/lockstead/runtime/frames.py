"""Throwing an exception into another thread, atomically with a check of its stack.

The interpreter may switch threads between two Python instructions, so a check and a throw in Python would race. Here
both are one call into C, made of iterators that run no Python code.

Up to Python 3.11 `sys._current_frames` allocates objects while it holds the lock of the interpreter's list of threads.
If that starts a garbage collection, a collected object may take the same lock (a `threading.local` does), or let a
thread run that does (one that starts another), and the whole process deadlocks. That is
https://github.com/python/cpython/issues/106883, not fixed in 3.11. So the collector is disabled in that step. From 3.12
on nothing is collected there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, chain, repeat, takewhile, tee
from operator import attrgetter, is_not, itemgetter, methodcaller
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

SKIPS_EXITS: Final = sys.version_info >= (3, 13)
"""Whether signals are handled before a jump back, and not after it."""


def throws(
    ident: int, thrown: type[BaseException], uninterrupted: Iterable[CodeType], *only_if: Iterator[bool]
) -> Iterator[int]:
    """Return an endless iterator: each step throws a class into a thread and yields 1, or yields 0.

    It does not throw while an uninterrupted function is on the thread's stack. only_if: further conditions, evaluated
    in each step, which must run no Python code.
    """
    import ctypes

    throw = partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(ident), ctypes.py_object(thrown))
    tops = map(methodcaller("get", ident), iter(sys._current_frames, None))
    # each frame and its callers; a thread that has ended has no frames
    stacks: Iterator[Any] = map(accumulate, map(chain, zip(tops), repeat(repeat("f_back"))), repeat(getattr))
    frames: Iterator[Any] = map(takewhile, repeat(partial(is_not, None)), stacks)
    # by identity: hashing a code object is slow
    codes: Iterator[Any] = map(map, repeat(id), map(map, repeat(attrgetter("f_code")), frames))
    may = map(frozenset(map(id, uninterrupted)).isdisjoint, codes)
    does: Callable[[bool], Callable[[], int]] = (int, throw).__getitem__
    return uncollected(map(methodcaller("__call__"), map(does, map(all, zip(may, *only_if, strict=True)))))


def uncollected(steps: Iterator[T]) -> Iterator[T]:
    """Return an iterator over the same steps, without garbage collection during a step. No step may raise.

    It needs no mutex, and no repair of the collector after an exception or a fork.
    """
    if sys.version_info >= (3, 12):
        return steps
    back = map({True: gc.enable, False: gc.disable}.__getitem__, iter(gc.isenabled, None))
    before, after = tee(back)  # read before the step, called after it
    stopped = zip(before, iter(gc.disable, ...), steps, map(methodcaller("__call__"), after), strict=True)
    return map(itemgetter(2), stopped)


def would_skip_exit(frame: FrameType) -> bool:
    """Return whether an exception that is raised now would skip the `__exit__` of a `with` statement.

    The compiler leaves the backward jump of a `while` out of the exception table. Up to Python 3.12 signals are handled
    after that jump, from 3.13 on before it: a Ctrl-C there skips the `finally` or `with` around the loop.
    """
    if not SKIPS_EXITS:
        return False
    import dis

    jump = next((one for one in dis.get_instructions(frame.f_code) if one.offset == frame.f_lasti), None)
    if jump is None or jump.opname != "JUMP_BACKWARD" or not isinstance(jump.argval, int):
        return False
    entries: Any = vars(dis.Bytecode(frame.f_code))["exception_entries"]
    here, there = (any(one.start <= at < one.end for one in entries) for at in (jump.offset, jump.argval))
    return there and not here
