"""`@locked` above and below, on flows and on tasks of every kind: it returns what it was given, and holds the lock."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from prefect import Flow, flow, task
from prefect.deployments.runner import RunnerDeployment
from prefect.flows import load_flow_from_entrypoint

from lockstead import Lock, current_lease
from prefect_lockstead import AlreadyHeld, LocksteadLock, locked
from tests.prefect.real.seen import run_of, started_run
from tests.servers.prefect import PrefectServer, started

KINDS = ("plain", "coroutine", "generator", "async_generator")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#{{dist}}?ttl=5s"


def bodies() -> dict[str, Callable[..., Any]]:
    """Return a body of each kind, which says under which lock it runs."""

    def plain(dist: str, parts: int = 2) -> list[str]:
        return [current_lease().key] * parts

    async def coroutine(dist: str, parts: int = 2) -> list[str]:
        await asyncio.sleep(0)
        return [current_lease().key] * parts

    def generator(dist: str, parts: int = 2) -> Iterator[str]:
        for _ in range(parts):
            yield current_lease().key

    async def async_generator(dist: str, parts: int = 2) -> AsyncIterator[str]:
        for _ in range(parts):
            yield current_lease().key

    return {"plain": plain, "coroutine": coroutine, "generator": generator, "async_generator": async_generator}


def result(kind: str, work: Callable[..., Any], *given: Any) -> list[str]:
    """Run it to its end, and give what it gave."""

    async def all_of() -> list[str]:
        return [item async for item in work(*given)]

    match kind:
        case "plain":
            return list(work(*given))
        case "coroutine":
            return list(asyncio.run(work(*given)))
        case "generator":
            return list(work(*given))
        case _:
            return asyncio.run(all_of())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["above", "below"])
@pytest.mark.parametrize("decorator", [flow, task])
def test_it_gives_what_it_was_given_and_holds_the_lock(
    server: PrefectServer, url: str, decorator: Any, order: str, kind: str
):
    of_prefect = (
        decorator(name="publish", retries=1, tags=["a"]) if decorator is task else decorator(name="publish", retries=1)
    )
    body = bodies()[kind]
    plain = of_prefect(body)
    work = locked(url)(plain) if order == "above" else of_prefect(locked(url)(body))
    assert type(work) is type(plain)
    assert (work.name, work.retries, work.isasync, work.isgenerator) == ("publish", 1, plain.isasync, plain.isgenerator)
    assert inspect.signature(work.fn) == inspect.signature(plain.fn)
    if isinstance(plain, Flow):
        assert work.parameters == plain.parameters
        assert (work.version, work._entrypoint) == (plain.version, plain._entrypoint)
    assert result(kind, work, "apt", 3) == ["apt"] * 3
    assert Lock(url.format(dist="apt")).inspect() is None
    if order == "above":
        assert plain.fn is body, "what it was given is changed"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_lock_is_named_by_a_block(server: PrefectServer, url: str, is_async: bool):
    LocksteadLock(url=url.format(dist="apt"), ttl="7s").save(f"matrix-{is_async}".lower(), overwrite=True)

    @flow
    @locked(block="matrix-{which}")
    def publish(which: str) -> tuple[str, float]:
        return current_lease().key, current_lease().ttl

    @flow
    @locked(block="matrix-{which}")
    async def apublish(which: str) -> tuple[str, float]:
        return current_lease().key, current_lease().ttl

    which = str(is_async).lower()
    assert (asyncio.run(apublish(which)) if is_async else publish(which)) == ("apt", 7.0)
    unknown = asyncio.run(apublish("none", return_state=True)) if is_async else publish("none", return_state=True)
    with pytest.raises(ValueError, match="there is no block 'matrix-none'") as refused:
        unknown.result()
    assert "\n" not in str(refused.value)


def test_submitted_and_mapped_tasks_take_their_own_locks(server: PrefectServer, url: str):
    @locked(url)
    @task
    def part(dist: str) -> str:
        return f"{dist} under {current_lease().key}"

    @flow
    def publish() -> list[str]:
        return [part.submit("a").result(), *part.map(["b", "c"]).result(), part("d")]

    assert publish() == [f"{dist} under {dist}" for dist in "abcd"]


@pytest.mark.parametrize("how", ["call", "submit"])
def test_a_child_asking_for_its_parents_lock_is_refused(server: PrefectServer, url: str, how: str):
    @locked(url)
    @task
    def part(dist: str) -> None:
        pytest.fail("it ran")

    @flow
    @locked(url)
    def publish(dist: str) -> None:
        if how == "call":
            part(dist)
        else:
            part.submit(dist).result()

    state = publish("apt", return_state=True)
    with pytest.raises(AlreadyHeld, match=r"'apt' is held by 'prefect:publish/.*, under whose lease this runs"):
        state.result()
    assert state.is_failed()


def test_the_owner_is_the_run(server: PrefectServer, url: str):
    @task(task_run_name="sign")
    @locked(url)
    def part(dist: str) -> str:
        return current_lease().holder

    @flow(flow_run_name="nightly")
    def publish() -> str:
        return part("apt")

    assert publish().startswith("prefect:publish/nightly/")
    assert "/sign/" in publish()


PROGRAM = """
from prefect import flow
from prefect_lockstead import locked
from lockstead import current_lease


@locked({url!r})
@flow(name="publish-above", retries=2)
def above(dist: str, parts: int = 2) -> str:
    "Publish a distribution."
    print("under", current_lease().key, parts)


@flow(name="publish-below", retries=2)
@locked({url!r})
def below(dist: str, parts: int = 2) -> str:
    "Publish a distribution."
    print("under", current_lease().key, parts)


@flow(name="publish-above", retries=2)
def bare(dist: str, parts: int = 2) -> str:
    "Publish a distribution."
"""


def deployable(loaded: Flow) -> str:
    """Return the file that Prefect would deploy a flow from, or why it does not."""
    try:
        entrypoint = loaded.to_deployment(name="nightly").entrypoint
    except ValueError as error:
        return str(error)
    return Path((entrypoint or "").rpartition(":")[0]).name


@pytest.mark.parametrize("order", ["above", "below"])
def test_a_flow_is_deployed_by_its_entrypoint(server: PrefectServer, url: str, tmp_path: Path, order: str):
    place = tmp_path / "flows.py"
    place.write_text(PROGRAM.format(url=url))
    loaded, bare = (load_flow_from_entrypoint(f"{place}:{name}") for name in (order, "bare"))
    assert isinstance(loaded, Flow)
    assert (loaded.name, loaded.retries, loaded.description) == (f"publish-{order}", 2, bare.description)
    assert (loaded.parameters, loaded.version) == (bare.parameters, bare.version)

    # 3.1 deploys nothing that was loaded
    assert deployable(loaded) == deployable(bare)
    deployment = RunnerDeployment.from_entrypoint(f"{place}:{order}", name="nightly", parameters={"dist": "apt"})
    run_id = started_run(server, str(deployment.apply()), dist="apt", parts=5)
    done = subprocess.run(
        [sys.executable, "-m", "prefect.engine", run_id],
        env={**os.environ, "PREFECT__STORAGE_BASE_PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "under apt 5" in done.stdout, done.stderr
    assert run_of(server, run_id)["state_type"] == "COMPLETED"


def test_a_flow_can_be_pickled_by_value(server: PrefectServer, url: str, tmp_path: Path):
    work = [locked(url)(flow(bodies()["plain"])), task(locked(url)(bodies()["plain"]))]
    (tmp_path / "work").write_bytes(cloudpickle.dumps(work))
    said = "import cloudpickle; print(*[one.fn('apt', 1) for one in cloudpickle.load(open('work', 'rb'))])"
    with started(["-c", said], tmp_path, server) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == ["['apt']", "['apt']"]
