"""What a backfill does whose partitions have a lock each: who waits for one holds up no other."""

from __future__ import annotations

from tests.dagster.real.conftest import Live

PARTITIONS = [f"part-{number:02d}" for number in range(5)]
"""Some of those that the asset has."""

OTHERS = len(PARTITIONS) - 1


def test_partitions_do_not_wait_for_one_that_is_held(live: Live):
    held = PARTITIONS[2]
    with live.lock(f"part:{held}", ttl=60).hold() as lease:
        backfill = live.dagster.backfill("partitioned", PARTITIONS)
        live.dagster.restart_daemon()

        def statuses() -> list[str]:
            return sorted(live.dagster.runs(dagster__backfill=backfill).values())

        live.dagster.until(lambda: statuses().count("SUCCESS") == OTHERS, "the others do not run")
        (waiting,) = live.dagster.runs(dagster__backfill=backfill, dagster__partition=held)
        live.waits(waiting)
        assert statuses() == ["STARTED"] + ["SUCCESS"] * OTHERS
        assert lease.is_held
    assert live.dagster.finished(waiting) == "SUCCESS", live.dagster.story(waiting)
    tokens = {}
    for run in live.dagster.runs(dagster__backfill=backfill):
        (written,) = live.dagster.events(run, "ASSET_MATERIALIZATION")
        tokens[written.said["lockstead/key"]] = written.said["lockstead/token"]
    assert sorted(tokens) == [f"part:{partition}" for partition in PARTITIONS]
    assert all(tokens.values())
