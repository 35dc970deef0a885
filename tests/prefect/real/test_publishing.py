"""The publishing example on the newest Prefect: its flow as a plain call, and its demo, which kills a flow run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import prefect
import pytest

# the oldest Prefect's environment has not what the pipeline needs
pytest.importorskip("createrepo_c", reason="the example runs on the newest Prefect")

from tests.examples.publishing.once import publishes_once
from tests.servers.demos import interrupt, shown
from tests.servers.prefect import ROOT, PrefectServer, told

# in one group: each looks for what the others would leave
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("prefect demo")]

HOMES = ROOT / "build" / "demo-prefect"
COMMAND = [sys.executable, "-m", "examples.publishing", "demo-prefect"]


def test_the_flow_publishes_as_a_plain_call_and_frees_the_lock(server: PrefectServer, tmp_path: Path) -> None:
    def given(url: str, key: str) -> dict[str, str]:
        return {
            **os.environ,
            **told(tmp_path / "home", server.url),
            "STORAGE_EMULATOR_HOST": url,
            "PUBLISHING_REPO": "gs://b/mine",
            "PUBLISHING_SECRET_KEY": key,
        }

    publishes_once([sys.executable, "-m", "examples.publishing.prefect_flow"], given, tmp_path, cwd=tmp_path)


def test_the_demo_on_prefect_shows_what_it_claims(tmp_path: Path) -> None:
    claims = (
        f"Prefect {prefect.__version__} runs",
        "killed: SIGKILL to process",
        "AwaitingLock: waiting for 'apt', held by 'prefect:",
        "the killed run was followed by another, which an automation started: tools Crashed",
        "cleared away",
        "Verdict: nothing lost",
    )
    shown(COMMAND, tmp_path, HOMES, claims, within=380)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_on_prefect_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    interrupt(COMMAND, number, tmp_path, HOMES, line="starting a server", processes=2)
