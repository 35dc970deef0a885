"""How a test looks at a Prefect server, deploys to it, and holds a lock as somebody else."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

import lockstead
from tests.servers.prefect import PrefectServer

T = TypeVar("T")


def until(look: Callable[[], T], otherwise: str, seconds: float = 240.0) -> T:
    """Return what is seen as soon as it is something; AssertionError with what was seen last."""
    ends_at = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < ends_at, f"{otherwise}; seen last: {seen!r}"
        time.sleep(0.05)
    return seen


def asked(server: PrefectServer, method: str, path: str, **words: Any) -> Any:
    """Ask the server's API; again while it says that it is busy, as on SQLite it may."""

    def answered() -> httpx.Response | None:
        answer = httpx.request(method, f"{server.url}{path}", timeout=30.0, trust_env=False, **words)
        return None if answer.status_code == 503 else answer

    answer = until(answered, "the server remained busy")
    answer.raise_for_status()
    return answer.json() if answer.content else None


def run_of(server: PrefectServer, run_id: object, what: str = "flow") -> dict[str, Any]:
    """Return a flow run, or a task run."""
    found: dict[str, Any] = asked(server, "GET", f"/{what}_runs/{run_id}")
    return found


def runs(server: PrefectServer, flow_name: str) -> list[dict[str, Any]]:
    """Return the runs of a flow, the oldest first."""
    words = {"flows": {"name": {"any_": [flow_name]}}, "sort": "START_TIME_ASC"}
    found: list[dict[str, Any]] = asked(server, "POST", "/flow_runs/filter", json=words)
    return found


def states(server: PrefectServer, run_id: object, what: str = "flow") -> list[str]:
    """Return the names of the states that a run went through, the first first."""
    found = asked(server, "GET", f"/{what}_run_states/", params={f"{what}_run_id": str(run_id)})
    return [one["name"] for one in sorted(found, key=lambda one: str(one["timestamp"]))]


def events(server: PrefectServer, run_id: object) -> list[dict[str, Any]]:
    """Return our events that are linked to a run."""
    related = {"id": [f"prefect.flow-run.{run_id}"]}
    words = {"filter": {"event": {"prefix": ["lockstead."]}, "related": related}, "limit": 50}
    found: list[dict[str, Any]] = asked(server, "POST", "/events/filter", json=words)["events"]
    return found


def put(server: PrefectServer, run_id: object, kind: str) -> None:
    """Put a flow run into a state, as a person does in the UI."""
    asked(server, "POST", f"/flow_runs/{run_id}/set_state", json={"state": {"type": kind}})


@contextmanager
def held(url: str, owner: str = "somebody", **settings: Any) -> Iterator[lockstead.Lease]:
    """Hold a lock as another thread than this one."""
    with ThreadPoolExecutor(1) as elsewhere:
        lock = lockstead.Lock(url, owner=owner, **settings)
        lease = elsewhere.submit(lock.acquire, 30).result()
    try:
        yield lease
    finally:
        lease.release()


def deployed(server: PrefectServer, pool: str, flow_name: str, environment: Mapping[str, str]) -> str:
    """Deploy a flow of `deployed` to a pool; give the deployment's id."""
    flow_id = asked(server, "POST", "/flows/", json={"name": flow_name})["id"]
    words = {
        "name": f"{flow_name}-{uuid.uuid4().hex[:8]}",
        "flow_id": flow_id,
        "enforce_parameter_schema": False,
        "work_pool_name": pool,
        "entrypoint": f"tests.prefect.real.deployed.{flow_name}",
        "job_variables": {"env": dict(environment)},
    }
    return str(asked(server, "POST", "/deployments/", json=words)["id"])


def started_run(server: PrefectServer, deployment_id: str, **parameters: Any) -> str:
    """Ask for a run of a deployment, now; give its id."""
    words = {"state": {"type": "SCHEDULED"}, "parameters": parameters}
    return str(asked(server, "POST", f"/deployments/{deployment_id}/create_flow_run", json=words)["id"])
