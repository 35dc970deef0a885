"""SIGKILL of a run worker or of a step: what it had started ends at once, and nobody else enters before."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.program import program
from tests.dagster.runs import events_of, told_by
from tests.dagster.taking import LIMIT, Place, until
from tests.servers.marked import is_alive


@pytest.fixture(autouse=True)
def _long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that outlives what is waited for here: only then is it seen that nobody waits for its end."""
    monkeypatch.setenv("LOCKSTEAD_TEST_TTL", f"{4 * LIMIT}s")


def pids(place: Place, name: str) -> list[int]:
    """Return the processes whose bodies came to a point."""
    return [int(line) for line in (place.folder / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("op", "where", "settings"),
    [
        ("shells", "here", ""),
        ("shells", "apart", ""),
        ("shells", "apart", "forked"),
        ("deaf", "apart", ""),
        ("guarded_shells", "here", "plain"),
        ("guarded_shells", "here", ""),
        ("guarded_shells", "apart", ""),
        ("guarded_shells", "apart", "plain"),
    ],
)
def test_a_killed_run_workers_processes_end_before_the_lease(
    place: Place, home: Path, op: str, where: str, settings: str
) -> None:
    with program(place, home, "one", op, where, settings) as one:
        until(lambda: place.has("in"), "the body runs")
        [step] = pids(place, "in")
        until(lambda: len(place.sleepers()) == 2, "its processes run")
        one.process.kill()
        until(lambda: not place.sleepers() and not is_alive(step), "they are gone")
        if settings != "plain" or where == "here":
            held = place.lock().inspect()
            assert held is not None
            assert not held.is_expired
        else:
            until(lambda: place.lock().inspect() is None, "the step gave the lock back")


@pytest.mark.parametrize("forked", ["", "forked "])
def test_what_a_killed_step_had_started_ends_at_once(place: Place, home: Path, forked: str) -> None:
    with program(place, home, "one", "guarded_shells", "apart", f"{forked}plain") as one:
        until(lambda: place.has("in"), "the body runs")
        [step] = pids(place, "in")
        until(lambda: len(place.sleepers()) == 2, "its processes run")
        os.kill(step, signal.SIGKILL)
        until(lambda: not place.sleepers(), "they are gone")
        held = place.lock().inspect()
        assert held is not None
        assert not held.is_expired
        assert one.ended() == 1


def test_a_retry_of_a_killed_step_is_a_new_owner_after_the_ttl(
    place: Place, home: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEAD_TEST_TTL", "6s")
    with program(place, home, "one", "says_who", "apart", "plain retries") as one:
        until(lambda: place.has("in"), "the body runs")
        os.kill(pids(place, "in")[0], signal.SIGKILL)
        killed_at = time.time()
        assert one.ended() == 0, one.log()
    first, second = [line.split() for line in (place.folder / "seen").read_text().splitlines()]
    run_id = one.run(instance).run_id
    owners = [holder.rpartition("/")[0] for _at, holder, _token, _before in (first, second)]
    assert owners == [f"dagster:{run_id}:says_who:0", f"dagster:{run_id}:says_who:1"]
    assert int(second[2]) > int(first[2])
    assert second[3] == "EXPIRED"
    # it was renewed a third of the ttl before, at the earliest
    assert float(second[0]) - killed_at > 2.0


@pytest.mark.parametrize("forked", ["", "forked "])
def test_a_waiting_step_with_a_killed_run_worker_gets_no_lock(
    place: Place, home: Path, instance: dg.DagsterInstance, forked: str
) -> None:
    with place.lock().hold(), program(place, home, "one", "guarded_shells", "apart", f"{forked}plain") as one:
        run = one.run(instance)
        until(lambda: told_by(instance, run, "waiting"), "the step waits")
        started = [event for event in events_of(instance, run) if event.event_type_value == "STEP_WORKER_STARTED"]
        step = int(started[0].engine_event_data.metadata["pid"].value)
        assert is_alive(step)
        one.process.kill()
        until(lambda: not is_alive(step), "the step ends")
    assert not place.has("in")
    assert place.lock().inspect() is None


@pytest.mark.parametrize("op", ["shells", "guarded_shells"])
def test_no_one_enters_while_an_orphan_of_a_killed_worker_lives(
    place: Place, home: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    monkeypatch.setenv("LOCKSTEAD_TEST_TTL", "3s")
    with program(place, home, "one", op, "apart") as one:
        until(lambda: place.has("in"), "the body runs")
        [orphan] = pids(place, "in")
        first = place.sleepers()
        one.process.kill()
        with program(place, home, "two", op, "apart"):
            until(lambda: place.count("in") == 2, "the second is in")
            assert not is_alive(orphan)
            assert not any(map(is_alive, first))


def processes_beside() -> Iterator[int]:
    """Return the processes that stand beside a worker."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
        except OSError:
            continue
        if any(word.endswith(b"/lockstead/supervise/reaper.py") for word in words):
            yield int(folder.name)


def test_a_run_that_ends_well_leaves_no_process_behind(place: Place, home: Path) -> None:
    before = set(processes_beside())
    with program(place, home, "one", "looks", "apart", "guarded") as one:
        assert one.ended() == 0, one.log()
        own = str(one.process.pid)
        until(lambda: not any(_is_of(pid, own) for pid in set(processes_beside()) - before), "nobody waits beside")


def _is_of(pid: int, worker: str) -> bool:
    try:
        return worker in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
