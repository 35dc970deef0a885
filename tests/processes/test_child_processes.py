"""What a body started is found and ended, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.servers.base import dies_with_us

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process started")

PRELUDE = """
import json, os, signal, subprocess, sys, threading, time
from lockstead.supervise.child_processes import ChildProcesses
from lockstead.supervise.tags import TAG_VARIABLE

FOR_EVER = "while :; do sleep 0.05; done"

def sh(script=FOR_EVER, **more):
    return subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.DEVNULL, **more)

def lives(process):
    pid = process if isinstance(process, int) else process.pid
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def left_alone(script):
    "Give a process whose parent is dead."
    read, write = os.pipe()
    subprocess.run(["/bin/sh", "-c", f"({script}) 3>&{write} >/dev/null &"], pass_fds=[write])
    return int(os.read(read, 20))

def forked():
    pid = os.fork()
    if pid == 0:
        while True:
            time.sleep(1)
    return pid

def say(*what):
    print(json.dumps(what))

started = []
"""


def said(script: str) -> list[object]:
    """Run a script, and give what it says."""
    done = subprocess.run(
        [*dies_with_us(), sys.executable, "-c", PRELUDE + script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: list[object] = json.loads(done.stdout)
    return said


def test_all_that_a_body_started_is_ended_and_nothing_older() -> None:
    script = """
before = sh()
with ChildProcesses() as child_processes:
    started = [sh(), sh("trap '' TERM; " + FOR_EVER), sh(start_new_session=True), forked()]
    started.append(left_alone("setsid sh -c 'echo $$ >&3; while :; do sleep 0.05; done'"))
    # neither mark nor parent: it comes back to us
    started.append(left_alone("exec env -i sh -c 'echo $$ >&3; while :; do sleep 0.05; done'"))
    stopped = sh()
    os.kill(stopped.pid, signal.SIGSTOP)
    started.append(stopped)
    ran = [lives(one) for one in started]
    left = child_processes.end(grace=0.5)
    ended = [lives(one) for one in started]
alive = lives(before)
before.kill()
say(ran, left, ended, alive)
"""
    assert said(script) == [[True] * 7, [], [False] * 7, True]


def test_sigterm_comes_first_and_the_grace_is_kept() -> None:
    script = """
with ChildProcesses() as child_processes:
    polite = sh("trap 'sleep 0.3; exit 7' TERM; echo ready >&2; " + FOR_EVER, stderr=subprocess.PIPE)
    polite.stderr.readline()
    child_processes.end(grace=20)
say(polite.wait())
"""
    assert said(script) == [7]


def test_what_is_started_while_all_is_ended_is_met_as_well() -> None:
    script = """
with ChildProcesses() as child_processes:
    breeds = sh("trap '' TERM; while :; do sh -c 'sleep 77.7 & sleep 77.7' & sleep 0.01; done")
    time.sleep(0.5)
    left = child_processes.end(grace=0.2)
    time.sleep(0.2)
    listed = subprocess.run(["ps", "--no-headers", "-eo", "ppid,args"], capture_output=True, text=True).stdout
say(left, sum(int(line.split()[0]) == os.getpid() and "77.7" in line for line in listed.splitlines()))
"""
    assert said(script) == [[], 0]


def test_after_the_body_its_mark_is_gone_and_its_children_stay() -> None:
    script = """
os.environ.pop(TAG_VARIABLE, None)
with ChildProcesses():
    with ChildProcesses() as inner:
        depth = os.environ[TAG_VARIABLE].count(":")
        mine = sh()
    after = os.environ[TAG_VARIABLE].count(":")
stays = lives(mine)
mine.kill()
say(depth, after, os.environ.get(TAG_VARIABLE), stays)
"""
    assert said(script) == [1, 0, None, True]


def test_an_inner_body_ends_its_own_and_an_outer_one_all() -> None:
    script = """
with ChildProcesses() as outer:
    first = sh()
    with ChildProcesses() as inner:
        second = sh()
        inner.end(grace=1)
        one = [lives(first), lives(second)]
    third = sh()
    outer.end(grace=1)
    say(one, [lives(first), lives(third)])
"""
    assert said(script) == [[True, False], [False, False]]


def test_nothing_grows_with_each_body() -> None:
    script = """
def counted():
    zombies = sum(1 for name in os.listdir("/proc") if name.isdigit() and _is_zombie(name))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), zombies, len(os.environ)

def _is_zombie(name):
    try:
        said = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
    except OSError:
        return False
    return said[0] == "Z" and said[1] == str(os.getpid())

def body():
    with ChildProcesses() as child_processes:
        child = sh()
        child_processes.end(grace=0.2)
        child.wait()

body()
before = counted()
for _ in range(5):
    body()
say(before == counted())
"""
    assert said(script) == [True]


def test_bodies_of_two_threads_end_in_any_order() -> None:
    script = """
os.environ.pop(TAG_VARIABLE, None)
first, second = ChildProcesses(), ChildProcesses()
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
one = os.environ[TAG_VARIABLE]
second.__exit__(None, None, None)
say(":" in one, os.environ.get(TAG_VARIABLE))
"""
    assert said(script) == [False, None]
