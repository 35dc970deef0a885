"""`lockstead doctor` as people and scripts run it: usable or not, what it leaves behind, how it ends."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lockstead
from gcs_emulator import GcsServer
from tests.cli.conftest import at_default, until
from tests.cli.valid import checked

LOCKSTEAD = Path(sys.executable).parent / "lockstead"
PATIENCE = 100.0
"""Seconds: on a machine with much to do the command alone takes twenty to start."""

ROOM = {"softDeletePolicy": {"retentionDurationSeconds": "0"}}


@dataclass(frozen=True)
class Told:
    """What one examination told, by check, and how it ended."""

    code: int
    findings: Mapping[str, Mapping[str, Any]]
    document: Mapping[str, Any]

    def of(self, severity: str) -> set[str]:
        return {check for check, finding in self.findings.items() if finding["severity"] == severity}


def started(*arguments: str, emulator: str = "", **environment: str) -> subprocess.Popen[str]:
    """Start the installed command."""
    given = {"STORAGE_EMULATOR_HOST": emulator} if emulator else {}
    kept = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    return subprocess.Popen(
        [str(LOCKSTEAD), *arguments],
        env={**kept, **given, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=at_default,  # noqa: PLW1509 - it does nothing that a thread could be in the way of
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; give exit code, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert "Traceback" not in err, err
    assert isinstance(process.args, list)
    checked(process.args, process.returncode, out, err)
    return process.returncode, out, err


def ran(*arguments: str, emulator: str = "", **environment: str) -> tuple[int, str, str]:
    return ended(started(*arguments, emulator=emulator, **environment))


def examined(url: str, *options: str, emulator: str = "", **environment: str) -> Told:
    code, out, err = ran("doctor", "--json", *options, url, emulator=emulator, **environment)
    assert err == ""
    document = json.loads(out)
    return Told(code, {finding["check"]: finding for finding in document["findings"]}, document)


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        running.create_bucket("bucket", **ROOM)
        yield running


# --- usable ----------------------------------------------------------------------------------------------------------


def test_a_healthy_bucket_is_ok_and_nothing_is_left_in_it(server: GcsServer) -> None:
    told = examined("gs://bucket/locks", emulator=server.url)
    assert told.code == 0
    assert told.of("failure") | told.of("warning") == set()
    assert told.of("note") == {"endpoint"}, "only that it is an emulator"
    assert told.document["is_usable"] is True
    assert told.document["guarantee"].startswith("consensus")
    assert sum(check.startswith("promise.") for check in told.of("ok")) == 23
    assert server.objects("bucket") == {}


def test_a_store_with_one_change_a_second_is_usable(server: GcsServer) -> None:
    server.faults.one_mutation_per_second = True
    told = examined("gs://bucket/locks", emulator=server.url)
    assert (told.code, told.of("failure") | told.of("warning")) == (0, set())
    assert server.objects("bucket") == {}


def test_answers_that_are_lost_now_and_then_are_no_failure(server: GcsServer) -> None:
    for kind in ("insert", "patch", "delete"):
        server.faults.inject("lose_answer", kind=kind, name="*/1?", times=1)
        server.faults.inject("fail", kind=kind, times=1)
    # the very first record, and the first deletion that must succeed: two that must not come before it
    server.faults.inject("lose_answer", kind="insert", name="*/1")
    server.faults.inject("lose_answer", kind="delete", name="*/[0-9]*", skip=2)
    told = examined("gs://bucket/locks", emulator=server.url)
    assert (told.code, told.of("failure") | told.of("warning")) == (0, set())
    assert server.objects("bucket") == {}


def test_locks_that_others_hold_are_neither_touched_nor_read(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with lockstead.connect("gs://bucket/locks") as client:
        client.lock("apt", ttl=600).acquire().detach()
        held = server.objects("bucket")
        server.requests.clear()
        assert examined("gs://bucket/locks#apt", emulator=server.url).code == 0
    assert server.objects("bucket") == held
    assert {line.name for line in server.requests if line.name == "locks/apt"} == set()
    assert all(".lockstead/member/lockstead-doctor/" in line.name for line in server.requests if line.name)


def test_people_get_a_line_each_and_scripts_no_colour(server: GcsServer) -> None:
    code, out, err = ran("doctor", "gs://bucket/locks", emulator=server.url)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert all(line.split()[0] in ("ok", "note", "warning", "failure") for line in lines[:-1])
    assert lines[-1].startswith("usable (1 note); guarantee: consensus")
    _, quiet, _ = ran("doctor", "--quiet", "gs://bucket/locks", emulator=server.url)
    assert [line.split()[0] for line in quiet.splitlines()] == ["note", "usable"]


def test_a_ttl_that_is_short_for_the_store_is_a_warning(server: GcsServer) -> None:
    told = examined("gs://bucket/locks?ttl=5s", emulator=server.url)
    assert (told.code, told.of("warning")) == (0, {"ttl"})
    assert told.findings["ttl"]["figures"]["ttl_min_s"] >= 20


def test_memory_says_that_it_is_for_one_process() -> None:
    told = examined("memory:")
    assert (told.code, told.of("failure")) == (0, set())
    assert told.of("note") == {"processes"}
    assert "one process only" in told.findings["processes"]["text"]


def test_a_sqlite_file_is_examined_from_two_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with lockstead.connect(url) as client:
        ticket = client.lock("apt", ttl=600).acquire().detach()
        told = examined(url)
        assert (told.code, told.of("failure") | told.of("warning")) == (0, set())
        assert "file.processes" in told.of("ok")
        assert client.release(ticket)
    rows = sqlite3.connect(tmp_path / "locks.db").execute("SELECT count(*) FROM record").fetchone()
    assert rows == (0,)


# --- not usable ------------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_named(server: GcsServer) -> None:
    told = examined("gs://nowhere/locks", emulator=server.url)
    assert (told.code, told.of("failure")) == (69, {"bucket.exists"})
    assert "gs://nowhere" in told.findings["bucket.exists"]["text"]


def test_an_endpoint_where_nobody_listens_is_named() -> None:
    told = examined("gs://bucket/locks", emulator="http://127.0.0.1:9")
    assert (told.code, told.of("failure")) == (69, {"store"})
    assert "cannot connect" in told.findings["store"]["text"]


def test_an_endpoint_that_is_no_cloud_storage_is_named(server: GcsServer) -> None:
    server.faults.inject("fail", kind="bucket_get", status=418, times=None)
    told = examined("gs://bucket/locks", emulator=server.url)
    assert (told.code, told.of("failure")) == (69, {"endpoint"})


def test_credentials_that_are_not_accepted_are_named(server: GcsServer) -> None:
    server.faults.inject("fail", kind="bucket_get", status=401, times=None)
    told = examined("gs://bucket/locks", emulator=server.url)
    assert (told.code, told.of("failure")) == (69, {"credentials"})


def test_missing_credentials_are_named(tmp_path: Path) -> None:
    nowhere = {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": ""}
    # no metadata server answers there, so that nobody waits for one
    told = examined("gs://bucket/locks", **nowhere, NO_GCE_CHECK="true", GCE_METADATA_HOST="127.0.0.1:9")
    assert (told.code, told.of("failure")) == (69, {"store"})
    assert "gcloud auth application-default login" in told.findings["store"]["text"]


@pytest.mark.parametrize("where", ["no-such-folder/locks.db", "."])
def test_a_place_where_no_file_can_be_is_named(tmp_path: Path, where: str) -> None:
    told = examined(f"sqlite:///{tmp_path}/{where}")
    assert (told.code, told.of("failure")) == (69, {"store"})


def test_a_file_that_is_no_database_or_another_programs_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database" * 100)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE accounts (n)")
    other.close()
    for name, words in (("text.db", "not a database"), ("other.db", "another program")):
        told = examined(f"sqlite:///{tmp_path}/{name}")
        assert (told.code, told.of("failure")) == (69, {"store"})
        assert words in told.findings["store"]["text"]


def test_no_time_for_a_request_is_wrong_usage() -> None:
    code, out, err = ran("doctor", "--limit", "0", "memory:")
    assert (code, out, err.count("\n")) == (64, "", 1)


@pytest.mark.parametrize("url", ["locks", "ftp://host/0", "gs://bucket/locks?colour=red", "gs://bucket?ttl=never"])
def test_a_url_that_cannot_be_is_wrong_usage(url: str) -> None:
    code, out, err = ran("doctor", url)
    assert (code, out, err.count("\n")) == (64, "", 1)


# --- cut short -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_examination_that_is_cut_short_leaves_nothing_behind(server: GcsServer, number: int) -> None:
    server.faults.latency = 0.02
    running = started("doctor", "gs://bucket/locks", emulator=server.url)
    until(lambda: len(server.objects("bucket")) >= 4, "some scratch records", PATIENCE)
    running.send_signal(number)
    code, _, err = ended(running)
    assert code == 128 + number
    assert err.count("\n") == 1
    assert server.objects("bucket") == {}


def test_a_signal_during_the_clean_up_does_not_end_it(server: GcsServer) -> None:
    # the rights and the promise on listings list once each, then the cleaning up begins with a listing
    cleaning = server.faults.inject("stall", kind="list", skip=2)
    running = started("doctor", "gs://bucket/locks", emulator=server.url)
    assert cleaning.wait_for_hit(timeout=PATIENCE)
    assert server.objects("bucket") != {}
    running.send_signal(signal.SIGINT)
    cleaning.release()
    code, _, err = ended(running)
    assert (code, err.count("\n")) == (130, 1)
    assert server.objects("bucket") == {}


def test_leftovers_of_a_killed_run_are_removed_an_hour_later() -> None:
    ahead = [0.0]
    with GcsServer(clock=lambda: time.time() + ahead[0]) as server:
        server.create_bucket("bucket", **ROOM)
        server.faults.latency = 0.02
        running = started("doctor", "gs://bucket/locks", emulator=server.url)
        until(lambda: len(server.objects("bucket")) >= 4, "some scratch records", PATIENCE)
        running.kill()
        ended(running)
        server.faults.latency = 0.0
        until(lambda: all(line.status is not None for line in server.requests), "the last answer", PATIENCE)
        left = set(server.objects("bucket"))
        assert examined("gs://bucket/locks", emulator=server.url).code == 0
        assert set(server.objects("bucket")) == left, "another examination may be under way"
        ahead[0] = 2 * 3600.0
        told = examined("gs://bucket/locks", emulator=server.url)
        assert (told.code, server.objects("bucket")) == (0, {})
        assert (told.of("note"), told.of("warning")) == ({"endpoint"}, {"clock.wall"})


@pytest.mark.parametrize(("how", "words"), [("refuse", "cannot connect"), ("hang", "no answer")])
def test_a_silent_store_ends_the_examination_and_names_leftovers(server: GcsServer, how: str, words: str) -> None:
    server.faults.latency = 0.01
    running = started("doctor", "--json", "--limit", "0.5s", "gs://bucket/locks", emulator=server.url)
    until(lambda: len(server.objects("bucket")) >= 4, "some scratch records", PATIENCE)
    server.pause(how)
    code, out, _ = ended(running)
    findings = {finding["check"]: finding for finding in json.loads(out)["findings"]}
    assert code == 69
    assert findings["promise.others"]["severity"] == "failure"
    assert words in findings["promise.others"]["text"]
    assert findings["scratch"]["severity"] == "warning"
