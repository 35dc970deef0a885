"""All kinds of blocks, one after the other: losses in the main thread, in others, in tasks; then Ctrl-Cs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable

from lockstead import Client
from lockstead.stores.memory import MemoryStore
from tests.soak.blocks import CtrlCs, Losses, quiet, settled, tasks

TTL: float = 20.0
"""The ttl of the lease that must be renewed all the time: a busy machine may be late."""


def soak(losses: int, interrupts: int, seed: int, say: Callable[[str], None] = lambda _line: None) -> Counter[str]:
    """Interrupt so often, and see to it that nothing is left behind; the count of what was seen."""
    seen: Counter[str] = Counter()
    before, sys.unraisablehook = sys.unraisablehook, lambda _unraisable: None  # Ctrl-Cs fall into finalizers too
    try:
        with Client(MemoryStore(), listener=quiet) as client:
            kept = client.lock("kept", ttl=TTL).acquire()
            here = Losses(client, seed)
            here.run(losses // 3)
            seen += here.seen
            settled(client, kept)
            say(f"main thread: {dict(here.seen)}")
            there = [Losses(client, seed + number) for number in (1, 2)]
            failures: list[BaseException] = []
            threads = [threading.Thread(target=_noting, args=(one, losses // 6, failures)) for one in there]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if failures:
                raise failures[0]
            settled(client, kept)
            in_threads = there[0].seen + there[1].seen
            seen += in_threads
            say(f"threads: {dict(in_threads)}")
            in_tasks = asyncio.run(tasks(losses // 3, seed))
            seen += in_tasks
            say(f"tasks: {dict(in_tasks)}")
            done = 0
            while done < interrupts:
                some = min(5000, interrupts - done)
                ctrl_cs = CtrlCs(client, seed + done)
                ctrl_cs.run(some)
                done += some
                seen += ctrl_cs.seen
                settled(client, kept)
            say(f"Ctrl-C: {seen['Ctrl-C']}, {seen['not yet free']} times not yet free")
            if not kept.release():
                raise AssertionError("the lease that was kept all the while was lost")
    finally:
        sys.unraisablehook = before
    return seen


def _noting(losses: Losses, count: int, failures: list[BaseException]) -> None:
    try:
        losses.run(count)
    except BaseException as error:
        failures.append(error)
