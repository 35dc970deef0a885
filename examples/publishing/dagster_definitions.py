"""The publishing pipeline as assets: two jobs publish to the same repositories, each repository under its own lock.

    apt:  stage >> publish[ fence, build, commit, prune ]      an asset; each materialization is a version
    yum:  the same

Packages are staged outside the lock. One op does the rest under one lease; its sequencer is written to the
pointer, which rejects stale holders. The op may be repeated, so it has retries; if its lease is lost it fails without a
retry, and the next run acquires another. What it does is in `steps.py`; this file has only the dependencies.

Environment of the processes: PUBLISHING_REPO (`gs://bucket/prefix`), PUBLISHING_SECRET_KEY (OpenPGP, ASCII armor),
PUBLISHING_TTL (seconds, or "5m"), PUBLISHING_LOCKS (the URL of a store, if the locks are not to be in the bucket). A
run is launched with the packages: `{"resources": {"order": {"config": {"packages": ["/path/one.deb"]}}}}`.

    python -m examples.publishing.dagster_definitions FILES...     runs the first job in this process
    dagster dev -m examples.publishing.dagster_definitions         serves both
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops and resources.
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

import lockstead
from dagster_lockstead import LockResource, locked
from examples.publishing.dagster_launch import JOBS, run_config
from examples.publishing.errors import BadSignature, Refused, Superseded
from examples.publishing.gcs import Place
from examples.publishing.runner import Job, Pace
from examples.publishing.steps import Steps

KINDS = ("apt", "yum")
REPO = os.environ.get("PUBLISHING_REPO", "gs://bucket/prefix")
LOCKS = os.environ.get("PUBLISHING_LOCKS", f"{REPO}/locks")
TTL = os.environ.get("PUBLISHING_TTL", "5m")
FAILS_ALWAYS = (Superseded, Refused, BadSignature)
"""Errors that a repetition cannot mend: a stale run, a damaged repository."""

RETRIES = dg.RetryPolicy(max_retries=2, delay=2)


class Order(dg.ConfigurableResource[None]):
    """What a run publishes: paths of .deb and .rpm files, as the steps see them.

    pace: see `Pace.before`; ignored in a run that repeats another.
    """

    packages: list[str] = Field(default=[])
    pace: dict[str, float] = Field(default={})


class Publisher(dg.ConfigurableResource[None]):
    """The signing key, which is read where a step runs, so that no run's configuration contains it."""

    secret_key: str

    @contextmanager
    def steps(self, context: dg.OpExecutionContext, kind: str, order: Order) -> Iterator[Steps]:
        """Return the steps of this run; errors that a repetition cannot mend are not retried."""
        packages = tuple(map(Path, order.packages))
        pace = Pace(before={} if context.run.parent_run_id else order.pace)
        job = Job(context.run_id, Place.parse(REPO), self.secret_key, packages, lock=None, pace=pace)
        try:
            yield Steps(job, kind, lambda event: context.log.info(event.to_line()))
        except FAILS_ALWAYS as error:
            raise dg.Failure(str(error), allow_retries=False) from error


def repository(kind: str) -> dg.AssetsDefinition:
    """Create the asset of one repository."""

    @dg.op(name=f"stage_{kind}", out=dg.Out(is_required=False), retry_policy=RETRIES)
    def stage(context: dg.OpExecutionContext, publisher: Publisher, order: Order) -> Iterator[dg.Output[list[str]]]:
        """Upload the packages; if there are none, the lock is not requested."""
        with publisher.steps(context, kind, order) as steps:
            staged = steps.stage()
        if staged:
            yield dg.Output(staged)

    @dg.op(name=f"publish_{kind}", retry_policy=RETRIES)
    @locked(kind, ttl=TTL, purpose=f"publish {kind} packages", expected="10m")
    def publish(
        context: dg.OpExecutionContext, staged: list[str], publisher: Publisher, order: Order
    ) -> dg.Output[int]:
        """Publish what was staged, under the lock of the repository; return the version's number."""
        lease = lockstead.current_lease()
        with publisher.steps(context, kind, order) as steps:
            fenced = steps.fence(lease)
            built = steps.build(lease, staged, fenced)
            if built is None:
                return dg.Output(int(fenced["number"]), metadata={"added": 0})
            version = steps.commit(lease, fenced, built)
            steps.prune(lease, built)
        return dg.Output(version, metadata={"added": len(built["added"])})

    @dg.graph_asset(name=kind, description=f"The {kind} repository; a materialization is a version.")
    def versions() -> Any:
        return publish(stage())

    return versions


defs = dg.Definitions(
    assets=[repository(kind) for kind in KINDS],
    jobs=[dg.define_asset_job(name, selection=dg.AssetSelection.assets(*KINDS)) for name in JOBS],
    resources={
        "lock": LockResource(store=LOCKS),
        "publisher": Publisher(secret_key=dg.EnvVar("PUBLISHING_SECRET_KEY")),
        "order": Order.configure_at_launch(),
    },
)


if __name__ == "__main__":
    job = defs.resolve_job_def(JOBS[0])
    ran = job.execute_in_process(run_config=run_config(sys.argv[1:]), raise_on_error=False)
    sys.exit(not ran.success)
