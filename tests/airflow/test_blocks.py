"""`dag.test()` of a DAG made of acquire, keep and release ends: it waits in its process, and gives back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import lockstead
from tests.airflow.conftest import chosen
from tests.airflow.test_hand_over import DAG
from tests.servers.airflow_parts import Version

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(400)]

TEST = """
    @task
    def after():
        print("after")

    release >> after()

if __name__ == "__main__":
    run = dag.test()
    print("RUN", getattr(run.state, "value", run.state))
    for ti in run.get_task_instances():
        print("TASK", ti.task_id, getattr(ti.state, "value", ti.state))
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test on every Airflow, or on the one that was asked for."""
    metafunc.parametrize("name", chosen(metafunc.config))


def test_dag_test_waits_inline_says_so_skips_the_keeper_and_ends(name: str, tmp_path: Path):
    version = Version(name)
    if version.name == "3.0":
        pytest.skip("the DAG of airflow.sdk has no test() in 3.0")
    url = f"sqlite:///{tmp_path / 'locks.db'}#apt"
    text = DAG.format(dag="blocks", url=url, ttl="2m", works=0.1, keeps=True, enough=tmp_path / "enough")
    path = tmp_path / "dags" / "blocks.py"
    path.parent.mkdir()
    path.write_text(text.replace("2024, 1, 1)):", "2024, 1, 1)) as dag:") + TEST)
    told = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(path.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    subprocess.run(version.command("db", "migrate"), env=told, capture_output=True, check=True)
    first = lockstead.Lock(url, ttl=25, owner="who came first").acquire(timeout=10)
    command = ["timeout", "300", str(version.python), str(path)]
    waits, said = "waiting in this process, because dag.test()", ""
    with subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            said += line
            if waits in line:
                first.release()
    assert running.returncode == 0, said[-4000:]
    states = dict(line.split()[1:] for line in said.splitlines() if line.startswith("TASK "))
    assert states == dict.fromkeys(("acquire", "release", "work", "after"), "success") | {"keep": "skipped"}
    assert waits in said
    assert "RUN success" in said
    assert "works with token" in said
    assert lockstead.Lock(url).inspect() is None
