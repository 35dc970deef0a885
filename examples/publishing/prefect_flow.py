"""The publishing pipeline as two Prefect flows that publish to the same repositories, each repository under its own
lock.

    publish_tools:     stage, section[ fence, build, commit, prune ]  for apt, then for yum
    publish_services:  the same

Packages are staged outside the lock. In a child flow, four tasks work under one lease; its sequencer is written to the
pointer, which rejects stale holders. Each of the four may be repeated, so each has retries. A lost lease ends the
section, whose own retry acquires another. What the tasks do is in `steps.py`; this file has only the dependencies.

Environment of the processes: PUBLISHING_REPO (`gs://bucket/prefix`), PUBLISHING_SECRET_KEY (OpenPGP, ASCII armor),
PUBLISHING_TTL (seconds, or "5m"), PUBLISHING_LOCKS (the URL of a store without a password, if the locks are not to be
in the bucket).

    python -m examples.publishing.prefect_flow FILES...       runs the first flow in this process
    python -m examples.publishing.prefect_flow --deploy POOL  deploys both by their entrypoints, for workers of a pool
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.automations import Automation
from prefect.cache_policies import NO_CACHE
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.runtime import flow_run

import lockstead
from examples.publishing.errors import BadSignature, Refused, Superseded
from examples.publishing.gcs import Place
from examples.publishing.runner import Job, Pace
from examples.publishing.steps import Steps
from prefect_lockstead import locked

ROOT = Path(__file__).parents[2]
KINDS = ("apt", "yum")
REPO = os.environ.get("PUBLISHING_REPO", "gs://bucket/prefix")
LOCKS = os.environ.get("PUBLISHING_LOCKS", f"{REPO}/locks")
TTL = os.environ.get("PUBLISHING_TTL", "5m")
FAILS_ALWAYS = (Superseded, Refused, BadSignature, lockstead.LeaseLost)
"""Errors that a repetition cannot mend: a stale run, a damaged repository, a lost lease."""


def may_pass(_task: Any, _run: Any, state: Any) -> bool:
    """Return whether a failed task is retried."""
    return not isinstance(state.result(raise_on_failure=False), FAILS_ALWAYS)


# A retry of the flow has another lease, so results of tasks under the previous lease must not be reused.
step = task(retries=2, retry_delay_seconds=2, retry_condition_fn=may_pass, cache_policy=NO_CACHE)


@step
def stage(kind: str, run: str, packages: list[str], pace: dict[str, float]) -> list[str]:
    """Upload the packages; if there are none, the lock is not requested."""
    return _steps(kind, run, pace, packages).stage()


@step
def fence(kind: str, run: str, pace: dict[str, float]) -> Any:
    return _steps(kind, run, pace).fence(_lease())


@step
def build(kind: str, run: str, pace: dict[str, float], staged: list[str], fenced: Any) -> Any:
    return _steps(kind, run, pace).build(_lease(), staged, fenced)


@step
def commit(kind: str, run: str, pace: dict[str, float], fenced: Any, built: Any) -> int:
    return _steps(kind, run, pace).commit(_lease(), fenced, built)


@step
def prune(kind: str, run: str, pace: dict[str, float], built: Any) -> list[int]:
    return _steps(kind, run, pace).prune(_lease(), built)


@flow(name="publish-under-lock", flow_run_name="{run}-{kind}", retries=1, retry_delay_seconds=2)
@locked(f"{LOCKS}#{{kind}}", ttl=TTL, purpose="publish packages of {run}", expected="10m")
def section(kind: str, run: str, pace: dict[str, float], staged: list[str]) -> None:
    """Publish what was staged to one repository, under its lock."""
    fenced = fence(kind, run, pace)
    built = build(kind, run, pace, staged, fenced)
    if built:
        commit(kind, run, pace, fenced, built)
        prune(kind, run, pace, built)


@flow
def publish_tools(packages: list[str], pace: dict[str, float] | None = None) -> None:
    """Publish packages: paths of .deb and .rpm files on the workers. pace: see `Pace.before`."""
    publish(packages, pace or {})


@flow
def publish_services(packages: list[str], pace: dict[str, float] | None = None) -> None:
    """Publish packages like the other flow."""
    publish(packages, pace or {})


FLOWS = {"publish_tools": publish_tools, "publish_services": publish_services}


def publish(packages: list[str], pace: dict[str, float]) -> None:
    """Publish packages to their repositories, one after the other, with this flow run as the owner."""
    run = str(flow_run.name)
    for kind in KINDS:
        staged = stage(kind, run, packages, pace)
        if staged:
            section(kind, run, pace, staged)


THE_SAME = {
    "__prefect_kind": "json",
    "value": {"__prefect_kind": "jinja", "template": "{{ flow_run.parameters['packages'] | tojson }}"},
}
"""Template for the packages of the run that triggered the automation."""


def deploy(pool: str) -> None:
    """Deploy both flows, and an automation that starts another run for each crashed one: Prefect retries failed runs
    only.

    It starts another run instead of the same again: a worker reports a crash twice, and a run that was restarted in
    between would be restarted once more.
    """
    for name, one in FLOWS.items():
        entrypoint = f"{Path(__file__).relative_to(ROOT)}:{name}"
        made = one.from_source(source=str(ROOT), entrypoint=entrypoint)
        made.to_deployment(name="demo", work_pool_name=pool).apply()
    Automation(
        name="publish what a crashed run did not",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match_related={
                "prefect.resource.role": "flow",
                "prefect.resource.name": [one.name for one in FLOWS.values()],
            },
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[RunDeployment(source="inferred", parameters={"packages": THE_SAME})],
    ).create()


def _lease() -> lockstead.Lease:
    """Return the lease of this task."""
    return lockstead.current_lease()


def _steps(kind: str, run: str, pace: dict[str, float], packages: list[str] | None = None) -> Steps:
    job = Job(
        run,
        Place.parse(REPO),
        os.environ["PUBLISHING_SECRET_KEY"],
        tuple(map(Path, packages or ())),
        lock=None,
        pace=Pace(before=pace),
    )
    log = get_run_logger()
    return Steps(job, kind, lambda event: log.info("%s", event.to_line()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--deploy"]:
        deploy(sys.argv[2])
    else:
        publish_tools(sys.argv[1:])
