"""The first minute that the page on Airflow shows, and the example to copy, by `dag.test()`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.conftest import NEWEST, chosen
from tests.first_minute import copied, lived_through
from tests.pages import run_wrapper
from tests.servers.airflow_parts import Version

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]


def test_the_first_minute_runs_as_printed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if NEWEST not in chosen(request.config):
        pytest.skip(f"the page shows what is for Airflow {NEWEST}")
    said = lived_through("airflow.md", tmp_path, Version(NEWEST).python.parent)
    assert "waiting for 'apt', held by" in said
    run_wrapper("airflow", tmp_path, Version(NEWEST).python.parent)
    copy = tmp_path / "copy"
    told = {"AIRFLOW__CORE__DAGS_FOLDER": str(copy), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    copied("airflow_dag.py", "airflow db migrate; python airflow_dag.py", copy, Version(NEWEST).python.parent, told)
