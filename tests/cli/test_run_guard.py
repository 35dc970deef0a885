"""The promise of `lockstead run`: whatever happens, every process of the section is dead before the deadline."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.supervise import watchdog
from lockstead.supervise.messages import now, packed, unpacked
from tests.cli.conftest import PATIENCE, PATIENT, STUBBORN, Run, Runs, until

TTL = 4.0


@pytest.fixture
def lock(runs: Runs) -> Iterator[lockstead.Lock]:
    """The lock of the runs, as another process sees it."""
    with closing(lockstead.connect(f"sqlite:///{runs.where}/locks.db")) as client:
        yield client.lock("apt", ttl=TTL)


def stubborn(runs: Runs, *options: str) -> Run:
    """Run a command with descendants of every kind, none of which listens to SIGTERM."""
    run = runs.script(STUBBORN, *options)
    run.ready()
    assert len(run.section()) == 3
    return run


def next_one(lock: lockstead.Lock, run: Run) -> None:
    """Acquire the lock as the next contender, and check that no process of the section is alive at that instant."""
    lease = lock.acquire(timeout=30)
    try:
        assert run.section() == []
    finally:
        lease.release()


def dies_before_the_deadline(lock: lockstead.Lock, run: Run) -> None:
    """Wait for the end of the section; the record must still be younger than the holder's belief in it."""
    until(lambda: not run.section(), "the end of the section")
    held = lock.inspect()
    assert held is not None
    assert held.age is not None
    assert held.age < TTL * 0.99


def test_h12_a_revoked_lease_stops_all_that_the_command_started(runs: Runs, lock: lockstead.Lock) -> None:
    run = stubborn(runs, "--grace", "0.3")
    began = SYSTEM_CLOCK.now()
    lock.break_lease(reason="drill", by="ops")
    next_one(lock, run)
    code, _, err = run.outcome()
    assert code == 76
    assert "REVOKED" in err
    assert "drill" in err
    assert err.count("\n") == 1
    assert SYSTEM_CLOCK.now() - began < 2 * TTL + 3


def test_a_command_that_ends_at_sigterm_has_its_grace_for_it(runs: Runs, lock: lockstead.Lock) -> None:
    run = runs.script("""
        import signal, time
        def end(*_):
            time.sleep(0.2)
            open("cleaned", "w").close()
            raise SystemExit(0)
        signal.signal(signal.SIGTERM, end)
        open("ready", "w").close()
        time.sleep(1000)
    """)
    run.ready()
    lock.break_lease(reason="drill")
    assert run.code() == 76
    assert (runs.where / "cleaned").exists()
    assert lock.try_acquire() is not None, "a revoked lease is given back as soon as nobody is left"


def test_a_stopped_command_is_continued_to_meet_its_end(runs: Runs, lock: lockstead.Lock) -> None:
    run = runs.script("""
        import os, signal, sys
        def end(*_):
            open("cleaned", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        open("ready", "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()
    """)
    run.ready()
    assert run.process.stderr is not None
    assert "SIGSTOP" in run.process.stderr.readline()
    lock.break_lease(reason="drill")
    assert run.code() == 76
    assert (runs.where / "cleaned").exists()


def test_h29_a_killed_run_ends_its_section_in_time(runs: Runs, lock: lockstead.Lock) -> None:
    run = stubborn(runs)
    run.send(signal.SIGKILL)
    dies_before_the_deadline(lock, run)
    next_one(lock, run)
    until(lambda: not run.marked(), "the end of the watchdog")
    assert "lockstead run is gone" in run.outcome()[2]


def test_h06_run_stopped_past_the_ttl_touches_nothing_afterwards(runs: Runs, lock: lockstead.Lock) -> None:
    run = stubborn(runs)
    run.send(signal.SIGSTOP)
    dies_before_the_deadline(lock, run)
    lease = lock.acquire(timeout=30)
    assert run.section() == []
    run.send(signal.SIGCONT)
    code, _, err = run.outcome()
    assert code == 76
    assert "EXPIRED" in err
    assert lease.is_held
    held = lock.inspect()
    assert held is not None
    assert held.holder == lease.holder
    lease.release()


def test_h06_a_stopped_job_is_ended_when_it_continues(runs: Runs, lock: lockstead.Lock) -> None:
    run = runs.script(PATIENT)
    run.ready()
    watchdog = run.watchdog()
    frozen = [*run.section(), watchdog, run.pid]
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGSTOP)
    lease = lock.acquire(timeout=30)
    for pid in frozen[1:]:
        os.kill(pid, signal.SIGCONT)
    assert run.code() == 76
    assert run.section() == []
    assert lease.is_held
    lease.release()


def test_the_watchdog_is_killed_and_run_stops_the_section_itself(runs: Runs, lock: lockstead.Lock) -> None:
    run = stubborn(runs, "--grace", "0.3")
    os.kill(run.watchdog(), signal.SIGKILL)
    code, _, err = run.outcome()
    assert (code, err) == (70, "lockstead: the watchdog was killed; stopping the command\n")
    assert not run.marked()
    assert lock.inspect() is None


def test_a_command_has_its_grace_before_its_watchdog_is_reaped(runs: Runs) -> None:
    # what the kernel shows for a moment: the channel is closed, and the process is still there
    (runs.where / "sitecustomize.py").write_text(
        textwrap.dedent("""
            import subprocess, time
            class Popen(subprocess.Popen):
                gone_at = float("inf")
                def _try_wait(self, flags):
                    self.gone_at = min(self.gone_at, time.monotonic() + 0.1)
                    return super()._try_wait(flags) if time.monotonic() >= self.gone_at else (0, 0)
                def poll(self):
                    self.gone_at = min(self.gone_at, time.monotonic() + 0.1)
                    return super().poll() if time.monotonic() >= self.gone_at else None
            subprocess.Popen = Popen
        """)
    )
    runs.environment["PYTHONPATH"] = str(runs.where)
    run = runs.script("""
        import signal, sys
        def end(*_):
            open("cleaned", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        open("ready", "w").close()
        signal.pause()
    """)
    run.ready()
    os.kill(run.watchdog(), signal.SIGKILL)
    assert run.outcome() == (70, "", "lockstead: the watchdog was killed; stopping the command\n")
    assert (runs.where / "cleaned").exists()


def test_run_kills_the_section_if_the_watchdog_is_stopped(runs: Runs, lock: lockstead.Lock) -> None:
    run = stubborn(runs)
    os.kill(run.watchdog(), signal.SIGSTOP)
    # a record of the future: the holder's renewals find it taken, and the watchdog does not hear of it
    lock.break_lease(reason="drill")
    next_one(lock, run)
    code, _, err = run.outcome()
    assert code == 76
    assert "the watchdog does not answer" in err
    assert not run.marked()


def test_h09_a_hanging_store_ends_the_section_in_time(runs: Runs) -> None:
    with GcsServer(buckets=["b"]) as server:
        runs.environment = {"STORAGE_EMULATOR_HOST": server.url, "no_proxy": "*"}
        run = runs.script(STUBBORN, "--no-ticket", url="gs://b/locks/apt?ttl=4&abort_margin=1.9&renew_every=0.5")
        run.ready()
        assert len(run.section()) == 3
        server.pause("hang")
        paused_at = SYSTEM_CLOCK.now()
        until(lambda: not run.section(), "the end of the section")
        # renewed at the latest when the store fell silent
        assert SYSTEM_CLOCK.now() - paused_at < 4 * 0.99
        code, _, err = run.outcome()
        assert code == 76
        assert "is lost" in err


def test_a_store_that_refuses_for_a_while_costs_nothing(runs: Runs) -> None:
    with GcsServer(buckets=["b"]) as server:
        runs.environment = {"STORAGE_EMULATOR_HOST": server.url, "no_proxy": "*"}
        run = runs.script("""
            import os, time
            open("ready", "w").close()
            while not os.path.exists("over"):
                time.sleep(0.01)
        """, url="gs://b/locks/apt?ttl=8")  # fmt: skip
        run.ready()
        server.pause("refuse")
        assert run.process.stderr is not None
        lines = [run.process.stderr.readline()]
        while "a renewal of" not in lines[-1]:
            lines.append(run.process.stderr.readline())
        server.resume()
        while "renewed again" not in lines[-1]:
            lines.append(run.process.stderr.readline())
        (runs.where / "over").touch()
        assert run.code() == 0
        assert not [name for name in server.objects("b") if name.endswith("locks/apt")]


def test_a_ticket_costs_some_requests_and_none_costs_none(runs: Runs) -> None:
    with GcsServer(buckets=["b"]) as server:
        runs.environment = {"STORAGE_EMULATOR_HOST": server.url, "no_proxy": "*"}
        counts = []
        # the first one makes the object that tokens are drawn from
        for options in (["--no-ticket"], ["--no-ticket"], []):
            server.requests.clear()
            assert runs.start(*options, "--", "true", url="gs://b/locks/apt?ttl=60").code() == 0
            counts.append(len(list(server.requests)))
        # with: to register, to read, to withdraw, to close, to list
        assert counts[2] - counts[1] == 5, counts


def test_two_runs_never_overlap(runs: Runs) -> None:
    log = runs.where / "log"
    text = """
        import os, time
        log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, b"enter " + os.environb[b"LOCKSTEAD_TOKEN"] + b"\\n")
        time.sleep(0.05)
        os.write(log, b"leave " + os.environb[b"LOCKSTEAD_TOKEN"] + b"\\n")
    """
    started = [runs.script(text) for _ in range(6)]
    assert [run.code() for run in started] == [0] * 6
    lines = [line.split() for line in log.read_text().splitlines()]
    tokens = [int(token) for word, token in lines if word == "enter"]
    assert [word for word, _ in lines] == ["enter", "leave"] * 6
    assert [int(token) for word, token in lines if word == "leave"] == tokens
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("leaves", ["sleep 1000 &", "setsid sleep 1000 &", "(sleep 1000 &) ; exit 4"])
def test_h27_leftover_processes_are_stopped_before_the_release(runs: Runs, lock: lockstead.Lock, leaves: str) -> None:
    run = runs.start("--", "sh", "-c", f"exec >&- 2>&-; {leaves}")
    code, _, err = run.outcome()
    assert code == (4 if "exit 4" in leaves else 0)
    assert err == "lockstead: the command has ended and left 1 of its processes behind; stopping them\n"
    assert not run.marked()
    assert lock.inspect() is None


def test_what_ends_right_after_the_command_is_not_reported(runs: Runs) -> None:
    assert runs.start("--", "sh", "-c", "(sleep 0.05; touch late) &").outcome() == (0, "", "")
    assert (runs.where / "late").exists()


def test_a_process_without_its_first_thread_is_found(runs: Runs, lock: lockstead.Lock) -> None:
    run = runs.script("""
        import ctypes, os, threading, time
        if os.fork() == 0:
            os.setsid()
            def work():
                time.sleep(0.1)
                open("ready", "w").close()
                time.sleep(1000)
            threading.Thread(target=work).start()
            ctypes.CDLL(None).pthread_exit(None)
        while not os.path.exists("ready"):
            time.sleep(0.01)
    """)
    code, _, err = run.outcome()
    assert code == 0
    assert "left 1 of its processes behind" in err
    assert not run.marked()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_signals_reach_the_commands_group_and_never_end_run(runs: Runs, number: signal.Signals) -> None:
    run = runs.script(f"""
        import os, signal, sys, time
        child = os.fork()
        name = "child" if child == 0 else "parent"
        def note(number, _frame):
            # looked for first: the test makes that file as soon as it sees what is written here
            is_over = os.path.exists("over")
            with open(name, "a") as file:
                file.write(f"{{number}}\\n")
            if is_over:
                os._exit(7)
        signal.signal({int(number)}, note)
        open(name + "-ready", "w").close()
        while True:
            time.sleep(1000)
    """)
    run.ready("child-ready")
    run.ready("parent-ready")

    def noted() -> list[int]:
        paths = (runs.where / "child", runs.where / "parent")
        return [len(path.read_text().split()) if path.exists() else 0 for path in paths]

    run.send(number)
    until(lambda: noted() == [1, 1], "the first signal")
    assert run.process.poll() is None
    (runs.where / "over").touch()
    run.send(number)
    assert run.code() == 7
    assert set((runs.where / "parent").read_text().split()) == {str(int(number))}


def test_sigtstp_and_sigcont_reach_the_command_the_lease_is_kept(runs: Runs, lock: lockstead.Lock) -> None:
    run = runs.script("""
        import os, time
        open("ready", "w").close()
        while not os.path.exists("over"):
            time.sleep(0.01)
    """)
    run.ready()
    (pid,) = run.section()

    def state() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    run.send(signal.SIGTSTP)
    until(lambda: state() == "T", "the stop")
    (runs.where / "over").touch()
    time.sleep(TTL * 1.1)  # the one thing that is waited for here is the ttl itself
    assert state() == "T"
    assert lock.try_acquire() is None
    run.send(signal.SIGCONT)
    assert run.code() == 0


def test_who_flees_by_forking_is_caught(runs: Runs, lock: lockstead.Lock) -> None:
    run = runs.script("""
        import os, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("ready", "w").close()
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
    """, "--grace", "0.1")  # fmt: skip
    run.ready()
    assert run.code() == 0
    assert not run.marked()
    assert lock.inspect() is None


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user's process")
def test_h19_a_lock_stays_while_a_process_cannot_be_killed(runs: Runs, lock: lockstead.Lock) -> None:
    runs.through = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"]
    run = runs.script("""
        import os, time
        if os.fork() == 0:
            os.setuid(65534)
            time.sleep(1000)
    """, "--grace", "0.1")  # fmt: skip
    # not outcome(): who cannot be killed keeps the streams open
    assert run.process.wait(PATIENCE) == 70
    assert run.process.stderr is not None
    assert "left 1 of its processes behind" in run.process.stderr.readline()
    assert "cannot be killed; 'apt' is left to expire" in run.process.stderr.readline()
    assert len(run.section()) == 1
    assert lock.inspect() is not None


def test_a_signal_at_the_start_of_the_command_is_not_lost() -> None:
    """It comes while the new process still ignores what the watchdog ignores."""
    for _ in range(20):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.set_inheritable(True)
            words = [
                sys.executable,
                "-s",
                "-E",
                "-S",
                watchdog.__file__,
                str(theirs.fileno()),
                "/bin/sleep",
                "sleep",
                "60",
            ]
            with subprocess.Popen(words, close_fds=False, process_group=0):
                theirs.close()
                told = ours.makefile("rb")
                assert told.readline().startswith(b"ready")
                ours.sendall(packed("start", now() + 60, 5.0, 5.0, 0) + packed("signal", int(signal.SIGTERM)))
                lines = [unpacked(line.rstrip(b"\n")) for line in told]
            (status,) = [int(fields[1]) for fields in lines if fields[0] == "ended"]
            assert os.WTERMSIG(status) == signal.SIGTERM
