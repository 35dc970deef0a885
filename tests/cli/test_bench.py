"""`lockstead bench` as people and scripts run it: figures within bounds, and nothing left behind."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead.cli.bench.command import row
from lockstead.cli.bench.measures import Measure
from lockstead.cli.doctor.figures import in_short
from tests.cli.conftest import until
from tests.cli.test_doctor import PATIENCE, ended, ran, started


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(buckets=["bucket"]) as running:
        yield running


def measured(url: str, *options: str, emulator: str = "") -> Any:
    code, out, err = ran("bench", "--json", *options, url, emulator=emulator)
    assert (code, err, out.count("\n")) == (0, "", 1)
    return json.loads(out)


def rows(path: Path) -> int:
    with sqlite3.connect(path) as opened:
        (count,) = opened.execute("SELECT count(*) FROM record").fetchone()
    opened.close()
    return int(count)


def test_each_measure_has_its_floor_and_nothing_is_left(tmp_path: Path) -> None:
    told = measured(f"sqlite:///{tmp_path}/locks.db", "--count", "6")
    assert told["requests_per_cycle"] == {"Create": 1, "Remove": 1}
    measures = told["measures"]
    assert {name: one["count"] for name, one in measures.items()} == {"cycle": 6, "renewal": 6, "hand-over": 3}
    assert {name: one["floor"] for name, one in measures.items()} == {
        "cycle": "Create + Remove",
        "renewal": "Extend",
        "hand-over": "Remove + Create",
    }
    for one in measures.values():
        assert 0 < one["p50"] <= one["p99"]
        assert 0 < one["floor_p50"] <= one["floor_p99"]
    assert rows(tmp_path / "locks.db") == 0


def test_a_cycle_on_cloud_storage_is_two_requests(server: GcsServer) -> None:
    told = measured("gs://bucket/locks", "--count", "2", emulator=server.url)
    assert told["requests_per_cycle"] == {"Create": 1, "Remove": 1}
    assert server.objects("bucket") == {}
    cycles = server.requests.count("insert", "locks/lockstead-bench-*"), server.requests.count("patch", "locks/*")
    # one counted, two timed, one renewed, one handed over and tried for by the other side
    assert cycles[0] >= 5
    assert cycles[1] >= 4, "two renewals, and two Extends of the floor"
    assert "list" in server.requests.counts(), "it has looked for what may be left"


def test_a_store_with_one_change_a_second_is_measured(server: GcsServer) -> None:
    server.faults.one_mutation_per_second = True
    measures = measured("gs://bucket/locks", "--count", "1", emulator=server.url)["measures"]
    assert measures["cycle"]["count"] == 1
    assert measures["cycle"]["floor_p50"] is not None
    assert server.objects("bucket") == {}


def test_memory_hands_over_between_two_clients() -> None:
    measures = measured("memory:", "--count", "4")["measures"]
    assert measures["hand-over"]["count"] == 2


def test_time_that_is_up_ends_it_with_one_of_each(tmp_path: Path) -> None:
    measures = measured(f"sqlite:///{tmp_path}/locks.db", "--count", "10000", "--limit", "0s")["measures"]
    assert {one["count"] for one in measures.values()} == {1}


def test_people_get_a_table(tmp_path: Path) -> None:
    code, out, err = ran("bench", "--count", "2", f"sqlite:///{tmp_path}/locks.db")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split()[:4] == ["WHAT", "N", "P50", "P99"]
    assert [line.split()[0] for line in lines[1:4]] == ["cycle", "renewal", "hand-over"]
    assert lines[4] == "a cycle is 2 requests: 1 Create, 1 Remove"


def test_locks_that_others_hold_stay_theirs(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with lockstead.connect("gs://bucket/locks") as client:
        client.lock("apt", ttl=600).acquire().detach()
    held = server.objects("bucket")
    measured("gs://bucket/locks#apt", "--count", "1", emulator=server.url)
    assert server.objects("bucket") == held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_measurement_leaves_nothing(server: GcsServer, number: int) -> None:
    # with a count of one the fourth key is handed over: after the counted one, the timed one, the renewed one
    stuck = server.faults.inject("stall", kind="get", name="locks/lockstead-bench-*-4")
    running = started("bench", "--count", "1", "gs://bucket/locks", emulator=server.url)
    assert stuck.wait_for_hit(timeout=PATIENCE)
    running.send_signal(number)
    stuck.remove()
    code, _, err = ended(running)
    assert code == 128 + number
    assert err == f"lockstead: {signal.Signals(number).name} ended the measurement\n"
    until(lambda: server.objects("bucket") == {}, "an empty bucket", PATIENCE)


def test_h22_a_store_that_fails_is_one_line_and_69(server: GcsServer) -> None:
    code, out, err = ran("bench", "gs://nowhere/locks", emulator=server.url)
    assert (code, out, err.count("\n")) == (69, "", 1)
    assert "gs://nowhere does not exist" in err


@pytest.mark.parametrize("words", [["--count", "0"], ["--limit", "soon"], ["memory:?colour=red"]])
def test_wrong_words_are_wrong_usage(words: list[str]) -> None:
    url = [] if ":" in words[0] else ["memory:"]
    code, out, err = ran("bench", *words, *url)
    assert (code, out, err.count("\n")) == (64, "", 1)


def test_a_measure_without_samples_is_told_as_such() -> None:
    assert row(Measure("cycle", (), (), "x")) == ("cycle", "0", "-", "-", "-", "-")
    assert row(Measure("cycle", (0.002, 0.004, 0.006), (0.002,), "x"))[2:] == ("4 ms", "6 ms", "2 ms (x)", "2.00")
    assert [in_short(seconds) for seconds in (0.0000123, 0.5, 1.0, 12.345)] == ["0.0123 ms", "500 ms", "1 s", "12.3 s"]
