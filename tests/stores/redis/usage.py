"""What the tests of the store on Redis share: a record, and waiting for a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lockstead.protocol.commands import Create, Snapshot
from lockstead.stores.redis.store import RedisStore
from lockstead.values import Name
from tests.servers import base

LIMIT: Final = 20.0
APT: Final = Name("apt")


def made(store: RedisStore, name: Name = APT, **fields: str) -> Snapshot:
    """Create a record."""
    answer = store.perform(Create(name, fields, 30.0, "", 31.0), LIMIT)
    assert isinstance(answer, Snapshot)
    return answer


def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until a condition is true."""
    base.until(condition, seconds, lambda: "it did not come to pass", pause=0.01, pause_max=0.05)
