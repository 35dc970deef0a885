"""Wrong uses of a lock or a hold: awaited if it blocks, or the reverse. Each raises TypeError."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

_AWAITED = "an AsyncLock is awaited: use 'async with lock.hold():'"
_BLOCKS = "a Lock is not awaited: use 'with lock.hold():', or in a coroutine AsyncLock(...).hold()"


class LockMisuse:
    """Raises a helpful TypeError if a blocking lock is used like a hold."""

    def __enter__(self, *_: object) -> NoReturn:
        raise TypeError("a Lock is not a context manager: use 'with lock.hold():'")

    __exit__ = __enter__


class HoldMisuse:
    """Raises a helpful TypeError if a blocking hold is awaited."""

    async def __aenter__(self) -> object:
        raise TypeError(_BLOCKS)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        return


class AsyncHoldMisuse:
    """Raises a helpful TypeError if an awaiting lock or hold is entered with a blocking `with`."""

    def __enter__(self, *_: object) -> NoReturn:
        raise TypeError(_AWAITED)

    __exit__ = __enter__


class AsyncLockMisuse(AsyncHoldMisuse):
    """Raises a helpful TypeError if an awaiting lock is used like a hold."""

    async def __aenter__(self, *_: object) -> NoReturn:
        raise TypeError("an AsyncLock is not a context manager: use 'async with lock.hold():'")

    __aexit__ = __aenter__


def check_function(function: Callable[..., Any]) -> None:
    """Raise TypeError for a callable that a blocking hold cannot decorate: its body would run after the hold has
    ended."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is async: decorate it with AsyncLock(...).hold()")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator: use 'with lock.hold():' inside it")


def check_coroutine_function(function: Callable[..., Any]) -> None:
    """Raise TypeError for a callable that an awaiting hold cannot decorate."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__qualname__} is not a coroutine function: decorate it with Lock(...).hold()")
