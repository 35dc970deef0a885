"""Checks that `aperform` of an asynchronous store meets the contract of `perform`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import pytest

from lockstead.errors import StoreError
from lockstead.protocol.commands import Command, Create, Extend
from lockstead.stores.port import AsyncStore, Store
from lockstead.testing.conformance.base import Ask, AskAtOnce, created, is_a, is_stored, shows
from lockstead.testing.conformance.store import StoreConformance
from lockstead.values import Name

A = TypeVar("A")

APT = Name("apt")


class AwaitingConformance(StoreConformance):
    """The same contract for `aperform`, for stores that have it. Override the fixtures `store` and `twin`."""

    @pytest.fixture
    def runner(self) -> Iterator[asyncio.Runner]:
        """Return the runner of this test's event loop."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture
    def ask(self, store: Store, runner: asyncio.Runner) -> Ask:
        """Return a function that carries out a command by `aperform`."""

        def asks(command: Command[A]) -> A:
            return cast(A, runner.run(is_a(AsyncStore, store).aperform(command, self.limit)))  # type: ignore[type-abstract]

        return asks

    @pytest.fixture
    def at_once(self, store: Store, runner: asyncio.Runner) -> AskAtOnce:
        """Return a function that carries out commands concurrently by `aperform`, in one event loop."""
        awaits = is_a(AsyncStore, store)  # type: ignore[type-abstract]

        async def asked(command: Command[Any]) -> object:
            try:
                return await awaits.aperform(command, self.limit)
            except StoreError as error:
                return error

        async def together(commands: Sequence[Command[Any]]) -> list[Any]:
            return list(await asyncio.gather(*map(asked, commands)))

        return lambda commands: runner.run(together(commands))

    def test_h18_a_cancelled_command_leaves_a_store_that_works(
        self, store: Store, ask: Ask, runner: asyncio.Runner
    ) -> None:
        awaits = is_a(AsyncStore, store)  # type: ignore[type-abstract]

        async def cancelled(turns: int) -> None:
            asking = asyncio.ensure_future(awaits.aperform(Create(Name(f"cancelled-{turns}"), {}), self.limit))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        for turns in range(12):
            runner.run(cancelled(turns))
        is_stored(ask, APT, created(ask, APT))

    def test_every_event_loop_is_served_and_each_ends_by_itself(self, store: Store) -> None:
        awaits = is_a(AsyncStore, store)  # type: ignore[type-abstract]

        async def touch() -> None:
            shows(await awaits.aperform(Extend(APT, {}, None), self.limit))

        store.perform(Create(APT, {}), self.limit)
        for _ in range(3):
            asyncio.run(touch())
