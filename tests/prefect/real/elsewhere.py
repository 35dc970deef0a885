"""What the tasks do that are sent to other processes: they write to a file who they are, and when.

The flows stand here too: a flow is sent along with its tasks, with all that it was closed over.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from prefect import task
from prefect.futures import wait

import lockstead
from prefect_lockstead import attached
from prefect_lockstead.children import inherited

STORE = os.environ.get("TEST_STORE", "memory:")
"""Where the locks are of those that bring a ticket; their processes inherit it."""


def note(diary: str, word: str, part: int) -> None:
    with Path(diary).open("a") as file:
        file.write(f"{word} {part} {time.monotonic()} {os.getpid()}\n")


@task
@attached(parameter="ticket", store=STORE)
def work(ticket: str, part: int, diary: str, seconds: float) -> None:
    note(diary, "began", part)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        note(diary, "wrote", part)
        time.sleep(0.02)


@task
@attached(parameter="ticket", store=STORE)
async def work_awaiting(ticket: str, part: int, diary: str, seconds: float) -> None:
    note(diary, "began", part)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        note(diary, "wrote", part)
        await asyncio.sleep(0.02)


@task
def where() -> int:
    """Return the process: a task that brings no ticket."""
    return os.getpid()


def waiting(url: str, diary: str) -> None:
    """Send out more than there are workers, and say how each ended."""
    futures = []
    try:
        with lockstead.Lock(url).hold(interrupt=True) as lease, inherited(lease):
            if where.submit().result() == os.getpid():
                raise RuntimeError("it runs here")
            ticket = str(lease.share())
            for part in range(4):
                which = work_awaiting if part % 2 else work
                futures.append(which.submit(ticket, part, diary, 150.0))
            wait(futures)
    finally:
        wait(futures)
        for part, one in enumerate(futures):
            note(diary, "lost" if one.state.is_failed() and "LeaseLost" in one.state.message else "ended", part)


def leaving(url: str, diary: str) -> bool:
    """Leave the section while one is at work."""
    with lockstead.Lock(url).hold(interrupt=True) as lease, inherited(lease):
        future = work.submit(str(lease.share()), 0, diary, 1.5)
        while "began" not in Path(diary).read_text():
            time.sleep(0.02)
    note(diary, "released", 0)
    future.wait()
    return future.state.is_completed()
