"""What the stores with drivers share: one driver for all threads and one for each event loop; forks, and the end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Command, Read
from lockstead.script import Script, drive
from lockstead.stores.bounds import Bounds
from lockstead.stores.driven import DrivenStore
from lockstead.stores.loops import PerLoop
from lockstead.values import Name

LIMIT = 5.0
READ = Read(Name("apt"))


class Driver:
    """Answers each request with itself."""

    def __init__(self) -> None:
        self.is_closed = False

    def run(self, script: Script[Any, Any, Any], bounds: Bounds) -> Any:
        if self.is_closed:
            raise StoreUnavailable("the pool is closed")
        assert bounds.limit == LIMIT
        return drive(script, lambda _request: self)

    def close(self) -> None:
        self.is_closed = True


class AsyncDriver(Driver):
    async def run(self, script: Script[Any, Any, Any], bounds: Bounds) -> Any:  # type: ignore[override]  # awaiting
        return super().run(script, bounds)

    async def aclose(self) -> None:
        self.close()


class Store(DrivenStore[Driver, AsyncDriver]):
    url = "demo:"

    def _begin(self) -> None:
        self._driver = Driver()
        self._drivers = PerLoop(AsyncDriver, AsyncDriver.aclose)

    def _script(self, command: Command[Any], _bounds: Bounds) -> Script[Any, Any, Any]:
        return (yield command)

    def awaited(self) -> Any:
        return asyncio.run(self.aperform(READ, LIMIT))


def test_threads_share_a_driver_and_each_event_loop_has_its_own() -> None:
    store = Store()
    first: Any = store.perform(READ, LIMIT)
    assert store.perform(READ, LIMIT) is first
    assert store.awaited() is not store.awaited() is not first


def test_a_closed_store_refuses_also_in_a_forked_child() -> None:
    store = Store()
    driver: Any = store.perform(READ, LIMIT)
    store.close()
    store.close()
    assert driver.is_closed
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="closed"):
            store.perform(READ, LIMIT)
        with pytest.raises(StoreUnavailable, match="the store demo: is closed"):
            store.awaited()
        store.after_fork()


def test_what_a_fork_inherited_is_neither_used_closed_nor_collected_in_it() -> None:
    store = Store()
    inherited: weakref.ref[Any] = weakref.ref(store.perform(READ, LIMIT))
    store.after_fork()
    own: Any = store.perform(READ, LIMIT)
    assert own is not inherited()
    store.after_fork()
    store.close()
    gc.collect()
    found = inherited()
    assert found is not None
    assert not found.is_closed
    assert not own.is_closed
