"""What people see of a lock on a live Dagster: events and metadata, as the webserver gives them; and no secret."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.dagster.real.conftest import NAME, Live


@pytest.mark.parametrize("in_process", [True, False], ids=["run worker", "step process"])
def test_a_run_reports_its_wait_the_holder_and_the_grant(live: Live, name: str, in_process: bool):
    with live.lock(name, ttl=60, owner="somebody", purpose="publish APT").hold() as held:
        before = held.sequencer().token
        run = live.launch("quick", name, in_process=in_process)
        live.waits(run)
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    events = [event for event in live.dagster.events(run, "ENGINE_EVENT") if event.step == "quick"]
    waiting, acquired = (
        next(one for one in events if one.message.startswith(word)) for word in ("waiting", "acquired")
    )
    assert waiting.said["lockstead/key"] == acquired.said["lockstead/key"] == name
    assert waiting.said["lockstead/held_by"] == "somebody"
    assert waiting.said["lockstead/purpose"] == "publish APT"
    assert "somebody" in waiting.message
    assert acquired.said["lockstead/holder"].startswith(f"dagster:{run}:quick:0")
    assert int(acquired.said["lockstead/token"]) > before
    assert float(acquired.said["lockstead/waited"]) > 0.0
    assert waiting.at <= acquired.at
    (output,) = live.dagster.events(run, "STEP_OUTPUT")
    assert output.said["lockstead/token"] == acquired.said["lockstead/token"]
    assert output.said["lockstead/key"] == name


def test_who_does_not_wait_tells_so_by_one_event(live: Live, name: str):
    run = live.launch("quick", name, in_process=True)
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    told = [event.message for event in live.dagster.events(run, "ENGINE_EVENT", step="quick")]
    assert [message.partition(":")[0] for message in told] == ["acquired"]


def checked(live: Live, run: str) -> tuple[bool, str]:
    """Return what the asset check of a run found."""
    (check,) = live.dagster.events(run, "ASSET_CHECK_EVALUATION")
    assert check.said["checkName"] == "materialized_under_newest_token"
    return check.said["success"], check.said["description"]


def test_an_asset_names_its_token_and_the_check_passes(live: Live):
    run = live.dagster.launch(assets=["repository"])
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    (written,) = live.dagster.events(run, "ASSET_MATERIALIZATION")
    assert written.said["lockstead/key"] == "repository"
    assert int(written.said["lockstead/token"]) > 0
    assert checked(live, run) == (True, "written by the last holder of the lock")


def test_the_check_fails_when_a_later_holder_was_broken(live: Live):
    run = live.dagster.launch(assets=["repository"])
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    lock = live.lock("repository", ttl=60, owner="somebody")
    lease = lock.acquire()
    assert lease.sequencer()
    assert lock.break_lease(reason="stuck", now=True) is not None
    lease.release()
    again = live.dagster.launch(checks=[("repository", "materialized_under_newest_token")])
    assert live.dagster.finished(again) == "SUCCESS", live.dagster.story(again)
    passed, told = checked(live, again)
    assert not passed
    assert "'somebody' held it later" in told


def test_each_dynamic_output_names_its_token(live: Live, name: str):
    run = live.launch("dynamic_body", name)
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    (acquired,) = [one for one in live.dagster.events(run, "ENGINE_EVENT") if one.message.startswith("acquired:")]
    outputs = live.dagster.events(run, "STEP_OUTPUT")
    assert [one.said["lockstead/key"] for one in outputs] == [name, name]
    assert {one.said["lockstead/token"] for one in outputs} == {acquired.said["lockstead/token"]}


def contents(home: Path) -> dict[Path, bytes]:
    """Return what stands in each file; Dagster's processes run, and remove some of them as they are read."""
    read: dict[Path, bytes] = {}
    for path in home.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            read[path] = path.read_bytes()
    return read


def test_the_password_of_a_store_is_nowhere_in_the_instance(live: Live, name: str):
    good = [live.launch("secret", name, in_process=here) for here in (True, False)]
    good.append(live.dagster.launch("plain_leased_apart_job", tags={NAME: name}))
    refused = live.launch("wrong_secret", name)
    runs = [*good, refused]
    assert [live.dagster.finished(run) for run in runs] == ["SUCCESS"] * 3 + ["FAILURE"], live.dagster.story(refused)
    (failed,) = live.dagster.events(refused, "STEP_FAILURE")
    assert "StoreRefused" in failed.error
    told = "".join(map(live.dagster.story, runs)) + "".join(
        repr(event) for run in runs for event in live.dagster.events(run)
    )
    files = contents(Path(live.dagster.home))
    assert len(files) > 3
    for word in ("LOCKSTEAD_TEST_PASSWORD", "LOCKSTEAD_TEST_WRONG"):
        secret = live.dagster.environment[word]
        assert not [path for path, content in files.items() if secret.encode() in content]
        assert secret not in told
        assert secret not in live.dagster.said()
