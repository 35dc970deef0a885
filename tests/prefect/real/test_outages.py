"""A lock needs neither Prefect's server nor the flow's event loop to stay held."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow

import lockstead
from prefect_lockstead import locked
from tests.prefect.real.seen import until
from tests.servers.prefect import PrefectServer, started

TTL = 3.0

OUTAGE = 120.0 if os.environ.get("LOCKSTEAD_LONG") == "1" else 2 * TTL
"""Seconds; longer than a lease lives that nobody renews."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl={TTL:g}s"


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[PrefectServer]:
    """Return a server that this test may kill."""
    own = PrefectServer(tmp_path / "mortal")
    try:
        yield own.start()
    finally:
        own.stop()


@pytest.mark.timeout(1200)
def test_prefect_down_leaves_the_lock_as_it_is(mortal: PrefectServer, url: str, tmp_path: Path):
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    call = "from tests.prefect.real.deployed import works; works()"
    with started(["-c", call], tmp_path / "home", mortal, settings) as program:
        notes = tmp_path / "notes"
        until(lambda: notes.exists() and "began" in notes.read_text(), "the body did not begin")
        [_, _, _, token] = notes.read_text().split()
        mortal.kill()
        lock = lockstead.Lock(url, owner="other")
        assert not lock.wait_until_free(OUTAGE), "the lock was free"
        holding = lock.inspect()
        assert holding is not None
        assert holding.token == int(token)
        mortal.start()
        (tmp_path / "enough").touch()
        said, _ = program.communicate(timeout=120)
        assert program.returncode == 0, said
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["began", "ended"]
    assert lock.inspect() is None


def test_a_blocked_event_loop_is_renewed_past_the_ttl(server: PrefectServer, url: str):
    @flow
    @locked(url)
    async def blocking() -> bool:
        time.sleep(1.5 * TTL)  # noqa: ASYNC251 - it is what is tested
        return lockstead.current_lease().is_held

    assert asyncio.run(blocking())
    assert lockstead.Lock(url).history() == []
