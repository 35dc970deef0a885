"""A flow that was deployed holds its lock, by whatever way it was deployed; where it could not, it is refused."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.flows import load_flow_from_entrypoint
from prefect.runner import Runner

from prefect_lockstead import locked
from prefect_lockstead.deploying import PLACED
from tests.prefect.real import deployed as module
from tests.prefect.real.seen import asked, events, run_of, started_run, until
from tests.servers.prefect import PrefectServer, Worker, program, started, told

HERE = Path(__file__).parent
LOCK = "sqlite:///nowhere.db#apt"
POOL = "deploying"


@pytest.fixture(scope="module")
def worker(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    working = Worker(tmp_path_factory.mktemp("worker"), server, POOL)
    try:
        yield working.start()
    finally:
        working.stop()


def of_source(entrypoint: str) -> Any:
    return flow.from_source(str(HERE), entrypoint=entrypoint)


LATE: dict[str, Callable[[], Any]] = {
    "loaded from a source": lambda: locked(LOCK)(of_source("deployed.py:passes_by")),
    "loaded from a source, with options": lambda: locked(LOCK)(of_source("deployed.py:passes_by")).with_options(),
    "locked already, loaded from a source": lambda: locked(LOCK + "2")(of_source("deployed.py:works")),
    "imported": lambda: locked(LOCK)(module.passes_by),
    "imported, with options": lambda: locked(LOCK)(module.passes_by).with_options(name="other"),
    "under another name": lambda: module.works_named,
    "made of a function": lambda: flow(locked(LOCK)(module.passes_by.fn)),
}

WAYS: dict[str, Callable[[Any], Any]] = {
    "to_deployment": lambda made: made.to_deployment("there"),
    "to_deployment, by module": lambda made: made.to_deployment("there", entrypoint_type=EntrypointType.MODULE_PATH),
    "awaited": lambda made: asyncio.run(_awaited(made)),
    "deploy": lambda made: made.deploy("there", work_pool_name=POOL, print_next_steps=False),
    "serve": lambda made: made.serve("there"),
    "add_flow": lambda made: Runner().add_flow(made, "there"),
}


async def _awaited(made: Any) -> Any:
    return await (made.ato_deployment if hasattr(made, "ato_deployment") else made.to_deployment)("there")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("late", LATE)
def test_a_lock_that_a_worker_would_not_load_cannot_be_deployed(
    server: PrefectServer, worker: Worker, late: str, way: str
):
    with pytest.raises(ValueError, match=r"cannot be deployed with this lock: a worker loads '.*', which"):
        WAYS[way](LATE[late]())


def test_a_deployment_is_not_made_of_it_by_hand_either():
    with pytest.raises(ValueError, match="cannot be deployed with this lock"):
        RunnerDeployment.from_flow(module.works_named, "there")


def test_a_name_rebound_by_a_script_is_refused(tmp_path: Path):
    script = (
        "from prefect import flow\n"
        "from prefect_lockstead import locked\n"
        "@flow\n"
        "def publish(): ...\n"
        f"publish = locked({LOCK!r})(publish)\n"
        "if __name__ == '__main__':\n"
        "    publish.to_deployment('there')\n"
    )
    (tmp_path / "script.py").write_text(script)
    with started([str(tmp_path / "script.py")], tmp_path, None) as process:
        said, _ = process.communicate(timeout=300)
    assert "ValueError: the flow 'publish' cannot be deployed with this lock" in said

    with started(
        ["-c", "import script; print(script.publish.to_deployment('there').entrypoint)"], tmp_path, None
    ) as it:
        said, _ = it.communicate(timeout=300)
    assert "script.py:publish" in said


@pytest.mark.parametrize(
    "made",
    [
        lambda: of_source("deployed.py:works"),
        lambda: of_source("deployed.py:works").with_options(retries=1),
        lambda: of_source("deployed.py:works_above"),
        lambda: of_source("deployed.py:works_named"),
        lambda: module.works,
        lambda: module.works_above.with_options(retries=1),
    ],
)
def test_a_worker_loads_a_deployed_flow_with_its_lock(made: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(HERE)  # 3.1 deploys no file outside of the folder that it is in
    entrypoint = made().to_deployment("there").entrypoint
    file, _, name = entrypoint.rpartition(":")
    loaded = load_flow_from_entrypoint(f"{HERE / Path(file).name}:{name}")
    assert [one.lock for one in getattr(loaded.fn, PLACED).locks] == [module.LOCK]


@pytest.mark.timeout(1200)
def test_a_deployed_flow_holds_its_lock_in_the_worker(server: PrefectServer, worker: Worker, tmp_path: Path):
    (tmp_path / "enough").touch()
    variables = {"env": {"TEST_LOCK": f"sqlite:///{tmp_path}/locks.db#apt", "TEST_NOTES": str(tmp_path)}}
    ids = [
        of_source("deployed.py:works").deploy("source", work_pool_name=POOL, job_variables=variables),
        _deployed_by_yaml(server, tmp_path, variables),
    ]
    found = [started_run(server, str(one)) for one in ids]
    for run in found:
        until(functools.partial(_is_completed, server, run), "it did not complete", 600)
        until(functools.partial(_has_held, server, run), "it did not hold its lock")


def _is_completed(server: PrefectServer, run_id: str) -> bool:
    return bool(run_of(server, run_id)["state_type"] == "COMPLETED")


def _has_held(server: PrefectServer, run_id: str) -> bool:
    return "lockstead.lock.acquired" in {one["event"] for one in events(server, run_id)}


def _deployed_by_yaml(server: PrefectServer, folder: Path, variables: dict[str, Any]) -> str:
    shutil.copy(HERE / "deployed.py", folder)
    entry = {
        "name": "yaml",
        "entrypoint": "deployed.py:works_named",
        "work_pool": {"name": POOL, "job_variables": variables},
    }
    pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}]
    (folder / "prefect.yaml").write_text(json.dumps({"pull": pull, "deployments": [entry]}))
    subprocess.run(
        [program(Path(sys.executable)), "--no-prompt", "deploy", "--all"],
        cwd=folder,
        env={**os.environ, **told(folder / "home", server.url)},
        check=True,
        timeout=300,
    )
    return str(asked(server, "GET", "/deployments/name/passes_by/yaml")["id"])
