"""Checks that `aperform` of an asynchronous store meets the contract of `perform`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lockstead.errors import StoreError
from lockstead.protocol.commands import Command, Create, Extend
from lockstead.stores.port import AsyncStore, Store
from lockstead.testing.conformance.base import APT, Perform, PerformAtOnce, created, is_a, is_stored, shows
from lockstead.testing.conformance.store import StoreConformance
from lockstead.values import Name


class AwaitingConformance(StoreConformance):
    """The same contract for `aperform`, for stores that have it. Override the fixtures `store` and `twin`."""

    @pytest.fixture
    def runner(self) -> Iterator[asyncio.Runner]:
        """Return the runner of this test's event loop."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture
    def perform(self, store: Store, runner: asyncio.Runner) -> Perform:
        """Return a function that carries out a command by `aperform`."""
        return lambda command: runner.run(_awaits(store).aperform(command, self.limit))

    @pytest.fixture
    def at_once(self, store: Store, runner: asyncio.Runner) -> PerformAtOnce:
        """Return a function that carries out commands concurrently by `aperform`, in one event loop."""

        async def perform(command: Command[Any]) -> object:
            try:
                return await _awaits(store).aperform(command, self.limit)
            except StoreError as error:
                return error

        async def perform_all(commands: Sequence[Command[Any]]) -> list[Any]:
            return list(await asyncio.gather(*map(perform, commands)))

        return lambda commands: runner.run(perform_all(commands))

    def test_h18_a_cancelled_command_leaves_a_store_that_works(
        self, store: Store, perform: Perform, runner: asyncio.Runner
    ) -> None:
        awaits = _awaits(store)

        async def cancelled(turns: int) -> None:
            asking = asyncio.ensure_future(awaits.aperform(Create(Name(f"cancelled-{turns}"), {}), self.limit))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        for turns in range(12):
            runner.run(cancelled(turns))
        is_stored(perform, APT, created(perform, APT))

    def test_every_event_loop_is_served_and_each_ends_by_itself(self, store: Store) -> None:
        awaits = _awaits(store)

        async def touch() -> None:
            shows(await awaits.aperform(Extend(APT, {}, None), self.limit))

        store.perform(Create(APT, {}), self.limit)
        for _ in range(3):
            asyncio.run(touch())


def _awaits(store: Store) -> AsyncStore:
    return is_a(AsyncStore, store)  # type: ignore[type-abstract]
