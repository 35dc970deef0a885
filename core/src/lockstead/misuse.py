"""Wrong uses of a lock or a hold: awaited where it blocks, or the other way round. Each raises TypeError."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

_AWAITED = "an AsyncLock is awaited: use 'async with lock.hold():'"
_BLOCKS = "a Lock is not awaited: use 'with lock.hold():', or in a coroutine AsyncLock(...).hold()"


class LockMisuse:
    """What a blocking lock raises where a hold of it is meant."""

    def __enter__(self) -> NoReturn:
        raise TypeError("a Lock is not a context manager: use 'with lock.hold():'")

    def __exit__(self, *_: object) -> None:
        raise TypeError("a Lock is not a context manager: use 'with lock.hold():'")


class AsyncLockMisuse:
    """What an awaiting lock raises where a hold of it is meant."""

    async def __aenter__(self) -> NoReturn:
        raise TypeError("an AsyncLock is not a context manager: use 'async with lock.hold():'")

    async def __aexit__(self, *_: object) -> None:
        raise TypeError("an AsyncLock is not a context manager: use 'async with lock.hold():'")

    def __enter__(self) -> NoReturn:
        raise TypeError(_AWAITED)

    def __exit__(self, *_: object) -> None:
        raise TypeError(_AWAITED)


class HoldMisuse:
    """What a blocking hold raises where it is awaited."""

    async def __aenter__(self) -> object:
        raise TypeError(_BLOCKS)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        return


class AsyncHoldMisuse:
    """What an awaiting hold raises where it is entered blocking."""

    def __enter__(self) -> NoReturn:
        raise TypeError(_AWAITED)

    def __exit__(self, *_: object) -> None:
        raise TypeError(_AWAITED)


def check_function(function: Callable[..., Any]) -> None:
    """Raise TypeError for what a blocking hold cannot decorate: its body would run after the hold has ended."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is async: decorate it with AsyncLock(...).hold()")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator: use 'with lock.hold():' inside it")


def check_coroutine_function(function: Callable[..., Any]) -> None:
    """Raise TypeError for what an awaiting hold cannot decorate."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__qualname__} is not a coroutine function: decorate it with Lock(...).hold()")
