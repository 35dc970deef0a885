"""The first minute that the page on Dagster shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_minute import LIMIT, copied, lived_through
from tests.pages import run_wrapper

pytestmark = pytest.mark.timeout(4 * LIMIT)


def test_the_first_minute_runs_as_printed(tmp_path: Path) -> None:
    lived_through("dagster.md", tmp_path, Path(sys.executable).parent)


def test_what_is_printed_of_the_package_runs(tmp_path: Path) -> None:
    run_wrapper("dagster", tmp_path, Path(sys.executable).parent)


def test_the_example_to_copy_runs(tmp_path: Path) -> None:
    command = "dagster asset materialize -f dagster_asset.py --select report"
    copied("dagster_asset.py", command, tmp_path / "copy", Path(sys.executable).parent)
