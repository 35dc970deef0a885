"""What is launched in Dagster, and with what. Imports no Dagster: who launches may be elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JOBS = ("publish_tools", "publish_services")


def run_config(packages: list[str], pace: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return what a run is launched with; see `Order` of `dagster_definitions`."""
    return {"resources": {"order": {"config": {"packages": packages, "pace": dict(pace or {})}}}}
