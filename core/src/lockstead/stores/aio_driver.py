"""Base class of the drivers of stores, awaiting: carries out scripts. Must not know any store, nor what is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Generic, TypeVar

from lockstead.aio_script import drive
from lockstead.script import Script
from lockstead.stores.aio_pool import AsyncPool
from lockstead.stores.bounds import Bounds
from lockstead.stores.kept import MALFORMED, senseless

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class AsyncDriverBase(ABC, Generic[Q, A]):
    """The connections of one process, or of one event loop, to a store. name is for messages."""

    name: str
    pool: AsyncPool[Any, Any]

    @abstractmethod
    async def exchange(self, bounds: Bounds, request: Q) -> A:
        """Send a request once and return its answer, within bounds. Raises StoreError."""

    async def run(self, script: Script[Q, A, T], bounds: Bounds) -> T:
        """Drive a script to its end. OutcomeUnknown for an answer of another shape than any of this store's."""
        try:
            return await drive(script, partial(self.exchange, bounds))
        except MALFORMED as error:
            raise senseless(self.name, error) from error

    async def aclose(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back. Idempotent."""
        await self.pool.aclose()
