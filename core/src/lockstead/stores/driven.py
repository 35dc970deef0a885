"""Base class of a store whose commands are scripts: a driver for all threads carries them out, and one for each loop.

Must not know any store, nor what the requests of a script are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Command
from lockstead.script import Script
from lockstead.stores.aio_driver import AsyncDriverBase
from lockstead.stores.bounds import ANSWER_MAX, Bounds, bounds_of
from lockstead.stores.driver import DriverBase
from lockstead.stores.loops import PerLoop
from lockstead.stores.port import StoreBase

A = TypeVar("A")


D = TypeVar("D", bound=DriverBase[Any, Any])
AD = TypeVar("AD", bound=AsyncDriverBase[Any, Any])


class DrivenStore(StoreBase, ABC, Generic[D, AD]):
    """A store with drivers, which have its connections. answer_max: bytes that may be read for one command."""

    answer_max: ClassVar[int] = ANSWER_MAX
    _driver: D
    _drivers: PerLoop[AD]

    def __init__(self) -> None:
        self._is_open = True
        self._inherited: list[object] = []
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Make the drivers, and all else that a forked child must have of its own. Connects to nothing."""

    @abstractmethod
    def _script(self, command: Command[Any], bounds: Bounds) -> Script[Any, Any, Any]:
        """Return the script of a command, which will be carried out within these bounds."""

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds; see `Store.perform`."""
        if not self._is_open:
            raise _closed(self.url)
        bounds = bounds_of(command, limit, self.answer_max)
        answer: A = self._driver.run(self._script(command, bounds), bounds)
        return answer

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command like `perform`, asynchronously, from any event loop.

        If it is cancelled during a request, the outcome is unknown.
        """
        if not self._is_open:
            raise _closed(self.url)
        bounds = bounds_of(command, limit, self.answer_max)
        driver = await self._drivers.get()
        return await driver.run(self._script(command, bounds), bounds)

    def after_fork(self) -> None:
        """Forget what was inherited. It stays referenced, because its collection could disturb the parent."""
        self._inherited.append(dict(vars(self)))
        self._begin()
        if not self._is_open:
            self.close()

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back. Idempotent.

        Those of other event loops are closed there, which may take 1 s for each.
        """
        self._is_open = False
        self._driver.close()
        self._drivers.close()


def _closed(url: str) -> StoreUnavailable:
    return StoreUnavailable(f"the store {url} is closed")
