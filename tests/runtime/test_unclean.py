"""The holder that ended uncleanly is named to all later ones, even if one of them was refused for it and released."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lockstead import AsyncLock, AuditEntry, LeaseOutcome, Lock, PreviousLease, unclean
from lockstead.errors import StoreUnavailable
from lockstead.wrapping import acquiring, aio_acquiring

LOG = logging.getLogger("test-unclean")


@pytest.mark.parametrize("owner", ["somebody/else", "it's me", 'on "k" ended', ""])
def test_who_it_was_is_read_from_what_a_refusal_wrote_down(owner: str) -> None:
    first = unclean.Unclean("it's k", owner, LeaseOutcome.EXPIRED)
    refused = PreviousLease(LeaseOutcome.REVOKED, "refused", "refused/1")
    last = unclean.last("it's k", refused)
    assert last is not None

    def broken(by: str, reason: str) -> AuditEntry:
        return AuditEntry("it's k", None, by, reason, "removed", "refused/1", "refused", "1", None)

    assert unclean.origin(last, refused, [broken("refused/1", str(first))]) == first
    assert unclean.origin(last, refused, [broken("an operator", str(first))]) == last
    assert unclean.origin(last, refused, [broken("refused/1", "stuck")]) == last
    assert unclean.origin(last, refused, []) == last


@pytest.fixture
def url(shared_url: str) -> str:
    """Name a lock."""
    return f"{shared_url}#apt"


def left_unclean(url: str) -> None:
    """Have the lock broken by an operator."""
    lease = Lock(url, owner="somebody/else").acquire()
    assert Lock(url).break_lease(reason="it hangs", now=True) is not None
    del lease


def refused(url: str, owner: str) -> unclean.Unclean | None:
    """Acquire a lock, and release it as unclean if it was; return the holder that is named."""
    lock = Lock(url, owner=owner)
    lease = lock.acquire()
    found = acquiring.unclean_before(lock, lease, LOG, own=owner)
    ticket = lease.detach()
    lock.break_lease(reason=str(found), by=ticket.holder, now=True, incarnation=ticket.incarnation)
    return found


def test_everybody_is_told_of_the_first(url: str) -> None:
    left_unclean(url)
    first = unclean.Unclean(Lock(url).key, "somebody/else", LeaseOutcome.REVOKED)
    assert [refused(url, owner) for owner in ("one", "two", "three")] == [first] * 3


def test_what_an_owner_of_ours_left_is_no_surprise(url: str) -> None:
    left_unclean(url)
    lock = Lock(url, owner="somebody/else")
    with lock.acquire() as lease:
        assert acquiring.unclean_before(lock, lease, LOG, own="somebody/else") is None
        assert acquiring.unclean_before(lock, lease, LOG) is not None


def test_an_awaiting_one_is_told_likewise(url: str) -> None:
    async def told() -> unclean.Unclean | None:
        lock = AsyncLock(url)
        async with await lock.acquire() as lease:
            return await aio_acquiring.unclean_before(lock, lease, LOG)

    left_unclean(url)
    first = refused(url, "one")
    assert asyncio.run(told()) == first
    assert asyncio.run(told()) is None


def test_a_store_that_gives_no_answer_leaves_the_last_holder(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left_unclean(url)
    refused(url, "one")
    lock = Lock(url)

    def silent(_lock: Lock) -> list[AuditEntry]:
        raise StoreUnavailable("silent")

    monkeypatch.setattr(Lock, "history", silent)
    with lock.acquire() as lease:
        assert acquiring.unclean_before(lock, lease, LOG) == unclean.Unclean(lock.key, "one", LeaseOutcome.REVOKED)
