# Generated from aio_driver.py by `make blocking`: edit that file instead.
"""Base class of the drivers of stores, blocking: carries out scripts. Must not know any store, nor what is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Generic, TypeVar

from lockstead.script import Script, drive
from lockstead.stores.bounds import Bounds
from lockstead.stores.kept import MALFORMED, senseless
from lockstead.stores.pool import Pool

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class DriverBase(ABC, Generic[Q, A]):
    """The connections of one process, or of one event loop, to a store. name is for messages."""

    name: str
    pool: Pool[Any, Any]

    @abstractmethod
    def exchange(self, bounds: Bounds, request: Q) -> A:
        """Send a request once and return its answer, within bounds. Raises StoreError."""

    def run(self, script: Script[Q, A, T], bounds: Bounds) -> T:
        """Drive a script to its end. OutcomeUnknown for an answer of another shape than any of this store's."""
        try:
            return drive(script, partial(self.exchange, bounds))
        except MALFORMED as error:
            raise senseless(self.name, error) from error

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back. Idempotent."""
        self.pool.close()
