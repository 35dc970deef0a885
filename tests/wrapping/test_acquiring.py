"""What wrappers share of acquiring a lock: an interrupted acquisition leaves nothing, a silent store ends none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstead import AsyncLock, Lease, Lock, Semaphore
from lockstead.values import LeaseOutcome
from lockstead.wrapping import acquiring, aio_acquiring
from lockstead.wrapping.spec import LockSpecBase, of_permits

LOG = logging.getLogger("test-wrapping")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl=5s"


def called(
    name: str, url: str, labels: Mapping[str, str], *args: Any, is_async: bool, permits: int | None = None
) -> Any:
    """Call one of the functions with a lock of that side, or its semaphore."""
    spec = LockSpecBase(permits=permits)
    if not is_async:
        return getattr(acquiring, name)(spec.of_permits(Lock(url, labels=labels)), *args)

    async def awaited() -> Any:
        return await getattr(aio_acquiring, name)(spec.of_permits(AsyncLock(url, labels=labels)), *args)

    return asyncio.run(awaited())


def broken(lock: Lock) -> Lease:
    """Return a lease that an operator has broken."""
    lease = lock.acquire(timeout=0)
    assert lock.break_lease(reason="it hangs", now=True) is not None
    return lease


@pytest.mark.parametrize("is_async", [False, True])
def test_an_interrupted_acquisition_releases_only_its_own_grant(url: str, is_async: bool) -> None:
    dead = broken(Lock(url, owner="dead"))
    marked = acquiring.marked(Lock(url, owner="me", labels={"team": "deb"}))
    granted = marked.acquire(timeout=0)
    called("take_back_granted", url, marked.settings.labels, LOG, is_async=is_async)
    # nobody worked under it: the next holder is told of the same previous lease
    after = acquiring.marked(Lock(url, owner="me")).acquire(timeout=0)
    assert (after.previous_lease.ending, after.previous_lease.holder) == (LeaseOutcome.REVOKED, dead.holder)
    called("take_back_granted", url, marked.settings.labels, LOG, is_async=is_async)
    assert after.is_held
    assert Lock(url).inspect() is not None
    for one in (after, granted, dead):
        one.release()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_interrupted_acquisition_of_a_reader_ends_no_other_reader(url: str, is_async: bool) -> None:
    other = Lock(url, owner="other", mode="shared").acquire(timeout=0)
    marked = acquiring.marked(Lock(url, owner="me", mode="shared"))
    granted = marked.acquire(timeout=0)
    called("take_back_granted", url, marked.settings.labels, LOG, is_async=is_async)
    held = Lock(url).inspect()
    assert held is not None
    assert [one.owner for one in held.readers] == ["other"]
    called("take_back_granted", url, marked.settings.labels, LOG, is_async=is_async)
    assert other.renew() > 0
    for one in (granted, other):
        one.release()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_interrupted_acquisition_of_a_permit_frees_that_permit_alone(url: str, is_async: bool) -> None:
    semaphore = Semaphore(url, 2)
    dead, other = (semaphore.acquire(timeout=0) for _ in range(2))
    assert dead.slot is not None
    assert semaphore.break_lease(slot=dead.slot, reason="it hangs", now=True) is not None
    marked = acquiring.marked(of_permits(Lock(url, owner="me"), 2))
    granted = marked.acquire(timeout=0)
    assert granted.slot == dead.slot
    for _ in range(2):
        called("take_back_granted", url, marked.settings.labels, LOG, is_async=is_async, permits=2)
        state = semaphore.inspect()
        assert state is not None
        assert [one.slot for one in state.held] == [other.slot]
    assert other.renew() > 0
    # nobody worked under it: the next holder is told of the same previous lease
    after = marked.acquire(timeout=0)
    assert (after.slot, after.previous_lease.holder) == (dead.slot, dead.holder)
    for one in (after, other, granted, dead):
        one.release()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_store_that_does_not_answer_ends_no_acquisition(caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    caplog.set_level(logging.INFO)
    url, labels = "redis://127.0.0.1:1/0#apt?request_timeout=0.3s", {acquiring.ACQUISITION: "this"}
    assert called("try_at_once", url, labels, LOG, is_async=is_async) is None
    assert called("look", url, labels, LOG, is_async=is_async) is None
    called("take_back_granted", url, labels, LOG, is_async=is_async)
    warnings = [one.getMessage() for one in caplog.records]
    assert [text.partition(": ")[0] for text in warnings] == [
        "'apt' was not acquired at once",
        "could not see who holds 'apt'",
        "'apt' was not released; its ttl will free it",
    ]
