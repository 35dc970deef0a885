"""A body under a lease: what it sees, what becomes of each of its ends, and that a lost lease ends it in time.

`bodies.py` runs `body.run` with an Airflow's own classes; no Airflow is started. By default on the newest.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import lockstead
from tests.airflow.conftest import NEWEST, chosen
from tests.runtime.faulty import until
from tests.servers.airflow_parts import Version

pytestmark = pytest.mark.airflow

BODIES = Path(__file__).with_name("bodies.py")
GRACE = 2.0

DIFFER = {"look", "sleep", "bash", "defer"}
"""What is run on older versions, too: they have other classes, and other ways to run a task."""

Bodies = Callable[[str], "Told"]


class Told:
    """What one process of `bodies.py` came to."""

    def __init__(self, code: int, log: str) -> None:
        self.code = code
        self.log = log
        found = [line for line in log.splitlines() if line.startswith("{")]
        self.said: dict[str, Any] = json.loads(found[-1]) if found else {}


@pytest.fixture
def lock(tmp_path: Path) -> lockstead.Lock:
    return lockstead.Lock(f"sqlite:///{tmp_path / 'locks.db'}#apt", ttl=30)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__LOCKSTEAD__ABORT_GRACE": str(GRACE),
        "AIRFLOW__LOCKSTEAD__ABORT_TERMS": "0.5",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPYCACHEPREFIX": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "BODY_OF_A_TEST": str(tmp_path),
    }


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    version = Version(chosen(request.config)[-1])
    return [str(version.python), str(BODIES), "", f"sqlite:///{tmp_path / 'locks.db'}#apt"]


@pytest.fixture
def bodies(command: list[str], environment: dict[str, str]) -> Bodies:
    def run(scenario: str) -> Told:
        if f"/{NEWEST}/" not in command[0] and scenario.partition("+")[0] not in DIFFER:
            pytest.skip("the same on all versions; seen on the newest")
        words = [*command[:2], scenario, command[3]]
        done = subprocess.run(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return Told(done.returncode, done.stdout)

    return run


def left_behind(environment: dict[str, str]) -> list[psutil.Process]:
    """Return the living processes of a test, by its own mark."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get("BODY_OF_A_TEST") == environment["BODY_OF_A_TEST"]:
                found.append(one)
        except psutil.Error:
            continue
    return found


def sleepers(environment: dict[str, str]) -> list[psutil.Process]:
    """Return those of them that run `sleep`."""
    found = []
    for one in left_behind(environment):
        with suppress(psutil.Error):
            if one.name() == "sleep":
                found.append(one)
    return found


# --- a lease that is held ---------------------------------------------------------------------------------------------


def test_a_body_sees_key_token_sequencer_and_its_current_lease(bodies: Bodies):
    told = bodies("look")
    token = told.said["acquired"]["token"]
    assert told.said["gave"] == {"token": token, "sequencer": f"{token}:exclusive:apt", "is_member": True, "key": "apt"}
    assert told.said["members"] == 0
    assert told.said["held_by"] == told.said["acquired"]["holder"]
    assert told.said["marked"] is None


def test_h17_the_sequencer_of_a_readers_body_admits_no_writer(command: list[str], bodies: Bodies):
    command[3] = command[3].replace("#apt", "?mode=shared#apt")
    told = bodies("look")
    assert told.said["gave"]["sequencer"] == f"{told.said['acquired']['token']}:shared:apt"


@pytest.mark.parametrize(
    ("scenario", "raised"),
    [("raise", "ZeroDivisionError"), ("skip", "AirflowSkipException"), ("defer", "TaskDeferred")],
)
def test_an_exception_under_a_held_lease_is_the_tasks_result(bodies: Bodies, scenario: str, raised: str):
    told = bodies(scenario)
    assert told.said["raised"] == raised
    assert told.said["members"] == 0
    assert told.said["held_by"] == told.said["acquired"]["holder"]
    assert told.said["killed"] == 0


def test_the_body_of_a_group_with_a_permit_attaches_by_its_ticket_and_sees_the_slot(bodies: Bodies):
    told = bodies("look+permit")
    slot, token = told.said["gave"]["slots"][0], told.said["acquired"]["token"]
    assert told.said["gave"] == {
        "token": token,
        "sequencer": f"{token}:permit/{slot}:apt",
        "is_member": True,
        "key": "apt",
        "slots": [slot, slot],
    }


def test_a_readers_body_begins_although_a_writer_waits_and_its_ticket_outlives_it(bodies: Bodies):
    told = bodies("outlast+shared")
    token = told.said["acquired"]["token"]
    assert told.said["gave"] == {"token": token, "sequencer": f"{token}:shared:apt", "is_member": True, "key": "apt"}
    # the writer waits until the ticket is released, which nobody else has renewed for longer than the ttl
    assert told.said["written"] == [0, True, None, 1]


def test_a_body_waits_for_a_live_upstream_body_only(bodies: Bodies):
    told = bodies("look+behind")
    assert told.said["gave"]
    assert told.said["began_behind"] == ["first"]
    assert told.said["beside"] == "lived on"
    assert "waiting for members that have not ended: airflow:dag/run/first/-1/1" in told.log


def test_a_body_uses_the_acquired_lease_despite_its_own_template(bodies: Bodies):
    told = bodies("look+renamed")
    assert told.said["gave"]["key"] == "apt"
    assert told.said["gave"]["token"] == told.said["acquired"]["token"]


def test_a_forged_ticket_does_not_choose_the_server(bodies: Bodies):
    told = bodies("look+forged")
    assert told.said["raised"] == "AirflowFailException"
    assert "the ticket is for a lock in redis://127.0.0.1" in told.said["message"]
    assert "began" not in told.log
    assert told.said["asked_elsewhere"] is False


# --- a lease that is lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("sleep", "REVOKED"),
        ("asyncio", "REVOKED"),
        ("swallow-return", "REVOKED"),
        ("bash", "REVOKED"),
        ("gil", "EXPIRED"),
    ],
)
def test_a_lost_lease_ends_the_body_and_fails_the_task_for_good(
    bodies: Bodies, environment: dict[str, str], scenario: str, reason: str
):
    told = bodies(f"{scenario}+lost")
    acquired = told.said["acquired"]
    assert told.said["raised"] == "LeaseLost"
    assert told.said["final"]
    for word in (repr(acquired["key"]), repr(acquired["holder"]), f"token {acquired['token']}", reason):
        assert word in told.said["message"]
    assert told.said["took"] < 30
    assert told.said["members"] == 0
    assert left_behind(environment) == []


def test_the_tasks_on_kill_is_called_once_on_a_loss(bodies: Bodies):
    assert bodies("sleep+lost").said["killed"] == 1


def test_a_body_that_swallows_everything_exits_after_the_grace(bodies: Bodies):
    told = bodies("swallow+lost")
    assert told.code == 75
    assert "exiting the process: its body does not stop" in told.log


def test_a_body_with_a_killed_supervisor_ends_with_its_processes(
    command: list[str], environment: dict[str, str], lock: lockstead.Lock
):
    words = [*command[:2], "bash+child", command[3]]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            line = ""
            while "began" not in line:
                line = parent.stdout.readline()
                assert line
            # what Bash waits for, and what lost its parent, come after the line; others that Bash starts go at once
            until(lambda: len(sleepers(environment)) == 2)
            family = [one for one in left_behind(environment) if one.pid != parent.pid]
        finally:
            # else leaving the block would wait for it
            parent.kill()
    gone, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert len(gone) >= 4
    assert left_behind(environment) == []


# --- a lease that was gone before -------------------------------------------------------------------------------------


def test_a_body_whose_lease_is_already_gone_does_not_run(bodies: Bodies):
    told = bodies("look+fail")
    assert told.said["raised"] == "LeaseLost"
    assert "gone before this task began" in told.said["message"]
    assert "began" not in told.log.replace("before this task began", "")


def test_or_acquires_the_lock_anew_for_itself_and_gives_it_back(bodies: Bodies):
    told = bodies("look+reacquire")
    assert told.said["gave"]["is_member"] is False
    assert told.said["gave"]["token"] > told.said["acquired"]["token"]
    assert told.said["held_by"] is None
