"""The publishing example on the newest Dagster: its job in this process, and its demo, which kills a run worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster
import pytest

# the oldest Dagster's environment has not what the pipeline needs
pytest.importorskip("createrepo_c", reason="the example runs on the newest Dagster")

from tests.examples.publishing.once import publishes_once
from tests.servers.demos import by_real_clients, interrupt, shown

# in one group: each looks for what the others would leave
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("dagster demo")]

ROOT = Path(__file__).parents[3]
HOMES = ROOT / "build" / "demo-dagster"
COMMAND = [sys.executable, "-m", "examples.publishing", "demo-dagster"]


def test_the_job_publishes_in_one_process_and_frees_the_lock(tmp_path: Path) -> None:
    def told(url: str, key: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "STORAGE_EMULATOR_HOST": url,
            "PUBLISHING_REPO": "gs://b/mine",
            "PUBLISHING_SECRET_KEY": key,
        }

    command = [sys.executable, "-m", "examples.publishing.dagster_definitions"]
    publishes_once(command, told, tmp_path, cwd=tmp_path)


def test_the_definitions_can_be_loaded_without_any_setting(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PUBLISHING_")}
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "examples.publishing.dagster_definitions"],
        env={**environment, "PYTHONPATH": str(ROOT), "DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "All code locations passed validation" in done.stdout


def test_the_demo_on_dagster_shows_what_it_claims(tmp_path: Path) -> None:
    claims = (
        f"Dagster {dagster.__version__} runs",
        "killed: SIGKILL to process",
        "waiting: 'apt' is held by 'dagster:",
        "the killed run was followed by another, which the daemon launched: tools FAILURE",
        "the step that it left behind stopped: another held the lock after ",
        "cleared away",
        "apt: Dagster shows each version with its token",
        "Verdict: nothing lost",
        *by_real_clients(),
    )
    shown(COMMAND, tmp_path, HOMES, claims, within=580)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_on_dagster_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    # in the middle: a run is under way, and there are the demo, `dagster dev`, webserver, daemon, code server, run
    # worker and step
    interrupt(COMMAND, number, tmp_path, HOMES, line="holds, token", processes=7)
