"""What `@locked` does after an unclean end, and who is told of it after a run that never began; without Prefect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstead.values import LeaseOutcome
from prefect_lockstead import PreviousLeaseUnclean, locked
from tests.prefect.test_decorator import held_elsewhere, lock


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#{{dist}}?ttl=2s"


@pytest.mark.parametrize("is_async", [False, True])
def test_on_unclean_fail_refuses_every_run_until_a_clean_release(url: str, is_async: bool):
    ran: list[str] = []

    @locked(url, on_unclean="fail")
    def strict(dist: str = "apt") -> None:
        ran.append("strict")

    @locked(url, on_unclean="fail")
    async def astrict(dist: str = "apt") -> None:
        ran.append("strict")

    def run() -> None:
        asyncio.run(astrict()) if is_async else strict()

    run()
    dead = held_elsewhere(url)
    held = lock(url).inspect()
    assert held is not None
    dead_owner = held.owner
    assert lock(url).break_lease(reason="it hangs", now=True) is not None
    for _attempt in range(3):
        with pytest.raises(PreviousLeaseUnclean, match="ended REVOKED: repair what it left") as refused:
            run()
        # every time of who it was, and not of who was refused for it
        assert f"the lease of {dead_owner!r} on " in str(refused.value)
        assert "\n" not in str(refused.value)
        assert lock(url).inspect() is None
    assert len(lock(url).history()) == 1, "a refusal breaks nothing"
    lock(url).acquire().release()
    run()
    assert ran == ["strict", "strict"]
    dead.release()


def test_an_unclean_end_is_a_warning_by_default(url: str, caplog: pytest.LogCaptureFixture):
    dead = held_elsewhere(url)
    assert lock(url).break_lease(reason="it hangs", now=True) is not None

    @locked(url)
    def publish(dist: str = "apt") -> None:
        pass

    publish()
    dead.release()
    assert [one for one in caplog.messages if "ended REVOKED: what it left may need repair" in one]


class BrokenFilter(logging.Filter):
    """A log filter of the user's that fails."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise RuntimeError(f"cannot filter {record.levelname}")


@contextmanager
def broken_log() -> Iterator[None]:
    """Have whatever this package logs fail: whoever enters a section logs before its body begins."""
    broken = BrokenFilter()
    logger = logging.getLogger("prefect_lockstead")
    logger.addFilter(broken)
    try:
        yield
    finally:
        logger.removeFilter(broken)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_before_the_body_passes_the_unclean_end_on(url: str, is_async: bool):
    dead = held_elsewhere(url)
    assert lock(url).break_lease(reason="it hangs", now=True) is not None

    @locked(url)
    def publish(dist: str = "apt") -> None:
        raise AssertionError("it ran")

    @locked(url)
    async def apublish(dist: str = "apt") -> None:
        raise AssertionError("it ran")

    with broken_log(), pytest.raises(RuntimeError, match="cannot filter WARNING"):
        asyncio.run(apublish()) if is_async else publish()
    assert lock(url).inspect() is None
    after = lock(url).acquire(timeout=0)
    assert (after.previous_lease.ending, after.previous_lease.holder) == (LeaseOutcome.REVOKED, dead.holder)
    after.release()
    dead.release()
