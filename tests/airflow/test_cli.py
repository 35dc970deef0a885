"""`airflow lockstead list|inspect|break` on the store of a connection: what it prints, and its exit codes.

Commands of a provider exist on the newest Airflow only; no Airflow is started.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstead
from tests.airflow.conftest import NEWEST, chosen
from tests.servers.airflow_parts import Version

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("commands.py")

Airflow = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


@pytest.fixture
def airflow_commands(request: pytest.FixtureRequest, tmp_path: Path, url: str) -> Airflow:
    """Return what runs commands of `airflow`, one after the other."""
    if NEWEST not in chosen(request.config):
        pytest.skip(f"only {NEWEST} takes commands of a provider")
    version = Version(NEWEST)

    def run(*commands: str) -> list[dict[str, Any]]:
        ours = {"conn_type": "lockstead", "host": url}
        referring = {"conn_type": "lockstead", "extra": {"redis_conn_id": "red"}}
        done = subprocess.run(
            [str(version.python), str(SCRIPT)],
            input=json.dumps([command.split() for command in commands]),
            env={
                **os.environ,
                "AIRFLOW_HOME": str(tmp_path / "home"),
                "AIRFLOW_CONN_LOCKSTEAD_DEFAULT": json.dumps(ours),
                "AIRFLOW_CONN_REFERRING": json.dumps(referring),
                "AIRFLOW_CONN_RED": json.dumps({"conn_type": "redis", "host": "127.0.0.1", "password": "open sesame"}),
                "AIRFLOW_CONN_NO_STORE": json.dumps({"conn_type": "lockstead"}),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        said: list[dict[str, Any]] = json.loads(done.stdout.strip().rpartition("\n")[2])
        print(json.dumps(said, indent=1))
        return said

    return run


def test_the_commands_list_inspect_and_break_a_connections_locks(airflow_commands: Airflow, url: str) -> None:
    for key in ("apt", "yum"):
        lock = lockstead.Lock(f"{url}#{key}", ttl=600, owner=f"who has {key}", purpose="publishing")
        lock.acquire(timeout=10).detach()
    listed, as_json, one, free, unasked, broken, again, removed, after = airflow_commands(
        "lockstead list",
        "lockstead list --json",
        "lockstead inspect apt",
        "lockstead inspect nothing --json",
        "lockstead break apt --reason stuck",
        "lockstead break apt --reason stuck --by anna --yes --json",
        "lockstead break nothing --reason stuck --yes",
        "lockstead break yum --reason gone --now --yes",
        f"lockstead list --json --url {url}",
    )
    assert listed["code"] == 0
    assert listed["out"].splitlines()[0].split()[:3] == ["KEY", "STATE", "OWNER"]
    assert [line.split()[:2] for line in listed["out"].splitlines()[1:]] == [["apt", "held"], ["yum", "held"]]
    assert as_json["code"] == 0
    assert {json.loads(line)["owner"] for line in as_json["out"].splitlines()} == {"who has apt", "who has yum"}
    assert one["code"] == 0
    assert one["out"].startswith("apt is held by who has apt\n")
    assert "publishing" in one["out"]
    # a key that is free
    assert free["code"] == 0
    assert json.loads(free["out"])["state"] == "free"
    assert again["code"] == 0
    assert "'nothing' is free: nothing to break" in again["err"]
    # nobody can be asked whether to break it, and nothing is broken then
    assert unasked["code"] == 64
    assert "add --yes" in unasked["err"]
    told = json.loads(broken["out"])
    assert (broken["code"], told["broken"], told["by"], told["reason"]) == (0, True, "anna", "stuck")
    assert told["was"]["state"] == "held"
    assert removed["code"] == 0
    apt = json.loads(after["out"])
    assert (apt["key"], apt["state"], apt["revoked_by"]) == ("apt", "revoked", "anna")
    entry = lockstead.Lock(f"{url}#apt").history()[0]
    assert (entry.by, entry.reason) == ("anna", "stuck")


def test_break_of_a_reader_leaves_the_others(airflow_commands: Airflow, url: str) -> None:
    first, second = (
        lockstead.Lock(f"{url}#index", ttl=600, owner=owner, mode="shared").acquire(timeout=10).detach()
        for owner in ("ci/1", "ci/2")
    )
    (done,) = airflow_commands(f"lockstead break index --reason stuck --reader {first.holder} --yes --json")
    assert (done["code"], json.loads(done["out"])["was"]["owner"]) == (0, "ci/1")
    held = lockstead.Lock(f"{url}#index").inspect()
    assert held is not None
    assert {one.holder: one.revoked_by is not None for one in held.readers} == {
        first.holder: True,
        second.holder: False,
    }


def test_what_a_command_cannot_do_is_one_line_and_an_exit_code(airflow_commands: Airflow, url: str) -> None:
    cases = {
        "lockstead list": (0, "no lock is held there"),
        "lockstead inspect apt --conn-id nobody": (64, "there is no connection 'nobody'"),
        "lockstead inspect apt --conn-id no_store": (64, "the connection 'no_store' names no store"),
        "lockstead list --conn-id referring": (64, "give --url"),
        "lockstead list --url nonsense://place": (64, "no store has the scheme 'nonsense'"),
        f"lockstead list --url {url}/missing": (69, "locks.db"),
        "lockstead break apt --yes": (2, "--reason"),
    }
    for (command, (code, line)), said in zip(cases.items(), airflow_commands(*cases), strict=True):
        assert said["code"] == code, (command, said)
        assert line in said["err"], (command, said)
        assert "Traceback" not in said["err"], (command, said)
        assert "sesame" not in said["out"] + said["err"]
        if code in (64, 69):
            assert len(said["err"].splitlines()) == 1, (command, said)


def test_a_failing_command_prints_its_error_as_json_if_asked(airflow_commands: Airflow, url: str) -> None:
    cases = {
        "inspect apt --conn-id nobody": (64, "there is no connection 'nobody'"),
        "list --conn-id referring": (64, "give --url"),
        "break apt --reason stuck --yes --conn-id no_store": (64, "names no store"),
        "list --url nonsense://place": (64, "no store has the scheme 'nonsense'"),
        f"list --url {url}/missing": (69, "locks.db"),
    }
    told = airflow_commands(*(f"lockstead {command} --json" for command in cases))
    for (code, line), said in zip(cases.values(), told, strict=True):
        error = json.loads(said["err"].splitlines()[-1])["error"]
        assert (said["code"], error["code"]) == (code, code)
        assert line in error["message"]
