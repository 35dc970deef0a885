"""What becomes of a section within a section, on a live Dagster."""

from __future__ import annotations

from tests.dagster.real.conftest import Live


def test_two_runs_in_a_deadlock_do_not_wait_forever(live: Live, name: str):
    keys = (f"{name}-a", f"{name}-b")
    runs = [
        live.launch("crossed_body", name, in_process=in_process, first=first, second=second)
        for in_process, (first, second) in ((True, keys), (False, keys[::-1]))
    ]
    statuses = [live.dagster.finished(run) for run in runs]
    stories = "\n\n".join(map(live.dagster.story, runs))
    # the first section is one still, when a section of the same key within it is over
    for run, key in zip(runs, keys, strict=True):
        (has,) = live.noted(name, "has", run)
        assert (has["key"], has["owner"]) == (key, f"dagster:{run}:crossed_body:0")
    # who gives up lets the other one go on, if that has not given up as well
    assert "FAILURE" in statuses, stories
    for run, status in zip(runs, statuses, strict=True):
        failed = live.dagster.events(run, "STEP_FAILURE")
        assert len(failed) == (status == "FAILURE")
        assert all("NotAcquired" in one.error for one in failed), stories
        assert len(live.noted(name, "has both", run)) == (status == "SUCCESS")
    assert [live.lock(key).inspect() for key in keys] == [None, None]
