"""The watchdog ends what a body started, and nothing else; no Airflow in it. With a lease: test_body.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import psutil

from airflow_lockstead.watchdog import MARK, Limits, Watchdog

LIMITS = Limits(terms=0.5, grace=5.0)
"""A busy machine is not to take a body that ends for one that does not."""

QUICK = Limits(terms=0.5, grace=1.0)


class Place:
    """Where a watchdog speaks, kills and leaves, in place of a task's process."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.kills = 0
        self.left: list[int] = []

    def watchdog(self, limits: Limits = LIMITS) -> Watchdog:
        return Watchdog(say=self.said.append, on_kill=self.kill, parent=None, limits=limits, leave=self.left.append)

    def kill(self) -> None:
        self.kills += 1


def sleeper() -> psutil.Popen:
    return psutil.Popen(["sleep", "600"])


def ends(process: psutil.Process, seconds: float = 20.0) -> bool:
    """Return whether a process ends; one that only waits to be reaped has."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                process.wait(0.1)
        except psutil.NoSuchProcess:
            return True
        except psutil.TimeoutExpired:
            return True
        time.sleep(0.02)
    return False


def test_nothing_happens_to_a_body_that_ends_by_itself():
    place = Place()
    with place.watchdog():
        mark = os.environ[MARK]
        child = sleeper()
    try:
        assert mark
        assert MARK not in os.environ
        assert child.is_running()
        assert (place.said, place.kills, place.left) == ([], 0, [])
    finally:
        child.kill()
        child.wait()


def test_only_processes_that_the_body_started_are_ended():
    place, before = Place(), sleeper()
    try:
        with place.watchdog() as watchdog:
            child = sleeper()
            watchdog.lost("a test")
            assert ends(child)
        assert before.is_running()
        assert before.status() != psutil.STATUS_ZOMBIE
        assert place.said == ["stopping this task: a test"]
        assert place.kills == 1
        assert place.left == []
    finally:
        before.kill()
        before.wait()


def test_a_descendant_whose_parent_has_gone_is_found_by_its_mark():
    place = Place()
    code = (
        "import subprocess; null = subprocess.DEVNULL\n"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=null).pid)"
    )
    with place.watchdog() as watchdog:
        said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        orphan = psutil.Process(int(said.stdout))
        watchdog.lost("a test")
    assert ends(orphan, 1.0)


def test_on_kill_is_called_if_the_body_ended_before_the_wake_up():
    place = Place()
    watchdog = place.watchdog()
    watchdog._wake.wait = lambda _seconds: watchdog._over.wait()  # a busy machine, at its busiest
    with watchdog:
        watchdog.lost("a test")
    assert place.kills == 1
    assert place.said == ["stopping this task: a test"]


def test_a_late_loss_ends_the_bodys_processes_without_on_kill():
    place = Place()
    with place.watchdog() as watchdog:
        child = sleeper()
        watchdog._over.set()  # the body has returned; the check after it finds the loss
        watchdog.lost("a test")
    assert ends(child, 1.0)
    assert place.kills == 0


def test_nested_watchdogs_pass_both_tags_on_to_child_processes():
    outer, inner = Place(), Place()
    with outer.watchdog() as around:
        mark = os.environ[MARK]
        with inner.watchdog():
            assert os.environ[MARK].startswith(f"{mark}:")
            child = sleeper()
        assert os.environ[MARK] == mark
        around.lost("a test")
        assert ends(child)


def test_the_process_is_left_only_after_the_grace():
    place = Place()
    with place.watchdog(QUICK) as watchdog:
        began_at = time.monotonic()
        watchdog.lost("a test")
        while not place.left:
            assert time.monotonic() < began_at + 20
            time.sleep(0.01)
        assert time.monotonic() - began_at >= QUICK.grace * 0.9
    assert place.left == [75]


def test_a_gone_parent_ends_the_body_even_if_on_kill_fails():
    place = Place()
    over = threading.Event()
    watchdog = Watchdog(
        say=place.said.append,
        on_kill=lambda: 1 / 0,
        parent=1 if os.getppid() != 1 else 2,  # not our parent: as if ours had died and another had taken us over
        limits=QUICK,
        leave=lambda code: (place.left.append(code), over.set()),
    )
    with watchdog:
        child = sleeper()
        assert over.wait(20)
    assert ends(child, 1.0)
    assert place.left == [75]
    assert any("is gone" in line for line in place.said)
    assert any("on_kill failed: ZeroDivisionError" in line for line in place.said)
