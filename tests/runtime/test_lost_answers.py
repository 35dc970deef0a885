"""A waiter without an answer repeats at its interval, even if its own requests change what it watches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstead import AsyncClient, Client
from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Command, Create, Extend
from tests.runtime.faulty import Watching, quiet

SETTINGS: dict[str, Any] = {"ttl": 30, "request_timeout": 0.5, "backoff_min": 0.1, "backoff_max": 0.3}
MOST = 30
"""Requests in a second, at the shortest of pauses, with room for two of each turn."""


class Mute(Watching):
    """A store that does what it is asked, notifies of its changes, and answers no write."""

    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        if isinstance(command, Create | Extend):
            raise OutcomeUnknown("the answer was lost")
        return answer


def test_h03_adopting_is_not_woken_by_its_own_requests() -> None:
    store = Mute()
    with Client(store, listener=quiet) as client, pytest.raises(OutcomeUnknown):
        client.lock("apt", **SETTINGS).acquire(1.0)
    assert 2 <= store.count(Extend) <= MOST


def test_h03_nor_is_who_awaits() -> None:
    store = Mute()

    async def use() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            with pytest.raises(OutcomeUnknown):
                await client.lock("apt", **SETTINGS).acquire(1.0)

    asyncio.run(use())
    assert 2 <= store.count(Extend) <= MOST


def test_h27_closing_is_not_woken_by_its_own_requests() -> None:
    inner = Watching()
    with Client(inner, listener=quiet) as client:
        lease = client.lock("apt", **SETTINGS).acquire()
        lease.share()
        inner.after = _lose_extends
        assert lease.release(drain=1.0) is False
    assert 2 <= sum(isinstance(one, Extend) and "closing" in one.fields for one in inner.seen) <= MOST


def _lose_extends(command: Command[Any]) -> None:
    if isinstance(command, Extend):
        raise OutcomeUnknown("the answer was lost")
