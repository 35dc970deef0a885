"""However the store of a connection is spelled, Airflow's own classes read the one that was meant, or it is refused.

`spellings.py` spells every URL of its table in every way with an Airflow's classes; no Airflow is started.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import chosen, side_by_side
from tests.servers.airflow_parts import Version

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("spellings.py")

WHOLE = ("json", "form", "uri, quoted", "uri, its rest quoted", "uri of json")
"""Spellings that reach us as they were written; whatever is a store's URL has to be understood so."""

LOST = ("prefix=a", "options=", "%2F", "etcd://[", ",[", "zk://[", "sqlite:")
"""What is in URLs of which Airflow loses something when they are the rest of a URI: those may be refused."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every Airflow, or on the one that was asked for."""
    metafunc.parametrize("seen", side_by_side(chosen(metafunc.config)), indirect=True, scope="module")


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one Airflow reads of every URL: what was meant, and what was read by each way to spell it."""
    home = tmp_path_factory.mktemp(f"spelled-{request.param}-")
    done = subprocess.run(
        [str(Version(request.param).python), str(SCRIPT)],
        env={**os.environ, "AIRFLOW_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return said


def refusals(seen: dict[str, Any]) -> list[tuple[str, str, dict[str, str]]]:
    return [(url, way, read) for url, told in seen.items() for way, read in told["read"].items() if read.get("refused")]


def test_every_spelling_names_the_intended_store(seen: dict[str, Any]) -> None:
    wrong = [
        (url, way, read)
        for url, told in seen.items()
        for way, read in told["read"].items()
        if not read.get("refused") and read != told["meant"]
    ]
    assert wrong == []


def test_only_what_airflow_loses_is_refused_never_a_whole_url(seen: dict[str, Any]) -> None:
    ours = [(url, way) for url, way, read in refusals(seen) if read["by"] == "lockstead"]
    assert [one for one in ours if one[1].partition(" (")[0] in WHOLE] == []
    assert [one for one in ours if not any(piece in one[0] for piece in LOST)] == []
    # several ports are not URI to Airflow itself
    theirs = {url for url, _, read in refusals(seen) if read["by"] == "Airflow"}
    assert [url for url in theirs if url.count(":") < 3] == []
    assert len(theirs) < 10


def test_a_refusal_names_the_connection_and_shows_no_secret(seen: dict[str, Any]) -> None:
    lines = [read["refused"] for _, _, read in refusals(seen) if read["by"] == "lockstead"]
    assert lines
    assert [line for line in lines if "\n" in line or "the connection 'c'" not in line or "secret" in line] == []
