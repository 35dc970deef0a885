"""The first minute that the page on Prefect shows, with the server that the flow starts for itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_minute import LIMIT, copied, lived_through
from tests.pages import run_wrapper

pytestmark = pytest.mark.timeout(4 * LIMIT)


QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": f"{LIMIT:.0f}",
}


def test_the_first_minute_runs_as_printed(tmp_path: Path) -> None:
    said = lived_through("prefect.md", tmp_path, Path(sys.executable).parent, QUIET)
    assert "waiting for 'apt', held by" in said


def test_what_is_printed_of_the_package_runs(tmp_path: Path) -> None:
    run_wrapper("prefect", tmp_path, Path(sys.executable).parent, QUIET)


def test_the_example_to_copy_runs(tmp_path: Path) -> None:
    copied("prefect_flow.py", "python prefect_flow.py", tmp_path / "copy", Path(sys.executable).parent, QUIET)
