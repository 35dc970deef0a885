"""What a worker's bodies start ends with the worker, if that is killed, and nothing else does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lockstead.supervise import reaper
from lockstead.supervise.tags import TAG_VARIABLE, new_tag, tagged, tags_of
from tests.servers.base import dies_with_us
from tests.servers.marked import is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process started")

WORKER = """
import json, os, signal, subprocess, sys, time
from lockstead.supervise.reaper_client import REAPER
from lockstead.supervise.tags import TAG_VARIABLE, file_of, new_tag

def say(**what):
    print(json.dumps(what), flush=True)

def begin():
    body = new_tag()
    REAPER.begin(body)
    file_of(body)
    os.environ[TAG_VARIABLE] = body
    return body

def sh(script, **more):
    return subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.DEVNULL, **more).pid

def forked():
    pid = os.fork()
    if pid == 0:
        while True:
            time.sleep(1)
    return pid

def wait():
    say(ready=os.getpid())
    sys.stdin.read()

"""
FACTS = {"children", "written", "again"}
"""What a worker says that is not a process."""

FOR_EVER = "while :; do sleep 0.05; done"


class Worker:
    """A process that runs a script after `WORKER`; what it says is gathered until it is ready."""

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [*dies_with_us(), sys.executable, "-c", WORKER + script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said: dict[str, int] = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.update(json.loads(line))
            if "ready" in self.said:
                return
        raise AssertionError("the worker ended before it was ready")

    def __getitem__(self, name: str) -> int:
        return self.said[name]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def let_end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@contextmanager
def worker(script: str) -> Iterator[Worker]:
    """Run one, and leave nothing of it behind."""
    started = Worker(script)
    try:
        yield started
    finally:
        started.kill()
        assert started.process.stdin is not None
        assert started.process.stdout is not None
        with suppress(BrokenPipeError):
            started.process.stdin.close()
        started.process.stdout.close()
        for name, pid in started.said.items():
            if name not in FACTS:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def beside(pid: int) -> int | None:
    """Return the reaper process of a worker."""
    wanted = [reaper.__file__, str(pid)]
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            words = (folder / "cmdline").read_text().split("\0") if folder.name.isdigit() else []
            if words[4:6] == wanted or words[3:5] == wanted:
                return int(folder.name)
    return None


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_all_that_a_killed_worker_started_is_ended() -> None:
    script = f"""
begin()
say(plain=sh("{FOR_EVER}"), deaf=sh("trap '' TERM; {FOR_EVER}"), apart=sh("{FOR_EVER}", start_new_session=True))
say(stopped=sh("{FOR_EVER}"), forked=forked())
read, write = os.pipe()
# its parent is dead by now
leaves = "(setsid sh -c 'echo $$ >&3; {FOR_EVER}') 3>&%d >/dev/null &" % write
subprocess.run(["/bin/sh", "-c", leaves], pass_fds=[write])
say(orphan=int(os.read(read, 20)))
wait()
"""
    with worker(script) as one:
        os.kill(one["stopped"], signal.SIGSTOP)
        waits = beside(one["ready"])
        assert waits is not None
        pids = [one[name] for name in ("plain", "deaf", "apart", "stopped", "forked", "orphan")]
        assert all(map(is_alive, pids))
        one.kill()
        until(lambda: not any(map(is_alive, pids)))
        until(lambda: not is_alive(waits))


def test_leftovers_of_a_finished_body_survive_the_worker() -> None:
    with worker(f"body = begin(); say(left=sh('{FOR_EVER}')); REAPER.end(body); wait()") as one:
        waits = beside(one["ready"])
        assert waits is not None
        one.let_end()
        until(lambda: not is_alive(waits))
        assert is_alive(one["left"])


def test_what_an_ended_body_left_stays_when_the_worker_is_killed() -> None:
    script = (
        f"body = begin(); say(left=sh('{FOR_EVER}')); REAPER.end(body); begin(); say(mine=sh('{FOR_EVER}')); wait()"
    )
    with worker(script) as one:
        waits = beside(one["ready"])
        assert waits is not None
        one.kill()
        until(lambda: not is_alive(waits))
        assert not is_alive(one["mine"])
        assert is_alive(one["left"])


def test_nobody_without_the_mark_is_ended() -> None:
    script = f"""
say(before=sh("{FOR_EVER}"))
begin()
say(other=sh("{FOR_EVER}", env={{TAG_VARIABLE: new_tag()}}), bare=sh("{FOR_EVER}", env={{}}), mine=sh("{FOR_EVER}"))
wait()
"""
    with worker(script) as one:
        waits = beside(one["ready"])
        assert waits is not None
        one.kill()
        until(lambda: not is_alive(waits))
        assert [is_alive(one[name]) for name in ("before", "other", "bare", "mine")] == [True, True, True, False]


def test_a_surviving_fork_does_not_hide_the_end_of_the_worker() -> None:
    # forked before the body: no tag
    script = f"REAPER.begin('first'); say(forked=forked()); begin(); say(mine=sh('{FOR_EVER}')); wait()"
    with worker(script) as one:
        one.kill()
        until(lambda: not is_alive(one["mine"]))
        assert is_alive(one["forked"])


def test_the_reaper_inherits_nothing_and_is_not_a_child() -> None:
    script = """
kept = os.open("/dev/zero", os.O_RDONLY)
os.set_inheritable(kept, True)
begin()
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    say(children=0)
wait()
"""
    with worker(script) as one:
        waits = beside(one["ready"])
        assert waits is not None
        files = sorted(str(file.readlink()) for file in Path(f"/proc/{waits}/fd").iterdir())
        assert sorted(file.partition(":")[0] for file in files) == ["/dev/null", "/dev/null", "anon_inode", "pipe"]
        assert os.getsid(waits) != os.getsid(one["ready"])
        assert Path(f"/proc/{waits}/environ").read_bytes() == b""
        assert one["children"] == 0


def test_a_body_that_closes_every_file_it_finds_is_no_dead_one() -> None:
    script = f"""
begin()
say(mine=sh("{FOR_EVER}"))
os.closerange(3, 64)
others = [os.memfd_create("other") for _ in range(40)]
REAPER.begin("second")
say(written=sum(os.fstat(one).st_size for one in others))
wait()
"""
    with worker(script) as one:
        first = beside(one["ready"])
        assert first is not None
        time.sleep(0.3)  # long enough for who would take the pipe's end for the worker's
        assert is_alive(one["mine"])
        assert one["written"] == 0
        one.kill()
        until(lambda: not is_alive(one["mine"]))


def test_a_killed_reaper_is_replaced_with_the_next_body() -> None:
    script = f"""
begin()
say(mine=sh("{FOR_EVER}"))
say(ready=os.getpid())
sys.stdin.readline()
begin()
say(again=1)
sys.stdin.read()
"""
    with worker(script) as one:
        first = beside(one["ready"])
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: not is_alive(first))
        assert one.process.stdin is not None
        assert one.process.stdout is not None
        one.process.stdin.write("\n")
        one.process.stdin.flush()
        assert json.loads(one.process.stdout.readline()) == {"again": 1}
        assert beside(one["ready"]) not in (None, first)
        one.kill()
        until(lambda: not is_alive(one["mine"]))


def test_a_replaced_reaper_that_resumes_ends_nothing() -> None:
    script = f"""
body = begin()
say(left=sh("{FOR_EVER}"))
say(ready=os.getpid())
sys.stdin.readline()
for _ in range(4000):  # more than its pipe takes
    REAPER.begin(body)
REAPER.end(body)
say(again=1)
sys.stdin.read()
"""
    with worker(script) as one:
        first = beside(one["ready"])
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        assert one.process.stdin is not None
        assert one.process.stdout is not None
        one.process.stdin.write("\n")
        one.process.stdin.flush()
        assert json.loads(one.process.stdout.readline()) == {"again": 1}
        try:
            until(lambda: not is_alive(first))
        finally:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGCONT)
        one.let_end()
        time.sleep(0.5)
        assert is_alive(one["left"])


def test_the_resource_tracker_is_not_ended_before_its_processes() -> None:
    script = """
from multiprocessing import resource_tracker, shared_memory
begin()
memory = shared_memory.SharedMemory(create=True, size=8, name="lockstead%d" % os.getpid())
say(tracker=resource_tracker._resource_tracker._pid)
wait()
"""
    with worker(script) as one:
        name = Path(f"/dev/shm/lockstead{one['ready']}")
        assert name.exists()
        one.kill()
        until(lambda: not is_alive(one["tracker"]))
        assert not name.exists()


EXECS = 'exec /bin/sh -c "$0" "$0"'
"""A script that becomes itself forever: a twentieth of its time it is amid an exec, and shows no environment."""


def test_a_process_amid_an_exec_is_not_taken_for_a_stranger() -> None:
    tag = new_tag()
    with subprocess.Popen(
        ["/bin/sh", "-c", EXECS, EXECS], env={**os.environ, TAG_VARIABLE: f"around:{tag}"}
    ) as running:
        try:
            seen = [tags_of(running.pid) for _ in range(50_000)]
            until(lambda: running.pid in {pid for pid, _start in tagged(frozenset((tag,)))[0]})
        finally:
            running.kill()
    assert None in seen
    assert all(bodies in (None, ["around", tag]) for bodies in seen)


def test_a_process_that_was_given_no_environment_carries_nothing() -> None:
    with subprocess.Popen(["/bin/sh", "-c", FOR_EVER], env={}) as running:
        try:
            until(lambda: tags_of(running.pid) == [])
        finally:
            running.kill()
