"""The publishing example on the newest Airflow: its DAG file by `dag.test()`, and its demo, which kills a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.airflow.conftest import NEWEST, chosen
from tests.examples.publishing.once import publishes_once
from tests.servers.airflow_parts import ROOT, Version
from tests.servers.demos import by_real_clients, interrupt, shown

# in one group: each looks for what the others would leave
pytestmark = [
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("airflow demo"),
]

HOMES = ROOT / "build" / "demo-airflow"


@pytest.fixture
def version(request: pytest.FixtureRequest) -> Version:
    """The newest Airflow: the others have not what the pipeline needs."""
    if NEWEST not in chosen(request.config):
        pytest.skip(f"the example runs on {NEWEST}")
    return Version(NEWEST)


def told(home: Path, url: str, key: str) -> Mapping[str, str]:
    return {
        **os.environ,
        "STORAGE_EMULATOR_HOST": url,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "examples" / "publishing"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_VAR_PUBLISHING_REPO": "gs://b/mine",
        "AIRFLOW_VAR_PUBLISHING_SECRET_KEY": key,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPYCACHEPREFIX": "",
    }


def test_the_dag_file_publishes_by_dag_test_and_frees_the_lock(version: Version, tmp_path: Path) -> None:
    def given(url: str, key: str) -> Mapping[str, str]:
        setting = told(tmp_path / "home", url, key)
        subprocess.run(version.command("db", "migrate"), env=setting, capture_output=True, check=True)
        return setting

    publishes_once([str(version.python), "-m", "examples.publishing.airflow_dag"], given, tmp_path, cwd=ROOT)


PARSED = """
import sys
import airflow.sdk
before = set(sys.modules)
import examples.publishing.airflow_dag
print(*sorted(set(sys.modules) - before))
"""


def test_parsing_the_dag_file_imports_no_pipeline_and_no_store(version: Version, tmp_path: Path) -> None:
    setting = told(tmp_path / "home", "", "")
    done = subprocess.run(
        [str(version.python), "-c", PARSED], env=setting, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    came = done.stdout.split()
    of_the_example = [name for name in came if name.startswith("examples.")]
    assert of_the_example == ["examples.publishing", "examples.publishing.airflow_dag"]
    assert "airflow_lockstead.group" in came
    heavy = (
        "createrepo_c",
        "debian",
        "pysequoia",
        "openpgp",
        "google.auth",
        "lockstead.runtime.engine",
        "lockstead.stores.gcs.store",
    )
    assert [name for name in came if name.startswith(heavy)] == []


COMMAND = [sys.executable, "-m", "examples.publishing", "demo-airflow"]


def test_the_demo_on_airflow_shows_what_it_claims(version: Version, tmp_path: Path) -> None:
    claims = (
        f"Airflow {version.full} runs",
        "killed: SIGKILL to process",
        "waiting for members that have not ended: airflow:publish_tools/tools/apt.build/1",
        "waiting for 'apt', held by 'airflow:publish_tools/tools/apt'",
        "the killed task was tried 2 times, under one and the same lease",
        "cleared away",
        "Verdict: nothing lost",
        *by_real_clients(),
    )
    shown(COMMAND, tmp_path, HOMES, claims, within=580)


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_on_airflow_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    interrupt(COMMAND, number, tmp_path, HOMES, line="starting PostgreSQL", processes=4)
