"""`RunView`: the argument of a callable key for a whole run.

Separate from `leasing`, which every code location imports and which does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PARTITION: Final = "dagster/partition"
"""The tag with the partition of a run."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, as a callable key gets it. partition_key is None for a run without a partition."""

    run_id: str
    job_name: str
    tags: Mapping[str, str]
    partition_key: str | None
    run_config: Mapping[str, Any]


def view(plan_context: Any) -> RunView:
    """Return the view of the run that an executor executes."""
    run = plan_context.dagster_run
    return RunView(
        run_id=run.run_id,
        job_name=run.job_name,
        tags=dict(run.tags),
        partition_key=run.tags.get(PARTITION),
        run_config=run.run_config,
    )
