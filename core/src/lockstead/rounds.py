"""Rounds of a batch, blocking: on the caller's thread and, if the store is slow, on the engine's threads too.

Its twin is `aio_rounds`, with the same names.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from itertools import filterfalse
from time import sleep
from typing import Final, TypeVar

from lockstead.batch_base import AT_ONCE, Ask
from lockstead.runtime.drive import run
from lockstead.runtime.engine import Engine
from lockstead.runtime.local_queue import ThreadWaker

__all__ = ["Turns", "ask_all", "sleep"]

T = TypeVar("T")

SLOW: Final = 0.005
"""Response time in seconds above which other threads help: a file is read key by key, a service concurrently."""


class Turns:
    """The loops over a batch. One that is left early ends there, with the last reference to its generator."""

    is_entered = False

    def began(self, turns: Iterator[T]) -> Iterator[T]:
        """Note the start of a loop."""
        return turns

    def close(self) -> None:
        """End the loops that were left early."""


def ask_all(engine: Engine, asks: list[Ask]) -> None:
    """Try several keys, a few at a time, and return after the last answer; if interrupted, leave nothing behind."""
    _Round(engine, asks).run()


class _Round:
    """One round: the remaining attempts, and the threads that help."""

    def __init__(self, engine: Engine, asks: list[Ask]) -> None:
        self._engine = engine
        self._asks = asks
        self._left: deque[Ask] = deque(asks)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._helpers = 0
        self._in_helpers: set[Ask] = set()
        self._is_given_up = False

    def run(self) -> None:
        """Run all attempts."""
        clock = self._engine.clock
        try:
            while self._left:
                began_at = clock.now()
                self._ask(self._left.popleft())
                if clock.now() - began_at > SLOW and not self._helpers:
                    self._call_helpers()
            with self._lock:
                self._changed.wait_for(lambda: not self._helpers)
        except BaseException as error:
            with self._lock:
                self._is_given_up = True
                self._left.clear()
                ours = [*filterfalse(self._in_helpers.__contains__, self._asks)]
            for one in ours:
                one.acquisition.failed(error)
            raise

    def _ask(self, one: Ask) -> None:
        engine = self._engine
        try:
            one.outcome = run(one.script, engine.store, engine.clock, one.acquisition.limits, ThreadWaker())
        except Exception as error:  # noqa: BLE001 - it belongs to this key, and is raised when all have answered
            one.error = error

    def _call_helpers(self) -> None:
        wanted = min(AT_ONCE - 1, len(self._left))
        with self._lock:
            self._helpers += wanted
        for _ in range(wanted):
            if not self._engine.calls.submit(self._help, queue=False):
                self._helped()

    def _help(self) -> None:
        try:
            while (one := self._taken()) is not None:
                self._ask(one)
                with self._lock:
                    self._in_helpers.discard(one)
                    is_given_up = self._is_given_up
                if is_given_up:
                    # this reply is not used: the caller that waited for it was interrupted
                    one.acquisition.failed(KeyboardInterrupt())
        finally:
            self._helped()

    def _taken(self) -> Ask | None:
        with self._lock:
            if not self._left:
                return None
            one = self._left.popleft()
            self._in_helpers.add(one)
            return one

    def _helped(self) -> None:
        with self._lock:
            self._helpers -= 1
            self._changed.notify_all()
