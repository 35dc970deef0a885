"""The first minute that the page on Prefect shows, with the server that the flow starts for itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_minute import LIMIT, lived_through
from tests.servers.prefect import told

pytestmark = pytest.mark.timeout(4 * LIMIT)


def test_the_first_minute_runs_as_printed(tmp_path: Path) -> None:
    patient = {"PREFECT_API_URL": "", "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": f"{LIMIT:.0f}"}
    said = lived_through("prefect.md", tmp_path, Path(sys.executable).parent, told(tmp_path / "home", None) | patient)
    assert "waiting for 'apt', held by" in said
