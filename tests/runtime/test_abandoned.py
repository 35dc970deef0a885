"""A waiter whose event loop was closed blocks no other waiter, and nothing refers to it forever."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from lockstead import AsyncClient, Client
from lockstead.protocol.commands import Create, Remove, Snapshot
from lockstead.values import Name
from tests.runtime.faulty import quiet, until
from tests.runtime.fifo import FifoStore

APT = Name("apt")


def abandoned(store: FifoStore) -> tuple[AsyncClient, weakref.ref[Any]]:
    """Have a task wait for the lock, and close its loop: as after a Ctrl-C in `run_until_complete`."""
    loop = asyncio.new_event_loop()
    client = AsyncClient(store, listener=quiet)
    waits = loop.create_task(client.lock("apt", ttl=60).acquire(timeout=600))

    loop.run_until_complete(asyncio.to_thread(until, lambda: store.waiting(APT)))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    return client, weakref.ref(waits)


def test_h18_a_waiter_of_a_closed_loop_leaves_the_queue() -> None:
    store = FifoStore()
    held = store.perform(Create(APT, {"v": "1", "identity": "other", "ttl": "600"}), 1.0)
    assert isinstance(held, Snapshot)
    client, task = abandoned(store)
    store.beside().perform(Remove(APT, held.incarnation), 1.0)
    until(lambda: not store.waiting(APT))
    with Client(store.beside(), listener=quiet) as other:
        other.lock("apt", ttl=60).acquire(timeout=20).release()

    def is_collected() -> bool:
        gc.collect()
        return task() is None and not store._memory.subscriptions

    with Client(store, listener=quiet):
        until(is_collected)
    del client
