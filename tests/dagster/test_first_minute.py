"""The first minute that the page on Dagster shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_minute import LIMIT, lived_through

pytestmark = pytest.mark.timeout(4 * LIMIT)


def test_the_first_minute_runs_as_printed(tmp_path: Path) -> None:
    lived_through("dagster.md", tmp_path, Path(sys.executable).parent)
