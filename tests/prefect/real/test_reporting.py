"""What a run tells of its lock is found where Prefect shows it: events of the run, its log, its artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.context import FlowRunContext, TaskRunContext

import lockstead
from prefect_lockstead import locked
from tests.prefect.real.seen import asked, events, run_of, states, until
from tests.servers.prefect import PrefectServer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl=3s"


def test_a_task_tells_of_its_lock_in_events_log_and_artifact(server: PrefectServer, url: str):
    seen: dict[str, Any] = {}

    @task
    @locked(url)
    def part() -> None:
        of_flow, of_task, lease = FlowRunContext.get(), TaskRunContext.get(), lockstead.current_lease()
        assert of_flow is not None
        assert of_task is not None
        assert of_flow.flow_run is not None
        seen.update(flow_run=of_flow.flow_run.id, task_run=of_task.task_run.id, token=lease.token)

    @flow
    def whole() -> None:
        part()

    whole()

    def told() -> dict[str, Any]:
        found = {one["event"]: one for one in events(server, seen["flow_run"])}
        return found if len(found) > 1 else {}

    found = until(told, "the events did not arrive")
    assert set(found) == {"lockstead.lock.acquired", "lockstead.lock.released"}
    for one in found.values():
        assert one["resource"]["prefect.resource.id"] == "lockstead.lock.apt"
        assert one["resource"]["lockstead.token"] == str(seen["token"])
        assert f"prefect.task-run.{seen['task_run']}" in {other["prefect.resource.id"] for other in one["related"]}

    words = {"artifacts": {"key": {"any_": ["lockstead-lease"]}, "task_run_id": {"any_": [str(seen["task_run"])]}}}
    [artifact] = until(lambda: asked(server, "POST", "/artifacts/filter", json=words), "no artifact")
    assert "| key | `apt` |" in artifact["data"]
    assert f"| token | `{seen['token']}` |" in artifact["data"]

    lines = {"logs": {"flow_run_id": {"any_": [str(seen["flow_run"])]}}}

    def said() -> bool:
        messages = [one["message"] for one in asked(server, "POST", "/logs/filter", json=lines)]
        return any(f"acquired 'apt' with token {seen['token']}" in one for one in messages)

    until(said, "the log does not say it")


@pytest.mark.parametrize("kind", ["flow", "task"])
def test_a_loss_is_told_and_names_the_last_state_once(server: PrefectServer, url: str, kind: str):
    seen: list[Any] = []
    hooks: list[str] = []

    def hook(_what: object, run: Any, state: Any) -> None:
        hooks.append(state.name)

    def body() -> None:
        of_flow, of_task = FlowRunContext.get(), TaskRunContext.get()
        assert of_flow is not None
        assert of_flow.flow_run is not None
        run = of_flow.flow_run if of_task is None else of_task.task_run
        seen.append((of_flow.flow_run.id, run.id, lockstead.current_lease().token))
        lockstead.Lock(url).break_lease(reason="a test", by="operator")
        while True:
            lockstead.current_lease().check()

    if kind == "flow":
        losing: Any = flow(name="loses", retries=1, on_failure=[hook])(locked(url)(body))
    else:
        part = task(name="loses", retries=1, on_failure=[hook])(locked(url)(body))

        @flow
        def losing() -> None:
            part()

    with pytest.raises(lockstead.LeaseLost):
        losing()
    (flow_run, run, first), (_, _, second) = seen
    assert second > first
    assert hooks == ["LeaseLost"]
    until(lambda: run_of(server, run, kind)["state_name"] == "LeaseLost", "the state was not named")
    assert states(server, run, kind).count("LeaseLost") == 1
    until(
        lambda: [one["event"] for one in events(server, flow_run)].count("lockstead.lock.lost") == 2,
        "the losses were not told",
    )
    until(
        lambda: "lockstead.lock.revoked" in {one["event"] for one in events(server, flow_run)},
        "who broke it was not told",
    )


def test_outside_of_a_run_there_are_log_lines_only(url: str, caplog: pytest.LogCaptureFixture):
    @locked(url)
    def plain() -> int | None:
        return lockstead.current_lease().token

    with caplog.at_level("INFO", "prefect_lockstead"):
        token = plain()
    assert [one.message.split(" after")[0] for one in caplog.records if one.name == "prefect_lockstead"] == [
        f"acquired 'apt' with token {token}",
        f"released 'apt', token {token}",
    ]


def test_the_automation_of_the_docs_is_one_that_prefect_takes(server: PrefectServer):
    page = (Path(__file__).parents[3] / "docs/prefect-events.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    exec(code.replace('"..."', "int=1"), {})
    [found] = asked(server, "POST", "/automations/filter", json={})
    assert found["trigger"]["expect"] == ["lockstead.lock.lost"]
