"""Whoever only looks at a lock on a real Airflow, and who refuses one: sensor, notifier, `on_unclean="fail"`.

Played beside the scenes of `test_promises`, on the newest Airflow: nothing of it differs elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import lockstead
from tests.airflow.conftest import NEWEST
from tests.airflow.scenes import Scenes, Stage
from tests.servers.airflow import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900), pytest.mark.usefixtures("newest")]


# --- waiting until it is free -----------------------------------------------------------------------------------------

SENSED = """
AGAIN = dict(retry_delay=timedelta(seconds=1))
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    LockSensor(task_id="deferred", lock=LOCK, **AGAIN)
    LockSensor(task_id="rescheduled", lock=LOCK, deferrable=False, mode="reschedule", poke_interval=2, **AGAIN)
    LockSensor(task_id="gives_up", lock=LOCK, timeout=3, **AGAIN)
    LockSensor(task_id="gives_in", lock=LOCK, timeout=3, soft_fail=True, **AGAIN)
    LockSensor(task_id="at_once", lock=LOCK + "-free", **AGAIN)
"""
WAITING = {"deferred": "deferred", "rescheduled": "up_for_reschedule"}
ENDED_EARLY = {"gives_up": "failed", "gives_in": "skipped", "at_once": "success"}


def sensed(stage: Stage) -> dict[str, Any]:
    """Sensors of each kind look at a lock that the test holds, and then gives back."""

    def states() -> dict[str, str | None]:
        return {one.task_id: one.state for one in stage.airflow.tasks(run)}

    with stage.lock().hold(timeout=30):
        run = stage.airflow.trigger(stage.put(SENSED))
        # the others have had their whole life by then, and those that wait have looked at it many times
        over = {"success", "failed", "skipped"}
        stage.until(
            lambda: all(states()[task_id] in over for task_id in ENDED_EARLY), "not all that give up have ended"
        )
        for task_id, state in WAITING.items():
            stage.until(
                lambda task_id=task_id, state=state: states()[task_id] in {state, *over}, f"{task_id} does not wait"
            )
        early = {task_id: state for task_id, state in states().items() if task_id in WAITING and state in over}

    def have_ended() -> bool:
        if (held := stage.lock().inspect()) is not None:
            takers.append(held.owner)
        return all(states()[task_id] in ("success", "failed") for task_id in WAITING)

    takers: list[str] = []
    stage.until(have_ended, "those that wait do not end")
    return {
        "early": early,
        "states": states(),
        "takers": takers,
        "ended": stage.ended(run),
        "said": {task_id: stage.said(run, task_id) for task_id in states()},
    }


def test_a_sensor_waits_while_the_lock_is_held_and_then_succeeds(scenes: Scenes) -> None:
    seen = scenes.seen(sensed)
    assert seen["early"] == {}
    assert seen["states"] == ENDED_EARLY | dict.fromkeys(WAITING, "success")
    for task_id in WAITING:
        assert "waiting for 'section', held by 'the test'" in seen["said"][task_id]
        assert "being in the way" in seen["said"][task_id]
    assert "'section-free' is free" in seen["said"]["at_once"]


def test_a_sensor_never_takes_the_lock(scenes: Scenes) -> None:
    seen = scenes.seen(sensed)
    assert seen["takers"] == []
    assert [said for said in seen["said"].values() if "acquired" in said or "released" in said] == []


def test_a_sensor_that_times_out_names_the_holder_and_is_final(scenes: Scenes) -> None:
    seen = scenes.seen(sensed)
    assert seen["ended"] == "failed"
    for task_id in ("gives_up", "gives_in"):
        assert "still held after 3 s: 'section' is held by 'the test'" in seen["said"][task_id]


# --- being told -------------------------------------------------------------------------------------------------------

NOTIFIED = """
def tell(text):
    note("told", text=text)

with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    @task(on_failure_callback=LockNotifier(lock=LOCK))
    def breaks():
        raise RuntimeError("as planned")

    @task(on_failure_callback=LockNotifier(lock="{{ params.lock }}", tell=tell), params={"lock": LOCK})
    def tells():
        raise RuntimeError("as planned")

    TEXT = "{{ ti.task_id }}: {{ lock_state }} {}"
    @task(on_success_callback=LockNotifier(lock=LOCK + "-free", message=TEXT, tell=tell))
    def works():
        pass

    @task(on_failure_callback=LockNotifier(lock="sqlite:////nowhere/locks.db#apt", tell=tell))
    def blind():
        raise RuntimeError("as planned")

    breaks(), tells(), works(), blind()
"""
HOLDS = "'section' is held by 'the test' since "


def notified(stage: Stage) -> dict[str, Any]:
    """Tasks that fail or succeed while the test holds the lock."""
    with stage.lock().hold(timeout=30):
        run = stage.airflow.trigger(stage.put(NOTIFIED), "the-run")
        ended = stage.ended(run)
        # a callback runs after the state is known
        stage.until(lambda: len(stage.notes.lines("told")) >= 3, "not all were told")
        stage.until(lambda: HOLDS in stage.said(run, "breaks"), f"nobody was told: {stage.said(run, 'breaks')}")
    said = {task_id: stage.said(run, task_id) for task_id in ("breaks", "works")}
    return {"ended": ended, "told": sorted(one["text"] for one in stage.notes.lines("told")), "said": said}


def test_a_notifier_says_who_holds_the_lock_when_a_task_ends(scenes: Scenes) -> None:
    seen = scenes.seen(notified)
    blind, tells, works = seen["told"]
    assert tells.startswith(f"notified.tells of the-run: {HOLDS}")
    assert "(purpose: being in the way), token " in tells
    assert works == "works: 'section-free' is free {}"
    assert blind.startswith("notified.blind of the-run: the holder of the lock is unknown: ")
    assert "\n" not in "".join(seen["told"])
    assert f"notified.breaks of the-run: {HOLDS}" in seen["said"]["breaks"]
    assert "Traceback" not in seen["said"]["works"]


# --- refusing what is unclean -----------------------------------------------------------------------------------------

REFUSED = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    for name in ("dead", "dies", "warned", "late"):
        where = {"lock": f"{LOCK}-{name}", "on_unclean": "warn" if name == "warned" else "fail"}
        if name == "late":
            where = {"key": "{{ 'late' }}", "lockstead_conn_id": "elsewhere", "timeout": 5}
        with LockedTaskGroup(name, ttl=120, keeper=False, **where):
            @task(task_id="body")
            def body(name):
                work(name)

            body(name)
"""


def unclean(name: str) -> str:
    """Return the pattern by which everybody is told of who died on the lock of a group."""
    return f"the lease of 'who died' on '[^']*-{name}' ended EXPIRED: "


NEXT = """
with DAG(DAG_ID, schedule=None, start_date=datetime(2024, 1, 1)):
    with LockedTaskGroup("next", ttl=120, keeper=False, lock=f"{LOCK}-dead", on_unclean="fail"):
        @task(task_id="body")
        def body():
            work("next")

        body()
"""


def refused(stage: Stage) -> dict[str, Any]:
    """Groups whose predecessors died, or live too long: what fails is cleared when all is repaired.

    One died before the run began, one while it was waited for; one is only warned of. The one that lives holds a lock
    of a connection.
    """

    def held_by_who_dies(name: str, ttl: float) -> lockstead.Lease:
        return lockstead.Lock(f"{stage.notes.url}-{name}", ttl=ttl, owner="who died").acquire(timeout=10)

    for name in ("dead", "warned"):
        held_by_who_dies(name, 5).detach()
    # this process keeps it, beside a dozen others who look at their scenes
    dies = held_by_who_dies("dies", 20)
    for name in ("dead", "warned"):
        dead = lockstead.Lock(f"{stage.notes.url}-{name}")
        stage.until(lambda dead=dead: (held := dead.inspect()) is not None and held.is_expired, "the dead one lives on")
    late = lockstead.Lock(f"sqlite:///{stage.airflow.home}/elsewhere.db#late", ttl=60, owner="who is slow")
    with late.hold(timeout=30):
        run = stage.airflow.trigger(stage.put(REFUSED))
        stage.until(lambda: stage.airflow.task(run, "dies.lock_acquire").state == "deferred", "it does not wait")
        dies.detach()
        first = stage.ended(run)
    states = {one.task_id: (one.state, one.try_number) for one in stage.airflow.tasks(run)}
    held = [name for name in ("dead", "dies") if not stage.is_free(f"{stage.notes.url}-{name}")]
    said = {name: stage.said(run, f"{name}.lock_acquire") for name in ("dead", "dies", "warned", "late")}
    entered = [stay.name for stay in stage.notes.stays()]
    # another DAG that asks for the same lock is told, too; and so, then, is the first, until somebody has repaired
    beside = stage.airflow.trigger(stage.put(NEXT, f"{stage.name}_next"))
    refused_too = (stage.ended(beside), stage.said(beside, "next.lock_acquire"))
    lockstead.Lock(f"{stage.notes.url}-dead").acquire(timeout=10).release()
    stage.airflow.clear(run, [f"{name}.lock_acquire" for name in ("dead", "dies", "late")], downstream=True)
    return {
        "ended": (first, stage.ended(run)),
        "states": states,
        "held": held,
        "said": said,
        "entered": entered,
        "refused_too": refused_too,
        "stays": stage.notes.stays(),
        "said_at_last": stage.said(run, "late.lock_acquire"),
        "free": late.inspect() is None,
    }


@pytest.mark.parametrize("name", ["dead", "dies"])
def test_on_unclean_fail_fails_in_one_line_and_holds_nothing(scenes: Scenes, name: str) -> None:
    seen = scenes.seen(refused)
    told = f"lockstead: {unclean(name)}repair what it left, then clear this task, or acquire and release "
    assert re.search(told, seen["said"][name])
    assert seen["held"] == []
    assert name not in seen["entered"]
    state, tries = seen["states"][f"{name}.lock_acquire"]
    assert state == "failed"
    assert tries <= 2  # 1; one more where the executor failed the first when it was resumed
    assert seen["states"][f"{name}.body"][0] == "upstream_failed"


def test_the_run_after_a_refusal_is_refused_with_the_same_reason(scenes: Scenes) -> None:
    ended, said = scenes.seen(refused)["refused_too"]
    assert ended == "failed"
    # of who died, and not of who was refused for it
    assert re.search(f"{unclean('dead')}repair what it left", said)


def test_a_group_refused_after_an_unclean_end_works_once_cleared(scenes: Scenes) -> None:
    seen = scenes.seen(refused)
    assert seen["ended"] == ("failed", "success")
    assert sorted(stay.name for stay in seen["stays"]) == ["dead", "dies", "late", "warned"]


def test_on_unclean_warn_logs_the_unclean_end_and_works(scenes: Scenes) -> None:
    seen = scenes.seen(refused)
    assert re.search(f"{unclean('warned')}what it left may need repair", seen["said"]["warned"])
    assert seen["states"]["warned.lock_acquire"][0] == "success"
    assert seen["entered"] == ["warned"]


def test_a_group_with_a_connections_key_waits_for_its_timeout(scenes: Scenes) -> None:
    seen = scenes.seen(refused)
    state, tries = seen["states"]["late.lock_acquire"]
    assert state == "failed"
    assert tries <= 2  # as above
    assert seen["states"]["late.body"][0] == "upstream_failed"
    assert "waiting for 'late', held by 'who is slow'" in seen["said"]["late"]
    assert "acquired 'late' with token " not in seen["said"]["late"]
    # once it is free, that very lock is taken and given back
    assert "acquired 'late' with token " in seen["said_at_last"]
    assert seen["free"]


def played(airflow: Airflow) -> tuple[Callable[[Stage], Any], ...]:
    """Return the scenes that are played on an Airflow."""
    return (sensed, notified, refused) if airflow.version.name == NEWEST else ()
