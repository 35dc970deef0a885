"""Who is dead on this machine is not waited for; who may be alive is."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import lockstead
from airflow_lockstead import vouching
from airflow_lockstead.liveness import LABEL, MARK, Process, marks_of, started_by, wait_for_members
from tests.runtime.faulty import until

BODY = """
import os, subprocess, sys, time
from pathlib import Path
from airflow_lockstead.liveness import MARK, Process
os.environ[MARK] = "around:" + sys.argv[1]
child = subprocess.Popen(["setsid", "sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
# setsid is to have become sleep: who looks at it meanwhile sees neither
while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\\n" or not Path(f"/proc/{child.pid}/environ").read_bytes():
    time.sleep(0.01)
print(Process.here(sys.argv[1]).label, child.pid, flush=True)
sys.stdin.read()
"""

EXECS = 'exec /bin/sh -c "$0" "$0"'
"""A script that becomes itself forever: a twentieth of its time it is amid an exec, and shows no environment."""

LOG = logging.getLogger(__name__)


class Body:
    """A process that works, with one that it started and that has left its session."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BODY, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        said, child = self.process.stdout.readline().split()
        self.label, named = said, Process.read(said)
        assert named is not None
        self.named, self.child = named, psutil.Process(int(child))

    def kill(self) -> None:
        """End the body at once, and not what it started."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def body() -> Iterator[Body]:
    made = Body(uuid.uuid4().hex)
    with made.process:
        yield made
        made.process.kill()
    with suppress(psutil.NoSuchProcess):
        made.child.kill()


def is_over(one: psutil.Process) -> bool:
    return not one.is_running() or one.status() == psutil.STATUS_ZOMBIE


def test_a_running_body_is_alive_and_a_killed_one_is_dead(body: Body) -> None:
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


def label_of(body: str = "0" * 32) -> str:
    here = Process.here(body)
    assert here is not None
    assert here.label is not None
    return here.label


def test_a_process_label_is_parsed_and_a_malformed_one_is_not() -> None:
    body = uuid.uuid4().hex
    here = Process.here(body)
    assert here is not None
    assert Process.read(label_of(body)) == here
    assert (here.pid, here.user, here.body) == (os.getpid(), os.getuid(), body)
    for text in ("", "a/b", "a/b/c/d/e/f", "/".join("1234567"), "b/n/0/\N{SUPERSCRIPT TWO}/1/x", f"{label_of()}\n"):
        assert Process.read(text) is None


@given(st.integers(0, 6), st.text(max_size=40) | st.from_regex(r"\A[0-9a-f]{1,64}\Z"))
def test_a_label_of_which_a_word_was_changed_is_nobodys(place: int, word: str) -> None:
    words = label_of().split("/")
    assume(words[place] != word)
    words[place] = word
    assert Process.read("/".join(words)) is None


def test_a_forged_registration_kills_no_process(body: Body, tmp_path: Path) -> None:
    # 4194303 is dead, and what the store says of the body is known to whoever reads it
    boot, namespace, user, _, start, mark, signature = body.label.split("/")
    forged = f"{boot}/{namespace}/{user}/4194303/{start}/{mark}"
    for label in (forged, f"{forged}/{signature}", f"{forged}/{'0' * 64}"):
        lock = lockstead.Lock(f"sqlite:///{tmp_path}/locks.db#apt", ttl=600, labels={LABEL: label})
        ticket = str(lock.acquire().detach())
        member = lock.attach(ticket)
        assert not wait_for_members(lock, ticket, owner_filter=lambda _owner: True, limit=0.1, log=LOG)
        assert lock.members(ticket)
        member.release()
        lock.release(ticket)
    assert body.process.poll() is None
    assert not is_over(body.child)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_secret_readable_by_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    label = label_of()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Process.read(label) is None  # this folder has another secret, or none
    folder = vouching.folder_of(os.getuid())
    own = label_of()
    assert Process.read(own) is not None
    folder.chmod(mode)
    assert vouching.signature("text") is None
    assert Process.read(own) is None
    folder.chmod(0o700)
    (folder / vouching.NAME).chmod(0o640)
    assert vouching.signature("text") is None
    (folder / vouching.NAME).unlink()
    (folder / vouching.NAME).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"0" * vouching.LENGTH)
    assert vouching.signature("text") is None


def test_a_symlinked_secret_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "other").mkdir(mode=0o700)
    vouching.folder_of(os.getuid()).symlink_to(tmp_path / "other")
    assert vouching.signature("text") is None


def test_all_who_begin_at_once_sign_with_one_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(vouching.signature, ["text"] * 64))) == 1
    assert [path.name for path in vouching.folder_of(os.getuid()).iterdir()] == [vouching.NAME]


def test_a_wait_for_members_ends_when_the_last_one_dies(body: Body, tmp_path: Path) -> None:
    lock = lockstead.Lock(f"sqlite:///{tmp_path}/locks.db#apt", ttl=600, labels={LABEL: body.label})
    ticket = str(lock.acquire().detach())
    member = lock.attach(ticket)  # as if the body had registered
    assert not wait_for_members(lock, ticket, owner_filter=lambda _owner: True, limit=0.1, log=LOG)
    body.kill()
    assert wait_for_members(lock, ticket, owner_filter=lambda owner: owner == "another", limit=0.0, log=LOG)
    assert lock.members(ticket)
    assert wait_for_members(lock, ticket, owner_filter=lambda _owner: True, limit=60.0, log=LOG)
    assert lock.members(ticket) == []
    member.release()
    assert MARK not in os.environ
