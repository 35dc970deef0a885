"""Launch configuration for Dagster. Imports no Dagster: the caller's environment may not have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JOBS = ("publish_tools", "publish_services")


def run_config(packages: list[str], pace: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the run configuration for these packages; see `Order` of `dagster_definitions`."""
    return {"resources": {"order": {"config": {"packages": packages, "pace": dict(pace or {})}}}}
