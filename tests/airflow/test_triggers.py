"""What the triggerer does for a lock: few requests for many waiters, nothing leaked, nothing of others' given back.

`waiters.py` runs the triggers with an Airflow's own classes; no Airflow is started. By default on the newest.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import chosen
from tests.servers.airflow_parts import Version

pytestmark = pytest.mark.airflow

WAITERS = Path(__file__).with_name("waiters.py")
TTL = 12.0

Waiters = Callable[[str], dict[str, Any]]


@pytest.fixture
def waiters(request: pytest.FixtureRequest, tmp_path: Path) -> Waiters:
    version = Version(chosen(request.config)[-1])

    def run(scenario: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(version.python), str(WAITERS), scenario, f"sqlite:///{tmp_path / 'locks.db'}#apt"],
            env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        # what is logged as the process ends may come behind it
        answer = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
        said: dict[str, Any] = json.loads(answer)
        return said

    return run


def test_a_thousand_waiters_send_few_requests_and_are_granted(
    waiters: Waiters,
):
    seen = waiters("many")
    assert seen["still"] == 2000
    assert seen["begun"] < 200
    # two who ask for all, and the keeper of the lease that is waited for: not two thousand
    assert seen["asked"] < 400
    assert seen["tokens"] == sorted(set(seen["tokens"]))
    # first come, first served
    assert seen["owners"] == [f"t{number}" for number in range(10)]
    assert seen["took"] < 30


def test_readers_are_granted_together_and_a_writer_waits_for_all(waiters: Waiters):
    seen = waiters("shared")
    assert len(set(seen["tokens"])) == 1
    assert (seen["mode"], seen["beside"], seen["free"], seen["keeper"]) == ("shared", "free", "free", "ended")
    # a retry of a reader is another reader
    assert seen["released"] == [True, True, True]
    assert seen["kept_out"]
    assert seen["waited"]
    assert seen["grows"]


def test_permits_are_granted_up_to_the_limit_and_given_back_by_ticket(waiters: Waiters):
    seen = waiters("permits")
    first, second, third = seen["slots"]
    assert {first, second} == {0, 1}
    assert third == first
    assert seen["mode"] == f"permit/{first}"
    assert f", slot {first} after " in seen["text"]
    assert seen["full"]
    assert seen["waited"]
    assert seen["released"]
    assert seen["keeper"] == "ended"
    # the third task ended before its body began
    assert seen["settled"] == [True, True]
    assert seen["held"] == ["airflow:d/r/second/-1"]
    assert seen["free_again"] == ["free", True]
    assert seen["left"] > 0
    assert "'apt' is a semaphore" in seen["refused"]
    assert "\n" not in seen["refused"]


def test_a_reader_whose_task_never_began_gives_back_its_own_lease_alone(waiters: Waiters):
    seen = waiters("unbegun_reader")
    assert (seen["settled"], seen["left"]) == ([True, True], ["other"])
    assert seen["time"] > 0


def test_a_sensor_of_a_reader_is_not_kept_waiting_by_readers(waiters: Waiters):
    assert waiters("poked") == {"free": [True, True], "shared": [True, False], "exclusive": [False, False]}


def test_a_reader_that_refuses_an_unclean_end_ends_no_other_reader(waiters: Waiters):
    seen = waiters("refused_reader")
    told = "the lease of 'who died' on 'apt' ended REVOKED"
    assert seen["failed"].startswith(f"lockstead: {told}")
    assert (seen["readers"], seen["left"] > 0) == (1, True)
    assert told in seen["again"]


def test_an_unused_grant_survives_cleanup_until_its_ttl(waiters: Waiters):
    seen = waiters("unconsumed")
    assert seen["held_after_cleanup"]
    assert (seen["state"], seen["other"]) == ("granted", "granted")
    assert seen["took"] > TTL / 2
    assert "airflow:d/r/first/-1" in seen["unclean"]


def test_a_retry_takes_over_its_earlier_grant_ahead_of_waiters(waiters: Waiters):
    seen = waiters("again")
    assert seen["second"] > seen["first"]
    assert seen["took"] < 60  # and not the 120 s of its ttl
    assert seen["unclean"] is None


def test_a_retry_in_a_worker_takes_over_its_earlier_grant(waiters: Waiters):
    # nobody's code is between the provider and Python's threads: its own plumbing is named to nobody
    assert waiters("retried") == {"other": True, "grows": True, "unclean": None, "where": None, "free": True}


def test_a_retry_still_knows_of_the_unclean_end_and_fails(waiters: Waiters):
    seen = waiters("unclean")
    assert seen["first"] == "the lease of 'who died' on 'apt' ended EXPIRED"
    assert seen["again"] == seen["once_more"] == seen["first"]
    assert seen["failed"].startswith(f"AirflowFailException: lockstead: {seen['first']}: repair what it left")
    assert seen["failed"].endswith("until then on_unclean='fail' refuses every other run")
    assert seen["free"]
    assert seen["cleared"]
    # who it was, not who was refused for it
    assert seen["others"] == [seen["first"]] * 2
    assert seen["repaired"]


def test_on_unclean_fail_needs_a_store_that_detects_it(waiters: Waiters):
    told = "etcd: cannot tell how a holder ended, so on_unclean='fail' would never fail"
    seen = waiters("untold")
    assert [one.partition(";")[0] for one in seen["fail"]] == [f"ValueError: {told}"] * 2
    assert seen["warn"] == "StoreUnavailable"


def test_a_hostile_record_ends_no_wait_and_loses_no_grant(waiters: Waiters):
    seen = waiters("hostile")
    assert (seen["wait"], seen["free"], seen["at_once"]) == ("waits", "waits", None)
    told = "the lease of 'evil' on 'apt' ended EXPIRED"
    assert seen["event"] == ["granted", told]
    assert seen["granted"] == told


def test_a_grant_is_released_if_no_event_can_be_sent(waiters: Waiters):
    seen = waiters("tokenless")
    assert seen["trigger"] == ["failed", "free"]
    assert seen["at_once"] == seen["inline"] == ["StoreUnavailable", "free"]


def test_a_trigger_cancelled_before_it_fires_leaves_no_lease(
    waiters: Waiters,
):
    seen = waiters("cancelled")
    assert seen["requests"] > 3  # look, acquire, token, and who died
    assert seen["left"] == []
    assert seen["unclean"] == "the lease of 'who died' on 'apt' ended EXPIRED"
    # of what it has told of it gives nothing back
    assert seen["still"]


def test_a_keeper_renews_beyond_the_ttl_until_the_release(waiters: Waiters):
    seen = waiters("kept")
    assert seen["lives"]
    assert seen["released"]
    assert (seen["state"], seen["reason"]) == ("ended", "GONE")


def test_a_keeper_ends_as_soon_as_its_lease_does(waiters: Waiters):
    assert waiters("ended") == {"released": "GONE", "passed_on": "TAKEN"}


def test_who_waits_until_a_lock_is_free_does_not_take_it(waiters: Waiters):
    seen = waiters("free")
    assert seen["waited"]
    assert seen["event"] == {"state": "free"}
    assert not seen["taken"]
    assert seen["late"]["state"] == "held"
    assert "'somebody'" in seen["late"]["message"]


def test_a_timeout_names_the_holder_and_a_wrong_url_fails(waiters: Waiters):
    seen = waiters("timeout")
    assert seen["late"]["state"] == "not acquired"
    assert "being first" in seen["late"]["message"]
    assert seen["wrong"]["state"] == "refused"
    assert "nonsense" in seen["wrong"]["message"]
