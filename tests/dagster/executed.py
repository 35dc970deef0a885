"""How a job is run in this process by its own executor, which `execute_in_process` would not do."""

from __future__ import annotations

from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run


def executed(job: dg.JobDefinition, *, fails: bool = False, **tags: str) -> Any:
    """Run a job; fails: what it raises is in the result."""
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job, tags=tags)
        return execute_run(InMemoryJob(job), run, instance, raise_on_error=not fails)
