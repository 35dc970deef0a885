"""H32: an unclean end is reported to the next holder that works, whatever happened to those in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstead import AsyncClient, Client, LeaseOutcome, NotAcquired, OutcomeUnknown, PreviousLease, StoreRefused
from lockstead.protocol.commands import Command, Create, Replace
from lockstead.values import Name
from tests.runtime.faulty import Faulty, quiet, refuse, until

ENOUGH = 20.0


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def cut_off(store: Faulty) -> Iterator[PreviousLease]:
    """Cut a holder of `a` off; return what the next holder that works must be told."""
    with Client(store.beside(), listener=quiet) as other:
        lease = other.lock("a", owner="cut off").acquire()
        other.lock("a").break_lease(reason="it hangs", now=True)
        yield PreviousLease(LeaseOutcome.REVOKED, "cut off", lease.holder)


def all_or_nothing(store: Faulty) -> None:
    with Client(store.beside(), listener=quiet) as other, other.lock("b").hold(), Client(store) as client:
        with pytest.raises(NotAcquired):
            client.acquire_all(["a", "b"], timeout=0)


def some_of_many(store: Faulty) -> None:
    store.beside().perform(Create(Name("newer"), {"v": "99"}), ENOUGH)
    with Client(store) as client, pytest.raises(StoreRefused):
        client.try_many(["a", "newer"])


def all_or_nothing_in_a_task(store: Faulty) -> None:
    async def ask() -> None:
        async with AsyncClient(store) as client:
            with pytest.raises(NotAcquired):
                await client.acquire_all(["a", "b"], timeout=0)

    with Client(store.beside(), listener=quiet) as other, other.lock("b").hold():
        asyncio.run(ask())


def interrupted_after_the_grant(store: Faulty) -> None:
    with Client(store, listener=quiet) as client:
        engine = client._engine
        keep = engine.keeper.keep

        def interrupted(kept: Any) -> None:
            keep(kept)
            raise KeyboardInterrupt

        engine.keeper.keep = interrupted  # type: ignore[method-assign]  # the interpreter may interrupt anywhere
        with pytest.raises(KeyboardInterrupt):
            client.lock("a").acquire()


def cancelled_after_the_grant(store: Faulty) -> None:
    """A task is cancelled while the answer to its takeover is on its way."""
    landed, goes_on = threading.Event(), threading.Event()

    def hold_back(command: Command[Any]) -> None:
        if isinstance(command, Replace):
            landed.set()
            goes_on.wait(ENOUGH)

    async def ask() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            asking = asyncio.create_task(client.lock("a").acquire())
            await asyncio.to_thread(landed.wait, ENOUGH)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            goes_on.set()

    store.after = hold_back
    asyncio.run(ask())


def answer_lost(store: Faulty) -> None:
    def lose(command: Command[Any]) -> None:
        if isinstance(command, Replace):
            store.before = refuse
            raise OutcomeUnknown("the answer was lost")

    store.after = lose
    with Client(store, listener=quiet) as client:
        with pytest.raises(OutcomeUnknown):
            client.lock("a", request_timeout=0.2).acquire(timeout=0)
        store.before = store.after = lambda _command: None


def block_that_never_began(store: Faulty) -> None:
    """Something goes wrong when the lease is there and its block has not begun."""
    with Client(store, listener=quiet) as client, pytest.raises(MemoryError):
        client._engine.keeper.guard = _fail  # type: ignore[method-assign]  # what a guard asks for first
        with client.lock("a").hold(interrupt=True):
            raise AssertionError("the block began")


def block_that_never_began_in_a_task(store: Faulty) -> None:
    async def ask() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            client._engine.keeper.guard = _fail  # type: ignore[method-assign]  # what a guard asks for first
            async with client.lock("a").hold(interrupt=True):
                raise AssertionError("the block began")

    with pytest.raises(MemoryError):
        asyncio.run(ask())


def _fail(*_: object, **__: object) -> None:
    raise MemoryError


def given_back_unused(store: Faulty) -> None:
    with Client(store) as client:
        assert client.lock("a").acquire().release(unused=True) is True


def shared_and_given_back_unused(store: Faulty) -> None:
    with Client(store) as client:
        lease = client.lock("a").acquire()
        lease.share()
        assert lease.release(unused=True) is True


def given_back_unused_in_a_task(store: Faulty) -> None:
    async def ask() -> None:
        async with AsyncClient(store) as client:
            lease = await client.lock("a").acquire()
            assert await lease.release(unused=True) is True

    asyncio.run(ask())


@pytest.mark.parametrize(
    "in_between",
    [
        all_or_nothing,
        all_or_nothing_in_a_task,
        some_of_many,
        interrupted_after_the_grant,
        cancelled_after_the_grant,
        answer_lost,
        block_that_never_began,
        block_that_never_began_in_a_task,
        given_back_unused,
        given_back_unused_in_a_task,
        shared_and_given_back_unused,
    ],
    ids=lambda step: step.__name__,
)
def test_h32_who_was_cut_off_is_told_to_the_next_who_works(
    store: Faulty, cut_off: PreviousLease, in_between: Callable[[Faulty], None]
) -> None:
    in_between(store)
    assert store.count(Replace) == 1, "it was taken over"
    store.before = store.after = lambda _command: None
    with Client(store.beside(), listener=quiet) as client:
        # what gives it back may be a task of a client that is being closed
        until(lambda: client.lock("a").inspect() is None)
        for _ in range(2):
            with client.lock("a").hold(timeout=ENOUGH) as lease:
                told, cut_off = cut_off, PreviousLease(LeaseOutcome.CLEAN)
                assert lease.previous_lease == told


def test_who_gives_back_unused_after_a_clean_end_leaves_nothing(store: Faulty) -> None:
    with Client(store) as client:
        assert client.lock("a").acquire().release(unused=True) is True
        assert not store.inner._memory.entries
