"""A bucket that keeps what it has: the work is done, the lock stays, and everybody is told why."""

from __future__ import annotations

import logging

import pytest

import lockstead
from lockstead import NotAcquired, StoreRefused
from lockstead.events import LockEvent, ReleaseFailed
from tests.bad_input.lines import pattern
from tests.bad_input.world import World

REMAINS = (
    "Remove is forbidden in …: …; locks are deleted and rewritten: use a bucket without retention policy and holds"
)
POLICIES = [{"retentionPolicy": {"retentionPeriod": "3600"}}, {"defaultEventBasedHold": True}]


@pytest.mark.parametrize("policy", POLICIES, ids=["retention", "hold"])
def test_a_section_is_finished_and_its_release_is_told_to_have_failed(
    world: World, policy: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    server = world.bucket(**policy)
    told: list[LockEvent] = []
    worked = []
    with lockstead.connect(world.gs, listener=told.append) as client:
        lock = client.lock("apt", ttl=60)
        with lock.hold(timeout=10) as lease:
            worked.append(lease.sequencer().token)
            before = world.kept()
        failed = [event for event in told if isinstance(event, ReleaseFailed)]
        assert len(failed) == 1
        assert isinstance(failed[0].error, StoreRefused)
        assert pattern(REMAINS).fullmatch(str(failed[0].error))
        # to others it is held for what is left of its ttl, and nobody's afterwards
        with pytest.raises(NotAcquired, match="'apt' is held by"):
            lock.acquire(timeout=0)
    assert worked
    assert {name for name in before if "theirs" in name} <= set(world.kept())
    # refused is refused: nobody asks again and again
    assert server.requests.count("delete", status=403) <= 6
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_the_shell_reports_a_failed_release_and_keeps_the_code(world: World) -> None:
    world.bucket(retentionPolicy={"retentionPeriod": "3600"})
    code, out, err = world.run(f"{world.gs}#apt", "--no-ticket")
    assert (code, out) == (0, "ran\n")
    assert "'apt' was not released" in err
    assert "use a bucket without retention policy and holds" in err
    assert "Traceback" not in err
