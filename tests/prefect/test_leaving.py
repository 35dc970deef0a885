"""A loss exactly where a section ends: raised there or not at all, over thousands of exits."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lockstead import AsyncLease, Lease, LeaseLost, LossReason, current_lease
from prefect_lockstead import locked

EXITS = 3400 if os.environ.get("LOCKSTEAD_LONG") == "1" else 1000
"""In each of the three: the main thread, another, a task of asyncio."""


class Loser:
    """Loses the lease it is shown, in a thread of its own, and says so."""

    def __init__(self) -> None:
        self.lease: Lease | AsyncLease | None = None
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._lose)
        self._thread.start()

    def _lose(self) -> None:
        while self.go.acquire() and self.lease is not None:
            self.lease._engine.keeper.lose(self.lease._kept, LossReason.REVOKED)
            self.done.release()

    def end(self) -> None:
        self.lease = None
        self.go.release()
        self._thread.join()


@pytest.fixture
def loser() -> Iterator[Loser]:
    one = Loser()
    loud = [logging.getLogger(name) for name in ("lockstead", "prefect_lockstead")]
    levels, interval = [log.level for log in loud], sys.getswitchinterval()
    for log in loud:
        log.setLevel(logging.CRITICAL)
    sys.setswitchinterval(1e-6)
    try:
        yield one
    finally:
        sys.setswitchinterval(interval)
        for log, level in zip(loud, levels, strict=True):
            log.setLevel(level)
        one.end()


def left_in_a_thread(loser: Loser) -> tuple[int, int]:
    """Leave that many sections of this thread while they are lost; give how many were lost, and how many not."""
    dice, lost, kept = random.Random(7), 0, 0
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]

    @locked("memory:leaving#{turn}", ttl=60)
    def body(turn: int, spins: int) -> int:
        loser.lease = current_lease()
        loser.go.release()
        for _ in range(spins):
            pass
        return turn

    for turn in range(EXITS):
        try:
            assert body(turn, dice.randrange(9000)) == turn
        except LeaseLost:
            is_lost = True
        else:
            is_lost = False
        loser.done.acquire()
        lost, kept = lost + is_lost, kept + (not is_lost)
        assert loser.lease is not None
        assert (loser.lease.lost_reason is not None) is is_lost, "a loss that was told to nobody"
        with pytest.raises(LookupError):
            current_lease()
    assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
    return lost, kept


async def left_in_a_task(loser: Loser) -> tuple[int, int]:
    """The same in a task."""
    dice, lost, kept = random.Random(7), 0, 0
    task = asyncio.current_task()
    assert task is not None

    @locked("memory:leaving#a{turn}", ttl=60)
    async def body(turn: int, turns: int) -> int:
        loser.lease = current_lease()
        loser.go.release()
        for _ in range(turns):
            await asyncio.sleep(0)
        return turn

    for turn in range(EXITS):
        try:
            assert await body(turn, dice.randrange(24)) == turn
        except LeaseLost:
            is_lost = True
        else:
            is_lost = False
        while not loser.done.acquire(blocking=False):  # noqa: ASYNC110 - the thread must be let run
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # here a cancellation would fall that nobody took back
        lost, kept = lost + is_lost, kept + (not is_lost)
        assert task.cancelling() == 0
        assert loser.lease is not None
        assert (loser.lease.lost_reason is not None) is is_lost, "a loss that was told to nobody"
    return lost, kept


def both_happened(counts: tuple[int, int]) -> bool:
    """Return whether the exit was hit from either side."""
    return sum(counts) == EXITS and min(counts) > 0


@pytest.mark.timeout(1200)
def test_a_loss_at_the_exit_in_main_is_raised_there_or_never(loser: Loser):
    assert both_happened(left_in_a_thread(loser))


@pytest.mark.timeout(1200)
def test_a_loss_at_the_exit_in_a_thread_is_raised_there_or_never(loser: Loser):
    with ThreadPoolExecutor(1) as pool:
        assert both_happened(pool.submit(left_in_a_thread, loser).result())


@pytest.mark.timeout(1200)
def test_a_loss_at_the_exit_in_a_task_is_raised_there_or_never(loser: Loser):
    assert both_happened(asyncio.run(left_in_a_task(loser)))
