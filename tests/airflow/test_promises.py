"""What a DAG author relies on of a locked group, on a real Airflow, with crowds, retries, clearing and full pools.

All scenes are played at once: most of their time is waiting. On older versions only what may differ there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstead
from gcs_emulator import GcsServer
from tests.airflow.scenes import PATIENCE, Scenes, Stage
from tests.airflow.test_body import NEWEST
from tests.servers.airflow import Airflow
from tests.servers.marked import is_alive

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]


# --- many runs, one lock ----------------------------------------------------------------------------------------------

PUBLISH = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("publish", lock=LOCK, ttl="5m", purpose="one of many"):
        @task
        def build(run_id=None):
            work(f"{run_id}/build")

        @task
        def upload(run_id=None):
            work(f"{run_id}/upload")

        build() >> upload()
"""

PASSER = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    @task
    def passes():
        note("passed")

    passes()
"""


def crowd(stage: Stage) -> dict[str, Any]:
    """Two DAGs with many runs wait for a lock that the test holds; another DAG runs meanwhile; then they get it."""
    dags = [stage.put(PUBLISH, f"crowd_{number}") for number in range(2)]
    passer = stage.put(PASSER, "passer")
    amount = 4 if stage.airflow.version.name == NEWEST else 2
    with stage.lock().hold(timeout=30):
        runs = [stage.airflow.trigger(dag, f"{dag}-{number}") for number in range(amount) for dag in dags]
        for run in runs:
            stage.until(
                lambda run=run: stage.airflow.task(run, "publish.lock_acquire").state == "deferred", f"{run} waits not"
            )
        passed = stage.ended(stage.airflow.trigger(passer))
        waiting = [stage.airflow.task(run, "publish.lock_acquire").state for run in runs]
    return {
        "passed": passed,
        "waiting": waiting,
        "ended": [stage.ended(run) for run in runs],
        "free": stage.is_free(),
        "notes": stage.notes,
    }


# --- time passes ------------------------------------------------------------------------------------------------------

RETRIED = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("publish", lock=LOCK, ttl=60):
        @task(retries=1, retry_delay=timedelta(seconds=75))
        def build(ti=None):
            work("build")
            if ti.try_number == 1:
                raise RuntimeError("as planned")

        build()
"""


def retried(stage: Stage) -> dict[str, Any]:
    """A task fails and is tried again when the ttl has passed; another wants the lock all the while."""
    run = stage.airflow.trigger(stage.put(RETRIED))
    stage.until(stage.notes.stays, "the body did not enter")
    with stage.lock().hold(timeout=PATIENCE) as lease:
        other = lease.sequencer().token
    return {"ended": stage.ended(run), "other": other, "stays": stage.notes.stays(), "free": stage.is_free()}


GRANTED_TWICE = """
class FailsOnce(AcquireLockOperator):
    def granted(self, context, event):
        is_first = not os.path.exists(NOTES)
        note("granted", token=event["token"])
        if is_first:
            raise RuntimeError("as an executor fails what it takes for lost")
        return super().granted(context, event)

with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    acquire = FailsOnce(task_id="acquire", lock=LOCK, ttl="5m", retry_delay=timedelta(seconds=1))
    acquire >> ReleaseLockOperator(task_id="release", acquire_id="acquire", lock=LOCK)
"""


def granted_twice(stage: Stage) -> dict[str, Any]:
    """A task is failed when its trigger has just been granted the lock."""
    with stage.lock().hold(timeout=30):
        run = stage.airflow.trigger(stage.put(GRANTED_TWICE))
        stage.until(lambda: stage.airflow.task(run, "acquire").state == "deferred", "it does not wait")
        # the executor says what it knows of the one that deferred within a round or two of the scheduler
        time.sleep(5)
    ended = stage.ended(run)
    last = stage.airflow.task(run, "acquire").try_number
    return {
        "ended": ended,
        "granted": [one["token"] for one in stage.notes.lines("granted")],
        "last": last,
        "said": [stage.airflow.task_log(run, "acquire", attempt=number) for number in range(1, last + 1)],
        "free": stage.is_free(),
    }


SLOTLESS = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("publish", lock=LOCK, ttl=20, keeper=False, acquire_args={"pool": "narrow"}):
        @task
        def build():
            work("build")

        build()
"""

BLOCKER = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    @task(pool="narrow")
    def sits():
        while not os.path.exists(SIGN):
            time.sleep(0.1)

    sits()
"""


def slotless(stage: Stage) -> dict[str, Any]:
    """A lock is granted while the only slot is taken, for longer than the lease lives."""
    waits, sits = stage.put(SLOTLESS), stage.put(BLOCKER, "slotless_blocker")
    with stage.lock().hold(timeout=30):
        run = stage.airflow.trigger(waits)
        stage.until(lambda: stage.airflow.task(run, "publish.lock_acquire").state == "deferred", "it waits not")
        blocker = stage.airflow.trigger(sits)
        stage.until(lambda: stage.airflow.task(blocker, "sits").state == "running", "the slot is not taken")
    granted = stage.until(
        lambda: (held := stage.lock().inspect()) and held.owner.startswith("airflow:") and held, "it is not granted"
    )
    # the lease runs out, and somebody else has the lock: without that its owner might renew it even now
    with stage.lock().hold(timeout=PATIENCE):
        pass
    stage.file.touch()
    return {
        "ended": stage.ended(run),
        "blocker": stage.ended(blocker),
        "granted": granted,
        "said": stage.said(run, "publish.lock_acquire"),
        "stays": stage.notes.stays(),
        "free": stage.is_free(),
    }


UNBEGUN = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    @task.locked(lock=LOCK, ttl="30m", pool="taken", retries=0)
    def publish():
        work("publish")

    publish()
"""


def unbegun(stage: Stage) -> dict[str, Any]:
    """A task without retries is granted the lock, and fails while it waits for its slot: as by an executor's event."""
    with stage.lock().hold(timeout=30):
        run = stage.airflow.trigger(stage.put(UNBEGUN))
        stage.until(lambda: stage.airflow.task(run, "publish").state == "deferred", "it waits not")
        blocker = stage.airflow.trigger(stage.put(BLOCKER.replace("narrow", "taken"), "unbegun_blocker"))
        stage.until(lambda: stage.airflow.task(blocker, "sits").state == "running", "the slot is not taken")
    stage.until(
        lambda: (held := stage.lock().inspect()) and held.owner.startswith("airflow:") and held, "it is not granted"
    )
    # its trigger has fired, and is over: one that is still at it gives its own grant back
    stage.until(lambda: stage.airflow.task(run, "publish").state != "deferred", "its trigger does not fire")
    failed_at = time.monotonic()
    stage.airflow.mark(run, "publish", "failed")
    stage.until(stage.is_free, "nobody gives the grant back")
    took = time.monotonic() - failed_at
    stage.file.touch()
    return {
        "took": took,
        "shown": stage.airflow.shown_operator("unbegun", "publish"),
        "ended": stage.ended(run),
        "blocker": stage.ended(blocker),
        "stays": stage.notes.stays(),
    }


MARKED = """
def until_told(context):
    import airflow_lockstead.acquiring
    note("begins", task=context["task"].task_id)
    while not os.path.exists(SIGN + context["task"].task_id):
        time.sleep(0.05)

with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    acquire = AcquireLockOperator(task_id="acquire", lock=LOCK, ttl="30m", pre_execute=until_told)
    acquire >> ReleaseLockOperator(task_id="release", acquire=acquire)

    @task.locked(lock=LOCK + "-own", ttl="30m", retries=0, pre_execute=until_told)
    def publish():
        work("publish")

    publish()
"""


def marked(stage: Stage) -> dict[str, Any]:
    """Tasks are marked failed when they are about to be granted their locks, and are, for no store knows of it."""
    run = stage.airflow.trigger(stage.put(MARKED))
    pids = {}
    for task_id in ("acquire", "publish"):
        stage.until(
            lambda task_id=task_id: any(one["task"] == task_id for one in stage.notes.lines("begins")),
            f"{task_id} does not begin",
        )
        pids[task_id] = stage.airflow.body_of(run, task_id)
        stage.airflow.mark(run, task_id, "failed")
        Path(f"{stage.file}{task_id}").touch()
    stage.until(lambda: not any(map(is_alive, pids.values())), "their processes do not end")
    return {
        "free": [stage.is_free(), stage.is_free(f"{stage.notes.url}-own")],
        "said": [stage.said(run, task_id) for task_id in pids],
        "ended": stage.ended(run),
        "stays": stage.notes.stays(),
    }


# --- granted at once --------------------------------------------------------------------------------------------------

QUICK_LOCKS = 6
QUICK = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    for number in range(24):  # four for each lock: one of them is granted at once, the others soon
        with LockedTaskGroup(
            f"quick{number}",
            lock=f"{LOCK}-{number // (24 // LOCKS)}",
            keeper=False,
            acquire_args=dict(pool="few", retry_delay=1),
        ):
            EmptyOperator(task_id="nothing")
"""


def quick(stage: Stage) -> dict[str, Any]:
    """Many that are granted at once or soon, with few slots: an executor's stale event fails some that deferred."""
    run = stage.airflow.trigger(stage.put(QUICK.replace("LOCKS", str(QUICK_LOCKS))))
    ended = stage.ended(run)
    acquires = [one for one in stage.airflow.tasks(run) if one.task_id.endswith(".lock_acquire")]
    return {
        "ended": ended,
        "tries": [one.try_number for one in acquires],
        "deferred": ["the triggerer waits" in stage.airflow.task_log(run, one.task_id) for one in acquires],
        "held": [number for number in range(QUICK_LOCKS) if not stage.is_free(f"{stage.notes.url}-{number}")],
    }


# --- clearing and marking ---------------------------------------------------------------------------------------------

CLEARED = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("publish", lock=LOCK, ttl="5m", on_stale_lease="ON_STALE"):
        @task
        def build():
            work("build")

        @task
        def sign():
            work("sign")
            if not os.path.exists(SIGN):
                raise RuntimeError("as planned")

        build() >> sign()
"""


def cleared(stage: Stage) -> dict[str, Any]:
    """Clear the failed task alone, then it with what Airflow adds, then all from the acquire on."""
    airflow = stage.airflow
    run = airflow.trigger(stage.put(CLEARED.replace("ON_STALE", "fail")))
    first = stage.ended(run)
    was_free = stage.is_free()
    only_failed = airflow.clear(run, only_failed=True)
    second = stage.ended(run)
    said, count = stage.said(run, "publish.sign"), len(stage.notes.stays())
    stage.file.touch()
    one_task = airflow.clear(run, ["publish.sign"])
    third = stage.ended(run)
    if airflow.version.name == NEWEST:
        airflow.clear(run, ["publish.lock_acquire"], downstream=True)
    return {
        "was_free": was_free,
        "states": [first, second, third, stage.ended(run)],
        "only_failed": only_failed,
        "one_task": one_task,
        "said": said,
        "count": count,
        "stays": stage.notes.stays(),
        "free": stage.is_free(),
    }


def reacquired(stage: Stage) -> dict[str, Any]:
    """Clear the failed task alone where it may have a lease of its own."""
    run = stage.airflow.trigger(stage.put(CLEARED.replace("ON_STALE", "reacquire")))
    first = stage.ended(run)
    stage.file.touch()
    stage.airflow.clear(run, only_failed=True)
    return {"states": [first, stage.ended(run)], "stays": stage.notes.stays(), "free": stage.is_free()}


GIVEN_UP = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("publish", lock=LOCK, ttl="TTL"):
        @task
        def build():
            work("build", 600)

        build()
"""


def clean_up_abandoned(stage: Stage) -> dict[str, Any]:
    """Mark a run failed while a body works and the keeper waits."""
    # where it may be left to expire, that is waited for
    ttl = "30s" if stage.airflow.version.name == "2.10" else "5m"
    run = stage.airflow.trigger(stage.put(GIVEN_UP.replace("TTL", ttl)))
    stage.until(stage.notes.stays, "the body did not enter")
    stage.until(lambda: stage.airflow.task(run, "publish.lock_keep").state == "deferred", "the keeper does not wait")
    stage.airflow.mark_run(run, "failed")
    stage.until(lambda: (held := stage.lock().inspect()) is None or held.is_expired, "the lock is held on")
    # the lock is free a moment before the release has ended
    going = {"scheduled", "queued", "running"}
    stage.until(lambda: stage.airflow.task(run, "publish.lock_release").state not in going, "the release does not end")
    return {
        "ended": stage.ended(run),
        "keep": stage.airflow.task(run, "publish.lock_keep").state,
        "release": stage.airflow.task(run, "publish.lock_release").state,
        "said": stage.said(run, "publish.lock_release"),
    }


UNRELEASED = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("publish", lock=LOCK, ttl=30):
        @task
        def build():
            note("enter", name="build", token=0)
            while not os.path.exists(SIGN):
                time.sleep(0.2)

        build()
"""


def unreleased(stage: Stage) -> dict[str, Any]:
    """The release fails for good, here because somebody marks it so, and nobody is left to give the lock back."""
    run = stage.airflow.trigger(stage.put(UNRELEASED))
    stage.until(stage.notes.stays, "the body did not enter")
    stage.until(lambda: stage.airflow.task(run, "publish.lock_keep").state == "deferred", "the keeper does not wait")
    stage.airflow.mark(run, "publish.lock_release", "failed")
    stage.file.touch()
    ended = stage.ended(run)
    stage.until(lambda: (held := stage.lock().inspect()) is None or held.is_expired, "the lock is held on")
    return {"ended": ended, "said": stage.said(run, "publish.lock_keep")}


# --- many tasks of one group ------------------------------------------------------------------------------------------

MAPPED = """
# Airflow fails what it resumes soon after it deferred, and most of all when it is busy
AGAIN = dict(retries=20, retry_delay=timedelta(seconds=1))

class Defers(BaseOperator):
    def execute(self, context):
        work("defers")
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=1)), method_name="resumed")
    def resumed(self, context, event):
        work("resumed")

with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("publish", lock=LOCK, ttl="5m"):
        @task
        def one(number):
            work(f"one{number}", 1.0)

        one.expand(number=list(range(50)))
        with LockedTaskGroup("inner", lock=LOCK + "-inner", ttl="5m"):
            Defers(task_id="defers", **AGAIN)

            @task.sensor(mode="reschedule", poke_interval=2, **AGAIN)
            def looks(ti=None):
                work("looks")
                return len(STAYS()) > 3

            looks()
"""

BUCKET = "gs://bucket/locks#mapped"


def mapped(stage: Stage) -> dict[str, Any]:
    """Fifty tasks of one group on a store that takes one change of an object a second."""
    run = stage.airflow.trigger(stage.put(MAPPED, lock=BUCKET))
    return {
        "ended": stage.ended(run),
        "tasks": stage.airflow.tasks(run),
        "stays": stage.notes.stays(),
    }


# --- the tests --------------------------------------------------------------------------------------------------------

EVERYWHERE = (unbegun, marked, crowd, cleared, slotless, clean_up_abandoned, retried, granted_twice)
NEWEST_ONLY = (unreleased, quick, reacquired, mapped)


def played(airflow: Airflow) -> tuple[Callable[[Stage], Any], ...]:
    """Return the scenes that are played on an Airflow, and what they need there."""
    for pool, slots in (("narrow", 1), ("taken", 1), ("few", 4)):
        airflow.pool(pool, slots)
    return EVERYWHERE + (NEWEST_ONLY if airflow.version.name == NEWEST else ())


def test_two_dags_never_overlap_and_their_tokens_increase(scenes: Scenes) -> None:
    seen = scenes.seen(crowd)
    assert set(seen["ended"]) == {"success"}
    stays = seen["notes"].stays()
    assert len(stays) == 2 * len(seen["ended"])
    assert seen["notes"].overlaps() == []
    assert seen["notes"].tokens_increase()
    assert len({stay.token for stay in stays}) == len(seen["ended"])
    assert seen["free"]


@pytest.mark.usefixtures("newest")
def test_more_runs_wait_than_there_are_slots_and_another_runs(airflow: Airflow, scenes: Scenes) -> None:
    seen = scenes.seen(crowd)
    assert seen["passed"] == "success"
    assert seen["waiting"] == ["deferred"] * len(seen["waiting"])
    assert len(seen["waiting"]) > airflow.parallelism


def test_a_retry_later_than_the_ttl_is_under_the_same_lease(scenes: Scenes) -> None:
    seen = scenes.seen(retried)
    assert seen["ended"] == "success"
    first, second = seen["stays"]
    assert second.began - first.ended > 60
    assert first.token == second.token < seen["other"]
    assert seen["free"]


def test_a_retry_takes_over_the_grant_of_its_failed_try(
    scenes: Scenes,
) -> None:
    seen = scenes.seen(granted_twice)
    assert seen["ended"] == "success"
    assert seen["last"] == 2
    first, second = seen["said"]
    assert "the triggerer waits" in first
    assert "the triggerer waits" not in second
    # the second try never came to the triggerer
    [before] = seen["granted"]
    [token] = re.findall(r"acquired 'section' with token (\d+)", second)
    assert int(token) >= before
    assert seen["free"]


def test_a_lease_that_ended_before_a_slot_was_free_is_reacquired(
    scenes: Scenes,
) -> None:
    seen = scenes.seen(slotless)
    assert (seen["ended"], seen["blocker"]) == ("success", "success")
    assert "ended before a worker slot was free; acquiring again" in seen["said"]
    [stay] = seen["stays"]
    assert stay.token > seen["granted"].token
    assert seen["free"]


def test_a_grant_is_released_if_its_task_fails_before_the_body(
    scenes: Scenes,
) -> None:
    seen = scenes.seen(unbegun)
    assert (seen["ended"], seen["blocker"]) == ("failed", "success")
    assert seen["took"] < 300  # of half an hour
    assert seen["stays"] == []
    assert seen["shown"] == "@task (locked)"


def test_a_task_marked_failed_during_its_grant_releases_it(scenes: Scenes) -> None:
    seen = scenes.seen(marked)
    # on a busy machine Airflow may have killed them before they were granted anything
    print("said so:", ["this task was marked failed while it was acquiring its lock" in said for said in seen["said"]])
    assert seen["free"] == [True, True]
    assert (seen["ended"], seen["stays"]) == ("failed", [])


@pytest.mark.usefixtures("newest")
def test_many_quick_grants_with_few_slots_leave_no_lock_held(scenes: Scenes) -> None:
    seen = scenes.seen(quick)
    assert seen["ended"] == "success"
    print("tries of each acquire:", seen["tries"])
    assert len(seen["tries"]) == 24
    # who finds the lock free does not defer, and so cannot be failed for it
    assert QUICK_LOCKS <= seen["deferred"].count(False) < 24
    # what a try was granted, its retry takes over at once, and so is not failed again
    assert max(seen["tries"]) <= 2
    assert seen["held"] == []


def test_clearing_after_the_release_reacquires_or_fails_clearly(airflow: Airflow, scenes: Scenes) -> None:
    seen = scenes.seen(cleared)
    assert seen["states"] == ["failed", "failed", "success", "success"]
    assert seen["was_free"]
    assert seen["free"]
    # only what failed: the acquire is not cleared, and the task says what to do
    assert seen["only_failed"] == ["publish.sign"]
    assert "clear the task that acquires it" in seen["said"]
    assert seen["count"] == 2
    # one task: Airflow adds acquire and release
    assert {"publish.lock_acquire", "publish.lock_release", "publish.sign"} <= set(seen["one_task"])
    names = [stay.name for stay in seen["stays"]]
    tokens = [stay.token for stay in seen["stays"]]
    again = ["build", "sign"] if airflow.version.name == NEWEST else []
    assert names == ["build", "sign", "sign", *again]
    assert tokens[0] == tokens[1] < tokens[2]
    assert all(tokens[2] < token for token in tokens[3:])


@pytest.mark.usefixtures("newest")
def test_a_failed_task_that_is_cleared_alone_may_reacquire(scenes: Scenes) -> None:
    seen = scenes.seen(reacquired)
    assert seen["states"] == ["failed", "success"]
    build, sign, again = seen["stays"]
    assert build.token == sign.token < again.token
    assert seen["free"]


def test_a_run_marked_failed_ends_failed_and_frees_the_lock(airflow: Airflow, scenes: Scenes) -> None:
    seen = scenes.seen(clean_up_abandoned)
    assert (seen["ended"], seen["keep"]) == ("failed", "failed")
    # 2.10 does not always run a teardown in a run that was marked failed: then the lock is left to expire
    if airflow.version.name != "2.10" or seen["release"] is not None:
        assert seen["release"] == "success"
        assert "released 'section', held by " in seen["said"]


@pytest.mark.usefixtures("newest")
def test_a_lease_whose_release_failed_for_good_is_kept_no_longer(scenes: Scenes) -> None:
    seen = scenes.seen(unreleased)
    # the work is done; that a teardown failed is not a failure of the run to Airflow
    assert seen["ended"] == "success"
    assert "publish.lock_release is failed, so the lease is not released" in seen["said"]


@pytest.mark.usefixtures("newest")
def test_fifty_tasks_of_a_group_share_a_lease_with_slow_writes(gcs: GcsServer, scenes: Scenes) -> None:
    seen = scenes.seen(mapped)
    assert {one.state for one in seen["tasks"]} == {"success"}
    assert seen["ended"] == "success"
    ones = [stay for stay in seen["stays"] if stay.name.startswith("one")]
    assert len({stay.name for stay in ones}) == 50
    assert len({stay.token for stay in ones}) == 1
    refused = [one for one in gcs.requests.all() if one.status == 429 and one.name.startswith("locks")]
    print("refused as too fast:", len(refused))
    assert refused
    assert lockstead.Lock(BUCKET).inspect() is None


# --- what the UI is told ----------------------------------------------------------------------------------------------

LINK = """
import os
from types import SimpleNamespace

for site in ("https://host/airflow/", "https://host", "/"):
    os.environ["AIRFLOW__API__BASE_URL"] = os.environ["AIRFLOW__WEBSERVER__BASE_URL"] = site
    from airflow_lockstead.links import HolderLink
    key = SimpleNamespace(dag_id="d", run_id="r", task_id="g.lock_release", map_index=-1)
    print("LINK", HolderLink().get_link(SimpleNamespace(acquire_id="g.lock_acquire"), ti_key=key))
"""


def test_the_holder_link_is_below_airflows_base_url(airflow: Airflow):
    said = [line.split()[1] for line in airflow.python_of("-c", LINK).splitlines() if line.startswith("LINK")]
    assert said[0] == f"/airflow{said[1]}"
    assert said[1] == said[2]
    assert said[1].startswith("/dags/d/")
