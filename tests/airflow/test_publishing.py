"""The publishing example on the newest Airflow: its DAG file by `dag.test()`, and its demo, which kills a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.publishing.build import Recipe, build
from examples.publishing.clients import missing
from examples.publishing.gcs import GcsBucket
from examples.publishing.oracle import Entry, judge
from examples.publishing.runner import FORMATS
from examples.publishing.signing import Signer, generate_key
from lockstead.testing.gcs_server import GcsServer
from tests.airflow.conftest import NEWEST, chosen
from tests.examples.publishing.test_processes import environment, running_with
from tests.servers.airflow_parts import ROOT, Version

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


def test_the_dag_file_publishes_by_dag_test_and_leaves_no_lock_behind(version: Version, tmp_path: Path) -> None:
    key = generate_key("Tests <tests@example.invalid>")
    (tmp_path / "key.asc").write_text(key)
    package = build(Recipe("alpha"), "deb", tmp_path)
    with GcsServer(buckets=["b"]) as server:
        setting = told(tmp_path / "home", server.url, key)
        subprocess.run(version.command("db", "migrate"), env=setting, capture_output=True, check=True)
        done = subprocess.run(
            [str(version.python), "-m", "examples.publishing.airflow_dag", str(package)],
            env=setting,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        bucket = GcsBucket("b", endpoint=server.url)
        found = FORMATS["apt"].inspect(package)
        entry = Entry(found.name, found.version, found.arch, found.sha256)
        verdict = judge(bucket, "mine/apt/", "apt", Signer.from_armor(key).public_key, [entry], [entry])
        assert (verdict.version, verdict.is_good) == (1, True), str(verdict)
        # The pointer was fenced by the lease that spans the four tasks, and its lock is free again.
        fence = bucket.stat("mine/apt/latest_version.txt").metadata["lockstead-fence"]
        assert f'"what": "holds", "phase": "", "number": {fence.partition(":")[0]}' in done.stdout
        locks = [one.name for one in bucket.list("mine/locks")]
        bucket.close()
    assert [name for name in locks if ".lockstead" not in name] == [], "a lock is still held"
    # Of the other repository nothing was staged: its lock was not even asked for.
    assert locks
    assert not [name for name in locks if "yum" in name]


PARSED = """
import sys
import airflow.sdk
before = set(sys.modules)
import examples.publishing.airflow_dag
print(*sorted(set(sys.modules) - before))
"""


def test_parsing_the_dag_file_imports_neither_the_pipeline_nor_a_store(version: Version, tmp_path: Path) -> None:
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
        "lockstead.stores.gcs",
    )
    assert [name for name in came if name.startswith(heavy)] == []


def homes() -> set[Path]:
    return set(HOMES.glob("*"))


VERIFIED = {"apt": "apt-get verified the index and installed ", "yum": "dnf verified index and packages and installed "}
"""What real clients say at the end; where a machine has them not, which CI may not, the pipeline verifies by itself."""

COMMAND = [sys.executable, "-m", "examples.publishing", "demo-airflow"]


def test_the_demo_on_airflow_shows_what_it_claims(version: Version, tmp_path: Path) -> None:
    mark, before = uuid.uuid4().hex, homes()
    done = subprocess.run(
        COMMAND,
        env=environment(MARK=mark, TMPDIR=str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for claim in (
        f"Airflow {version.full} runs",
        "killed: SIGKILL to process",
        "waiting for who works still, or was not seen to end: airflow:publish_tools/tools/apt.build/-1/1",
        "waiting for 'airflow:publish_tools/tools/apt/-1'",
        "the killed task was tried 2 times, under one and the same lease",
        "cleared away",
        "Verdict: nothing lost",
        *(told for kind, told in VERIFIED.items() if os.environ.get("CI") == "true" or not missing(kind)),
    ):
        assert claim in done.stdout, done.stdout
    assert not done.stderr.strip()
    assert not running_with(mark)
    assert not list(tmp_path.iterdir())
    assert homes() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_on_airflow_leaves_nothing_behind(
    version: Version, number: signal.Signals, tmp_path: Path
) -> None:
    mark, before = uuid.uuid4().hex, homes()
    process = subprocess.Popen(
        # who is started in the background by a shell ignores SIGINT, and hands that on
        ["env", "--default-signal=INT", *COMMAND],
        env=environment(MARK=mark, TMPDIR=str(tmp_path), PYTHONUNBUFFERED="1"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert any("starting PostgreSQL" in line for line in process.stdout)
        came, ends_at = 0, time.monotonic() + 300
        # some end at once: what counts is that there were so many
        while came < 4 and time.monotonic() < ends_at:
            time.sleep(0.1)
            came = max(came, len(running_with(mark)))
        process.send_signal(number)
        said = process.stdout.read()
    assert process.wait(60) != 0, said
    assert came >= 4, said
    assert not running_with(mark)
    assert not list(tmp_path.iterdir())
    assert homes() <= before
