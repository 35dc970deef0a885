"""Flows that a worker runs for the tests: each holds the lock that the environment names."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from prefect import flow, task

import lockstead
from prefect_lockstead import locked

LOCK = os.environ.get("TEST_LOCK", "sqlite:///nowhere.db#apt")
NOTES = Path(os.environ.get("TEST_NOTES", "/nowhere"))


def noted(word: str) -> None:
    """Write a line that the test reads."""
    with (NOTES / "notes").open("a") as notes:
        notes.write(f"{word} {time.time()} {os.getpid()} {lockstead.current_lease().token}\n")


@flow(name="works", retries=0)
@locked(LOCK, purpose="a test")
def works() -> None:
    """Hold the lock until somebody says that it is enough."""
    noted("began")
    try:
        while not (NOTES / "enough").exists():
            time.sleep(0.05)
    finally:
        noted("ended")


@flow(name="works_awaiting", retries=0)
@locked(LOCK)
async def works_awaiting() -> None:
    """Hold the lock until somebody ends it."""
    noted("began")
    try:
        await asyncio.Event().wait()
    finally:
        noted("ended")


@flow(name="works_soon_awaiting", retries=0)
@locked(LOCK)
async def works_soon_awaiting() -> None:
    """Hold the lock for a moment."""
    noted("began")
    await asyncio.sleep(0)
    noted("ended")


@task
def part() -> None:
    """Do nothing."""


@flow(name="works_with_task", retries=0)
@locked(LOCK)
def works_with_task() -> None:
    """Hold the lock until somebody says that it is enough, then run tasks until one is refused, or one if it may be."""
    noted("began")
    try:
        while not (NOTES / "enough").exists():
            time.sleep(0.05)
        # a process hears that its run was suspended a moment after the server
        part()
        while not (NOTES / "one").exists():
            time.sleep(0.2)
            part()
    finally:
        noted("ended")


@flow(name="comes_back", retries=0)
@locked(LOCK, waiting="reschedule")
def comes_back() -> None:
    """Hold the lock for a moment, once it is free."""
    noted("began")


@flow(name="passes_by")
def passes_by() -> None:
    """Need no lock."""


@locked(LOCK)
@flow(name="works_above")
def works_above() -> None:
    """Hold the lock for a moment, which is named above the flow."""
    noted("above")


works_named = locked(LOCK)(passes_by)
"""A lock that was put on later: it has a name of its own, by which it can be deployed."""
