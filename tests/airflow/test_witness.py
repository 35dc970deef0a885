"""Who is dead on this machine is not waited for; who may be alive is."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import lockstead
from airflow_lockstead.witness import LABEL, MARK, Process, marks_of, started_by, wait_for
from tests.runtime.faulty import until

BODY = """
import os, subprocess, sys, time
from pathlib import Path
from airflow_lockstead.witness import MARK, Process
os.environ[MARK] = "around:" + sys.argv[1]
child = subprocess.Popen(["setsid", "sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
# setsid is to have become sleep: who looks at it meanwhile sees neither
while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\\n" or not Path(f"/proc/{child.pid}/environ").read_bytes():
    time.sleep(0.01)
print(Process.here(sys.argv[1]), child.pid, flush=True)
sys.stdin.read()
"""

EXECS = 'exec /bin/sh -c "$0" "$0"'
"""A script that becomes itself for ever: a twentieth of its time it is amid an exec, and shows no environment."""

LOG = logging.getLogger(__name__)


class Body:
    """A process that works, with one that it started and that has left its session."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BODY, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        said, child = self.process.stdout.readline().split()
        named = Process.read(said)
        assert named is not None
        self.named, self.child = named, psutil.Process(int(child))

    def kill(self) -> None:
        """End the body at once, and not what it started."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def body(request: pytest.FixtureRequest) -> Iterator[Body]:
    made = Body(request.node.name)
    with made.process:
        yield made
        made.process.kill()
    with suppress(psutil.NoSuchProcess):
        made.child.kill()


def is_over(one: psutil.Process) -> bool:
    return not one.is_running() or one.status() == psutil.STATUS_ZOMBIE


def test_who_runs_is_not_dead_and_who_was_killed_is_with_all_that_it_started(body: Body) -> None:
    assert not body.named.is_dead()
    assert not is_over(body.child)
    body.kill()
    assert body.named.is_dead()
    until(lambda: is_over(body.child))


def test_a_body_that_waits_to_be_reaped_is_dead(body: Body) -> None:
    body.process.send_signal(signal.SIGKILL)
    until(body.named.is_dead)
    assert psutil.Process(body.process.pid).status() == psutil.STATUS_ZOMBIE


def test_a_number_that_was_given_anew_is_not_the_process(body: Body) -> None:
    assert replace(body.named, start=str(int(body.named.start) - 1)).is_dead()
    assert body.process.poll() is None


def test_a_process_amid_an_exec_is_not_overlooked() -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(["/bin/sh", "-c", EXECS, EXECS], env={**os.environ, MARK: f"around:{mark}"}) as running:
        try:
            until(lambda: started_by(mark))
            seen = [marks_of(psutil.Process(running.pid)) for _ in range(500)]
            found = [{one.pid for one in started_by(mark)} for _ in range(20)]
        finally:
            running.kill()
    assert seen == [["around", mark]] * 500
    assert found == [{running.pid}] * 20


def test_a_process_that_was_given_no_environment_is_nobodys() -> None:
    with subprocess.Popen(["/bin/sleep", "600"], env={}) as running:
        try:
            until(lambda: Path(f"/proc/{running.pid}/comm").read_text() == "sleep\n")
            assert marks_of(psutil.Process(running.pid)) == []
        finally:
            running.kill()


@pytest.mark.parametrize("elsewhere", [{"boot": "another"}, {"namespace": "1"}])
def test_nothing_is_said_of_another_machine_or_container(body: Body, elsewhere: dict[str, str]) -> None:
    body.kill()
    assert not replace(body.named, **elsewhere).is_dead()
    assert not is_over(body.child)


def test_what_a_process_is_called_is_read_back_and_anything_else_is_nobody() -> None:
    here = Process.here("a-body")
    assert here is not None
    assert Process.read(str(here)) == here
    assert (here.pid, here.user, here.body) == (os.getpid(), os.getuid(), "a-body")
    for text in ("", "a/b", "a/b/c/d/e/f", "/".join("1234567")):
        assert Process.read(text) is None


def test_a_wait_for_members_ends_with_the_death_of_the_last_of_them(body: Body, tmp_path: Path) -> None:
    lock = lockstead.Lock(f"sqlite:///{tmp_path}/locks.db#apt", ttl=600, labels={LABEL: str(body.named)})
    ticket = str(lock.acquire().detach())
    member = lock.attach(ticket)  # as if the body had registered
    assert not wait_for(lock, ticket, whose=lambda _owner: True, limit=0.1, log=LOG)
    body.kill()
    assert wait_for(lock, ticket, whose=lambda owner: owner == "another", limit=0.0, log=LOG)
    assert lock.members(ticket)
    assert wait_for(lock, ticket, whose=lambda _owner: True, limit=60.0, log=LOG)
    assert lock.members(ticket) == []
    member.release()
    assert MARK not in os.environ
