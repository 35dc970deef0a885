"""Rounds of a batch, awaiting: a task asks each key, a few at a time. Its twin is `rounds`, with the same names."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from lockstead.batch_base import AT_ONCE, Ask
from lockstead.runtime.aio_drive import run
from lockstead.runtime.awaiting import AsyncWaker
from lockstead.runtime.engine import Engine

__all__ = ["AsyncTurns", "ask_all", "sleep"]

T = TypeVar("T")


class AsyncTurns:
    """The loops over a batch. Leaving one early does not end an asynchronous generator, so the batch's block does.

    Without a block the event loop ends it some time later.
    """

    def __init__(self) -> None:
        self.is_entered = False
        self._began: list[AsyncGenerator[Any]] = []

    def began(self, turns: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """Note a loop that begins."""
        if self.is_entered:
            self._began.append(turns)
        return turns

    async def aclose(self) -> None:
        """End the loops that were left early."""
        for turns in self._began:
            await turns.aclose()


async def ask_all(engine: Engine, asks: list[Ask]) -> None:
    """Ask several keys, a few at a time; cancelled, leave nothing behind."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def look(one: Ask) -> None:
        async with turns:
            waker = AsyncWaker(engine, one.acquisition.came_late, one.acquisition.abandoned)
            try:
                one.outcome = await run(one.script, engine.store, engine.clock, one.acquisition.limits, waker)
            except Exception as error:  # noqa: BLE001 - it belongs to this key, and is raised when all have answered
                one.error = error

    try:
        async with asyncio.TaskGroup() as looks:
            for one in asks:
                looks.create_task(look(one))
    except BaseException as error:
        for one in asks:
            one.acquisition.failed(error)
        raise
