"""What a key that is worked out for a whole run may look at: `RunView`.

Apart from `leasing`, which every code location imports and which needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PARTITION: Final = "dagster/partition"
"""The tag that names the partition of a run."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, as its key's callable gets it. partition_key is None for a run of no partition."""

    run_id: str
    job_name: str
    tags: Mapping[str, str]
    partition_key: str | None
    run_config: Mapping[str, Any]


def view(plan_context: Any) -> RunView:
    """Return the run that an executor was given."""
    run = plan_context.dagster_run
    return RunView(
        run_id=run.run_id,
        job_name=run.job_name,
        tags=dict(run.tags),
        partition_key=run.tags.get(PARTITION),
        run_config=run.run_config,
    )
