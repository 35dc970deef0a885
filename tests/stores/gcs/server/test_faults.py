"""Every fault does what it says, to the requests that it is meant for and to no others."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gcs_emulator import Action, Fault, GcsServer, ManualClock
from gcs_emulator.objects import draft_of
from tests.stores.gcs.server.driver import Driver

IMPATIENT = httpx.Timeout(30, read=0.05)
PATIENCE = 10.0
EMPTY = draft_of(b"", {}, {})


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.002)


@pytest.fixture
def impatient(own: Driver) -> Driver:
    """A driver whose requests time out."""
    own.http.timeout = IMPATIENT
    return own


@pytest.mark.parametrize("status", [429, 500, 503])
def test_fail_answers_before_the_commit(server: GcsServer, own: Driver, status: int) -> None:
    server.faults.inject("fail", kind="insert", status=status)
    failed = own.insert("lock")
    assert (failed.status_code, failed.json()["error"]["code"]) == (status, status)
    assert not server.objects("bucket")
    assert own.insert("lock").status_code == 200


def test_fail_after_commit(server: GcsServer, own: Driver) -> None:
    server.faults.inject("fail_after_commit", kind="insert")
    assert own.insert("lock", {"ifGenerationMatch": "0"}).status_code == 503
    assert own.insert("lock", {"ifGenerationMatch": "0"}).status_code == 412


@pytest.mark.parametrize("operation", ["insert", "patch", "delete"])
def test_lose_answer_commits(server: GcsServer, own: Driver, operation: str) -> None:
    if operation != "insert":
        own.insert("lock")
    lost = server.faults.inject("lose_answer", kind=operation)
    with pytest.raises(httpx.TransportError):
        getattr(own, operation)("lock")
    assert lost.hits == 1
    found = server.objects("bucket").get("lock")
    assert (found.metageneration if found else 0) == {"insert": 1, "patch": 2, "delete": 0}[operation]
    assert server.requests.all()[-1].status is None


def test_lose_request_does_not_commit(server: GcsServer, own: Driver) -> None:
    server.faults.inject("lose_request", kind="mutation")
    with pytest.raises(httpx.TransportError):
        own.insert("lock")
    assert not server.objects("bucket")


@pytest.mark.parametrize("operation", ["insert", "patch", "delete"])
def test_stall_commits_late_though_the_client_is_gone(server: GcsServer, impatient: Driver, operation: str) -> None:
    if operation != "insert":
        server.store.insert("bucket", "lock", EMPTY)
    before = server.objects("bucket").get("lock")
    stall = server.faults.inject("stall", kind=operation)
    with pytest.raises(httpx.ReadTimeout):
        getattr(impatient, operation)("lock")
    assert stall.wait_for_hit()
    assert server.objects("bucket").get("lock") == before
    stall.release()
    eventually(lambda: server.objects("bucket").get("lock") != before)


def test_a_stalled_delete_is_judged_when_it_commits(server: GcsServer, impatient: Driver) -> None:
    generation = str(server.store.insert("bucket", "lock", EMPTY).generation)
    stall = server.faults.inject(Action.STALL, kind="delete")
    with pytest.raises(httpx.ReadTimeout):
        impatient.delete("lock", {"ifGenerationMatch": generation})
    assert stall.wait_for_hit()
    server.store.delete("bucket", "lock")
    successor = server.store.insert("bucket", "lock", EMPTY)
    stall.release()
    eventually(lambda: server.requests.count("delete", status=412) == 1)
    assert server.objects("bucket")["lock"] == successor


def test_stall_may_last_a_fixed_time(server: GcsServer, own: Driver) -> None:
    server.faults.inject("stall", kind="insert", seconds=0.05)
    began = time.monotonic()
    assert own.insert("lock").status_code == 200
    assert time.monotonic() - began >= 0.05


def test_stall_answer_commits_at_once(server: GcsServer, impatient: Driver) -> None:
    stall = server.faults.inject("stall_answer", kind="insert")
    with pytest.raises(httpx.ReadTimeout):
        impatient.insert("lock")
    assert stall.wait_for_hit()
    eventually(lambda: "lock" in server.objects("bucket"))


def test_hang_never_commits(server: GcsServer, impatient: Driver) -> None:
    hang = server.faults.inject("hang", kind="insert")
    with pytest.raises(httpx.ReadTimeout):
        impatient.insert("lock")
    assert hang.wait_for_hit()
    hang.release()
    server.stop()
    assert not server.objects("bucket")


def test_repeat_commits_the_same_request_once_more(server: GcsServer, own: Driver) -> None:
    again = server.faults.inject("repeat", kind="delete")
    own.insert("lock")
    assert own.delete("lock").status_code == 204
    own.insert("lock")
    again.release()
    assert again.wait_for_repetition()
    assert not server.objects("bucket")


def test_faults_are_matched_by_kind_and_name(server: GcsServer, own: Driver) -> None:
    fault = server.faults.inject("fail", kind="patch,delete", name="locks/*", times=None)
    assert own.insert("locks/a").status_code == 200
    assert own.insert("other").status_code == 200
    assert own.get("locks/a").status_code == 200
    assert own.patch("other").status_code == 200
    assert own.patch("locks/a").status_code == 503
    assert own.delete("locks/a").status_code == 503
    assert fault.hits == 2
    fault.remove()
    assert own.delete("locks/a").status_code == 204


def test_mutation_means_all_that_change_an_object(server: GcsServer, own: Driver) -> None:
    own.insert("lock")
    server.faults.inject("fail", kind="mutation", times=None)
    changes = [own.insert("lock"), own.patch("lock"), own.delete("lock"), own.copy("lock", "other")]
    assert [answer.status_code for answer in changes] == [503] * 4
    assert own.get("lock").status_code == own.content("lock").status_code == own.plain("lock").status_code == 200
    assert own.names() == ["lock"]


def test_skip_and_times_choose_the_matches(server: GcsServer, own: Driver) -> None:
    own.insert("lock")
    server.faults.inject("fail", kind="get", skip=2, times=2)
    assert [own.get("lock").status_code for _ in range(6)] == [200, 200, 503, 503, 200, 200]


def test_of_several_faults_the_first_that_strikes_takes_the_request(server: GcsServer, own: Driver) -> None:
    first = server.faults.inject("fail", kind="list", status=500)
    second = server.faults.inject("fail", kind="list", status=429)
    statuses = [own.http.get("/storage/v1/b/bucket/o").status_code for _ in range(3)]
    assert statuses == [500, 429, 200]
    assert (first.hits, second.hits) == (1, 1)


@pytest.mark.parametrize("wrong", [{"skip": -1}, {"times": 0}, {"status": 200}, {"seconds": -1.0}])
def test_a_fault_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Fault(Action.FAIL, **wrong)


def test_clear_sets_everything_back(server: GcsServer, own: Driver) -> None:
    hang = server.faults.inject("hang", kind="get")
    server.faults.one_mutation_per_second = True
    server.faults.date_offset = 99.0
    with ThreadPoolExecutor(1) as pool:
        asked: Future[httpx.Response] = pool.submit(own.get, "lock")
        assert hang.wait_for_hit()
        server.faults.clear()
        with pytest.raises(httpx.TransportError):
            asked.result(PATIENCE)
    assert not server.faults.active()
    assert not server.faults.one_mutation_per_second
    assert own.get("lock").status_code == 404


def test_one_mutation_per_second_per_object() -> None:
    clock = ManualClock()
    with GcsServer(buckets=["bucket"], clock=clock) as server, httpx.Client(base_url=server.url) as http:
        driver = Driver(http, "bucket")
        server.faults.one_mutation_per_second = True
        assert driver.insert("lock").status_code == 200
        assert driver.insert("other").status_code == 200
        too_soon = [driver.patch("lock"), driver.delete("lock"), driver.insert("lock")]
        assert [answer.status_code for answer in too_soon] == [429] * 3
        assert too_soon[0].json()["error"]["errors"][0]["reason"] == "rateLimitExceeded"
        assert driver.insert("lock", {"ifGenerationMatch": "0"}).status_code == 412
        clock.advance(1)
        assert driver.delete("lock").status_code == 204
        assert driver.insert("lock").status_code == 429
        clock.advance(1)
        assert driver.insert("lock").status_code == 200


def test_date_can_be_skewed_coarse_or_absent() -> None:
    with (
        GcsServer(buckets=["bucket"], clock=ManualClock(1_700_000_007.9)) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        driver = Driver(http, "bucket")
        shown = driver.insert("lock")
        assert shown.headers["date"] == "Tue, 14 Nov 2023 22:13:27 GMT"
        assert shown.json()["updated"] == "2023-11-14T22:13:27.900Z"
        server.faults.date_offset = -3600.0
        assert driver.get("lock").headers["date"] == "Tue, 14 Nov 2023 21:13:27 GMT"
        server.faults.date_offset, server.faults.clock_resolution = 0.0, 10.0
        assert driver.get("lock").headers["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
        server.faults.hides_date = True
        assert "date" not in driver.get("lock").headers


def test_latency_is_added_to_every_request(server: GcsServer, own: Driver) -> None:
    server.faults.latency = 0.03
    began = time.monotonic()
    own.get("lock")
    own.get("lock")
    assert time.monotonic() - began >= 0.06


def test_generations_are_unique_but_need_not_grow() -> None:
    with GcsServer(buckets=["bucket"], shuffled=True) as server:
        seen = [server.store.insert("bucket", "lock", EMPTY).generation for _ in range(1000)]
    assert len(set(seen)) == 1000
    assert seen != sorted(seen)
