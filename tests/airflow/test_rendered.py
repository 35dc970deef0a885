"""What a template inserts into a lock's URL stays one piece of it; and a lock is named once, when it is acquired.

`rendered.py` renders and runs operators with an Airflow's own classes; no Airflow is started.
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

SCRIPT = Path(__file__).with_name("rendered.py")
HOSTILE = "x?ttl=36500d&owner=me#y%"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every Airflow, or on the one that was asked for."""
    metafunc.parametrize("seen", side_by_side(chosen(metafunc.config)), indirect=True, scope="module")


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one Airflow renders."""
    home = tmp_path_factory.mktemp(f"rendered-{request.param}-")
    done = subprocess.run(
        [str(Version(request.param).python), str(SCRIPT), str(home)],
        env={**os.environ, "AIRFLOW_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return said


def test_an_inserted_value_stays_within_its_part_of_the_url(seen: dict[str, Any]) -> None:
    urls = seen["urls"]
    for name in ("key", "sensor", "notifier"):
        assert urls[name] == [f"pkg-{HOSTILE}", 300.0, None, None], name
    assert urls["setting"] == ["pkg", 300.0, None, HOSTILE]
    assert urls["beginning"] == [HOSTILE, 300.0, None, None]


def test_a_leading_expression_and_safe_text_are_not_encoded(seen: dict[str, Any]) -> None:
    urls = seen["urls"]
    assert urls["whole"] == ["apt", 90.0, None, None]
    assert urls["host"] == ["apt", 300.0, None, None]
    assert urls["safe"] == ["apt", 90.0, None, None]


def test_a_template_with_an_unknown_name_fails_without_a_retry(seen: dict[str, Any]) -> None:
    line = "AirflowFailException: lockstead: a template of the lock cannot be rendered: 'missing' is undefined"
    assert seen["undefined"] == dict.fromkeys(("u1", "u2", "u3"), line)


def test_keeper_and_release_use_the_key_that_was_acquired(
    seen: dict[str, Any],
) -> None:
    assert seen["renamed"]["keep"] == "renamed.db#k-a"
    assert seen["renamed"]["release"] is True
    assert seen["renamed"]["free"]


def test_a_key_that_is_no_template_is_not_taken_from_a_ticket(seen: dict[str, Any]) -> None:
    line = "AirflowFailException: lockstead: the ticket is for 'k-a', this lock is 'another'"
    assert seen["renamed"]["fixed"] == line
