"""All of `make demo`: three real orchestrators and a script at one repository, without display, with another seed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from examples.publishing.demo.faults import Faults
from tests.servers.demos import ROOT, by_real_clients, interrupt, shown

pytestmark = [pytest.mark.four, pytest.mark.slow, pytest.mark.timeout(600)]

HOMES = ROOT / "build" / "demo"
DEMO = [sys.executable, "-m", "examples.publishing", "demo"]
SEED = 10


def test_three_orchestrators_and_a_script_publish_to_one_repository(tmp_path: Path) -> None:
    plan = Faults.of(SEED, ("airflow", "prefect", "dagster"))
    temporary, record = tmp_path / "tmp", tmp_path / "record.txt"
    temporary.mkdir()
    claims = (
        f"the plan: {plan}",
        "killed: SIGKILL to process ",
        "paused: SIGSTOP to process ",
        "resumed: SIGCONT to process ",
        f"{plan.killed} was killed in mid-section, {plan.killed_at}",
        f"{plan.paused} went on and was refused: ",
        f"{plan.paused} published to {plan.paused_at.repository} in the end",
        "apt: published by airflow, dagster, prefect, shell",
        "yum: published by airflow, dagster, prefect, shell",
        "the half version that the killed one left was cleared away",
        "who waits says for whom, across orchestrators; ",
        "Airflow says of its run: ",
        "Prefect says of its run: ",
        "Dagster says of its run: ",
        "both locks are free",
        "Verdict: nothing lost",
        *by_real_clients("4 packages"),
    )
    command = [*DEMO, "--seed", str(SEED), "--record", str(record)]
    said = shown(command, temporary, HOMES, claims, within=560)
    assert record.read_text() == said


@pytest.mark.parametrize(
    ("number", "line", "processes"),
    [
        # in the middle of starting: some are up, some are not
        pytest.param(signal.SIGTERM, "Before: three orchestrators", 8, id="starting"),
        # all are at work: PostgreSQL, Airflow's parts, Prefect's server and worker, Dagster's, and runs of each
        pytest.param(signal.SIGINT, "holds, token", 20, id="working"),
    ],
)
def test_interrupted_it_leaves_nothing_behind(
    number: signal.Signals, line: str, processes: int, tmp_path: Path
) -> None:
    interrupt(DEMO, number, tmp_path, HOMES, line=line, processes=processes)
