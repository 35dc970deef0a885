"""The publishing pipeline as two DAGs that publish to the same repositories, each repository under its own lock.

    stage_apt >> apt [ lock_acquire >> fence >> build >> commit >> prune >> lock_release ]
    stage_yum >> yum [ the same ]

Packages are staged outside the lock. Four tasks share one lease, on any workers; its sequencer is written to the
pointer, which rejects stale holders. Each of the four may be repeated, so each has retries. What the tasks do is in
`steps.py`; this file has only the dependencies.

Variables: publishing_repo (`gs://bucket/prefix`), publishing_secret_key (OpenPGP, ASCII armor). Environment of the
processes: PUBLISHING_TTL (seconds, or "5m"), PUBLISHING_KEEPER ("no" for a ttl below 90 s), PUBLISHING_LOCKS (the URL
of a store without a password, if the locks are not to be in the bucket).

    python -m examples.publishing.airflow_dag FILES...        runs the first DAG in this process, by dag.test()
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, Variable, task
from airflow.sdk.exceptions import AirflowFailException

import lockstead
from airflow_lockstead import LockedTaskGroup

if TYPE_CHECKING:
    from examples.publishing.steps import Steps

LOG = logging.getLogger("examples.publishing")
KINDS = ("apt", "yum")
DAGS = ("publish_tools", "publish_services")
TTL = os.environ.get("PUBLISHING_TTL", "5m")
LOCKS = os.environ.get("PUBLISHING_LOCKS", "{{ var.value.publishing_repo }}/locks")
KEEPER = os.environ.get("PUBLISHING_KEEPER", "yes") != "no"
PARAMS = {
    "packages": Param([], type="array", description="Paths of .deb and .rpm files, as the workers see them"),
    "pace": Param(
        {},
        type="object",
        description='Seconds that a first try pauses before a phase, for watching: {"apt/metadata": 5}',
    ),
}


@task.short_circuit
def stage(kind: str, **context: Any) -> list[str]:
    """Upload the packages; if there are none, the lock is not requested."""
    with _steps(kind, context) as steps:
        return steps.stage()


@task
def fence(kind: str, **context: Any) -> Any:
    with _steps(kind, context) as steps:
        return steps.fence(_lease())


@task
def build(kind: str, staged: list[str], fenced: Any, **context: Any) -> Any:
    with _steps(kind, context) as steps:
        return steps.build(_lease(), staged, fenced)


@task
def commit(kind: str, fenced: Any, built: Any, **context: Any) -> Any:
    with _steps(kind, context) as steps:
        return built and steps.commit(_lease(), fenced, built)


@task
def prune(kind: str, built: Any, **context: Any) -> Any:
    with _steps(kind, context) as steps:
        return built and steps.prune(_lease(), built)


def publishing(dag_id: str) -> DAG:
    """Create a DAG that publishes the packages it is given."""
    with DAG(
        dag_id,
        schedule=None,
        start_date=datetime(2026, 1, 1),  # noqa: DTZ001 # as Airflow's own examples have it
        params=PARAMS,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=2)},
        tags=["publishing"],
    ) as dag:
        for kind in KINDS:
            staged = stage.override(task_id=f"stage_{kind}")(kind)
            with LockedTaskGroup(
                kind,
                lock=f"{LOCKS}#{kind}",
                ttl=TTL,
                keeper=KEEPER,
                purpose="publish packages of {{ dag.dag_id }}",
                expected="10m",
            ) as section:
                fenced = fence(kind)
                built = build(kind, staged, fenced)
                done = commit(kind, fenced, built)
                done >> prune(kind, built)
            staged >> section
    return dag


def _lease() -> lockstead.Lease:
    """Return the lease of this task."""
    return lockstead.current_lease()


@contextmanager
def _steps(kind: str, context: Any) -> Iterator[Steps]:
    """Return the steps of this run; errors that a repetition cannot mend are not retried."""
    from pathlib import Path

    from examples.publishing.errors import BadSignature, Refused, Superseded
    from examples.publishing.gcs import Place
    from examples.publishing.runner import Job, Pace
    from examples.publishing.steps import Steps

    params = context["params"]
    job = Job(
        context["run_id"],
        Place.parse(Variable.get("publishing_repo")),
        Variable.get("publishing_secret_key"),
        tuple(map(Path, params["packages"])),
        lock=None,
        pace=Pace(before=params["pace"] if context["ti"].try_number == 1 else {}),
    )
    try:
        yield Steps(job, kind, lambda event: LOG.info("%s", event.to_line()))
    except (Superseded, Refused, BadSignature) as error:
        raise AirflowFailException(str(error)) from error


dags = [publishing(dag_id) for dag_id in DAGS]

if __name__ == "__main__":
    ran = dags[0].test(run_conf={"packages": sys.argv[1:]})
    sys.exit(str(getattr(ran.state, "value", ran.state)) != "success")
