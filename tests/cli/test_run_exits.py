"""What `lockstead run` passes to its command, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

import lockstead
from lockstead.cli.exits import judged
from lockstead.cli.main import call
from lockstead.cli.run import stop_times_of
from lockstead.cli.signals import RAISES_AGAIN, Interrupted, Signals
from lockstead.settings import Settings
from tests.cli.conftest import PATIENT, Runs, until


def test_the_command_gets_key_store_token_and_ticket(runs: Runs) -> None:
    runs.environment = {"LOCKSTEAD_TOKEN": "of an outer lock"}
    code, out, err = runs.start("--", "env").outcome()
    told = dict(line.split("=", 1) for line in out.splitlines() if line.startswith("LOCKSTEAD_"))
    assert (code, err) == (0, "")
    assert told["LOCKSTEAD_KEY"] == "apt"
    assert told["LOCKSTEAD_STORE"] == f"sqlite:///{runs.where}/locks.db"
    assert told["LOCKSTEAD_SEQUENCER"] == f"{told['LOCKSTEAD_TOKEN']}:exclusive:apt"
    ticket = lockstead.LeaseTicket.parse(told["LOCKSTEAD_TICKET"])
    assert (ticket.key, ticket.incarnation) == ("apt", told["LOCKSTEAD_TOKEN"])


def test_a_file_or_env_url_is_passed_on_unchanged(runs: Runs) -> None:
    kept = runs.where / "store"
    kept.write_text(f"sqlite:///{runs.where}/locks.db")
    runs.environment = {"LOCK_STORE": kept.read_text()}
    for given in (f"file:{kept}", "env:LOCK_STORE"):
        renew = f'echo "$LOCKSTEAD_STORE"; {sys.executable} -m lockstead.cli.main renew "$LOCKSTEAD_TICKET"'
        code, out, err = runs.start("--", "sh", "-c", renew, url=f"{given}?ttl=4&abort_margin=1.9#apt").outcome()
        assert (code, out.splitlines()[0], err) == (0, given, ""), out


def test_a_nested_run_of_the_same_lock_warns_that_it_waits(runs: Runs) -> None:
    runs.environment = {"LOCKSTEAD_KEY": "apt", "LOCKSTEAD_STORE": f"sqlite:///{runs.where}/locks.db"}
    code, _, err = runs.start("--", "true").outcome()
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("lockstead: the 'lockstead run' around this command took 'apt'")
    assert runs.start("--timeout", "60", "--", "true").outcome() == (0, "", "")
    runs.environment["LOCKSTEAD_KEY"] = "yum"
    assert runs.start("--", "true").outcome() == (0, "", "")


def test_a_busy_lock_is_told_from_a_command_that_ends_with_75(runs: Runs) -> None:
    assert runs.start("-E", "11", "--", "sh", "-c", "exit 75").code() == 75
    holder = runs.script(PATIENT)
    holder.ready()
    code, _, err = runs.start("--timeout", "0", "--conflict-exit-code", "11", "--", "false").outcome()
    assert code == 11
    assert err.startswith("lockstead: 'apt' is held by")
    assert runs.start("--timeout", "0", "--", "false").code() == 75
    holder.send(signal.SIGTERM)


def test_a_holder_that_did_not_end_cleanly_is_told_of_once(runs: Runs) -> None:
    with closing(lockstead.connect(f"sqlite:///{runs.where}/locks.db")) as client:
        lease = client.lock("apt", owner="nightly").acquire()
        client.lock("apt").break_lease(reason="a test", now=True)
        assert runs.start("--", "true").outcome() == (
            0,
            "",
            "lockstead: the lease of 'nightly' on 'apt' ended REVOKED; check what it left\n",
        )
        assert not lease.release()
    assert runs.start("--", "true").outcome() == (0, "", "")


def test_a_variable_of_an_outer_lock_does_not_reach_the_command(runs: Runs) -> None:
    runs.environment = {"LOCKSTEAD_TICKET": "of an outer lock"}
    code, out, _ = runs.start("--no-ticket", "--", "env").outcome()
    assert code == 0
    assert "LOCKSTEAD_TICKET" not in out


def test_the_lock_is_held_while_the_command_runs(runs: Runs) -> None:
    run = runs.script(PATIENT, "--purpose", "publish", "--owner", "ci", "--label", "team=deb", "--label", "run=7")
    run.ready()
    with closing(lockstead.connect(f"sqlite:///{runs.where}/locks.db")) as client:
        held = client.lock("apt").inspect()
        assert held is not None
        assert (held.owner, held.purpose, dict(held.labels)) == ("ci", "publish", {"team": "deb", "run": "7"})
        run.send(signal.SIGTERM)
        assert run.code() == 128 + signal.SIGTERM
        assert client.lock("apt").inspect() is None
        assert client.lock("apt").try_acquire() is not None


def test_the_default_purpose_is_the_commands_name_only(runs: Runs) -> None:
    run = runs.start("--", "sh", "-c", ": --password=hunter2; touch ready; sleep 1000")
    run.ready()
    with closing(lockstead.connect(f"sqlite:///{runs.where}/locks.db")) as client:
        held = client.lock("apt").inspect()
        assert held is not None
        assert held.purpose == "run sh"
        assert "hunter2" not in repr(held)


def test_the_lock_stays_until_a_member_by_ticket_has_left(runs: Runs) -> None:
    runs.environment = {"IMPORT": os.pathsep.join(sys.path)}
    run = runs.script("""
        import os, sys
        sys.path[:0] = os.environ["IMPORT"].split(os.pathsep)
        import lockstead
        client = lockstead.connect(os.environ["LOCKSTEAD_STORE"])
        with client.lock(os.environ["LOCKSTEAD_KEY"]).attach(os.environ["LOCKSTEAD_TICKET"]) as lease:
            print(lease.is_member, client.verify(os.environ["LOCKSTEAD_SEQUENCER"]))
        client.close()
    """)
    assert run.outcome() == (0, "True True\n", "")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
    ],
)
def test_the_commands_exit_code_is_ours(runs: Runs, command: list[str], code: int) -> None:
    run = runs.start("--", *command)
    assert run.outcome() == (code, "", "")
    assert not run.marked()


def test_standard_streams_and_open_descriptors_are_the_commands(runs: Runs) -> None:
    code, out, err = runs.start("--", "sh", "-c", "pwd; echo oops >&2; exec 1>&-; exit 5").outcome()
    assert (code, out.strip(), err.strip()) == (5, str(runs.where), "oops")


@pytest.mark.parametrize(
    ("closed", "outcome"), [("<&-", (0, "said\n", "")), ("<&- >&-", (3, "", "")), ("<&- >&- 2>&-", (3, "", ""))]
)
def test_a_closed_standard_stream_keeps_the_watchdog_working(
    runs: Runs, closed: str, outcome: tuple[int, str, str]
) -> None:
    runs.through = ["sh", "-c", f'exec "$0" "$@" {closed}']
    # longer than it takes the watchdog to notice that something of its own is closed
    assert runs.start("--", "sh", "-c", "sleep 0.5; echo said 2>/dev/null || exit 3").outcome() == outcome


def test_an_ignored_signal_stays_ignored_others_are_at_default(runs: Runs) -> None:
    def ignored_by(command: str) -> int:
        shell = ["sh", "-c", f"trap '' HUP; {command}"]
        out = subprocess.run(shell, text=True, stdout=subprocess.PIPE, check=True).stdout
        (ignored,) = [int(line.split()[1], 16) for line in out.splitlines() if line.startswith("SigIgn")]
        return ignored

    # whoever runs the tests may have more signals ignored, and these are to stay so too
    look = "cat /proc/self/status"
    ignored = ignored_by(f"{sys.executable} -m lockstead.cli.main run '{runs.url}' -- {look}")
    assert ignored == ignored_by(look)
    assert ignored & 1 << (signal.SIGHUP - 1)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_no_late_signal_replaces_the_commands_exit_code(runs: Runs, number: signal.Signals) -> None:
    run = runs.script(f"""
        import os, signal
        signal.signal({int(number)}, lambda *_: os._exit(7))
        open("ready", "w").close()
        signal.pause()
    """)
    run.ready()
    # until it is reaped: at every moment of its end, that of the interpreter included
    while run.process.poll() is None:
        run.send(number)
        time.sleep(0.0005)
    assert run.outcome() == (7, "", "")


def test_75_others_hold_it(runs: Runs) -> None:
    holder = runs.script(PATIENT, "--owner", "nightly")
    holder.ready()
    for timeout in ("0", "300ms"):
        code, out, err = runs.start("--timeout", timeout, "--", "echo", "never").outcome()
        assert (code, out) == (75, "")
        assert "'apt' is held by 'nightly'" in err
        assert err.count("\n") == 1


def test_who_waits_says_so_when_asked_and_runs_when_it_is_free(runs: Runs) -> None:
    holder = runs.script(PATIENT, "--owner", "nightly")
    holder.ready()
    waiter = runs.start("-v", "--", "echo", "mine")
    assert waiter.process.stderr is not None
    assert "waiting for 'apt', held by 'nightly' for" in waiter.process.stderr.readline()
    holder.send(signal.SIGTERM)
    code, out, err = waiter.outcome()
    assert (code, out) == (0, "mine\n")
    assert "acquired 'apt' after" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_h18_a_signal_ends_the_wait_and_leaves_nothing_behind(runs: Runs, number: signal.Signals) -> None:
    with closing(lockstead.connect(f"sqlite:///{runs.where}/locks.db")) as client:
        lease = client.lock("apt").acquire(0)
        waiter = runs.start("-v", "--", "echo", "never")
        assert waiter.process.stderr is not None
        waiter.process.stderr.readline()
        waiter.send(number)
        assert waiter.outcome()[:2] == (128 + number, "")
        assert not waiter.marked()
        lease.release()
        assert client.list() == []


def test_69_the_store_fails(runs: Runs) -> None:
    code, _, err = runs.start("--", "true", url=f"sqlite:///{runs.where}/absent/locks.db#apt").outcome()
    assert (code, err.count("\n")) == (69, 1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    runs.environment = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}
    code, _, err = runs.start("--timeout", "0", "--", "true", url="gs://bucket/locks/apt").outcome()
    assert code == 69
    assert err.startswith("lockstead: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the command is missing"),
        (["--nonsense", "--", "true"], "--nonsense"),
        (["--ttl", "soon", "--", "true"], "'soon' is not a duration"),
        (["--timeout", "soon", "--", "true"], "timeout 'soon' is not a duration"),
        (["--ttl", "0.5", "--", "true"], "at least 1 s"),
        (["--label", "odd", "--", "true"], "K=V"),
        (["--grace", "1.2", "--", "true"], "at most 1.1875 s: add ?abort_margin=1.92 to the URL"),
        (["--grace", "10", "--", "true"], "at most 1.1875 s: take a ttl of at least 96 s, without an abort_margin"),
    ],
)
def test_64_usage(runs: Runs, arguments: list[str], says: str) -> None:
    code, _, err = runs.start(*arguments).outcome()
    assert (code, err.count("\n")) == (64, 1)
    assert says in err


@pytest.mark.parametrize(
    "url", ["memory:#apt", "nonsense", "sqlite:////tmp/x.db", "nowhere://a#b", "sqlite:////tmp/x.db?colour=red#apt"]
)
def test_64_an_url_that_cannot_be(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", url, "--", "true"]) == 64
    assert capsys.readouterr().err.count("\n") == 1


def test_126_and_127_are_found_out_before_the_lock_is_asked_for(runs: Runs) -> None:
    (runs.where / "plain").write_text("")
    (runs.where / "bad").write_text("#!/no/such/interpreter\n")
    (runs.where / "bad").chmod(0o755)
    assert runs.start("--", "no-such-command").outcome()[0] == 127
    assert runs.start("--", "./nothing-here").outcome()[0] == 127
    assert runs.start("--", "./plain").outcome()[0] == 126
    assert runs.start("--", "./").outcome()[0] == 126
    assert not (runs.where / "locks.db").exists()
    code, _, err = runs.start("--", "./bad").outcome()
    assert (code, err) == (127, "lockstead: ./bad: No such file or directory\n")
    with closing(lockstead.connect(f"sqlite:///{runs.where}/locks.db")) as client:
        assert client.list() == []


def test_a_failure_that_nobody_foresaw_shows_no_text_of_its_own() -> None:
    code, line = judged(RuntimeError("password=hunter2"))
    assert code == 70
    assert "hunter2" not in line


def test_help_and_version_are_no_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "--help"]) == 0
    assert "Exit codes" in capsys.readouterr().out
    assert call(["--version"]) == 0


@pytest.mark.parametrize("ttl", [1, 2, 20, 300, 3600])
def test_grace_and_reserve_fit_between_loss_and_deadline(ttl: float) -> None:
    settings = Settings.make(ttl=ttl)
    limits = stop_times_of(settings, None)
    # the watchdog's own start comes after the keeper's, or a renewal in the last moment would be in vain
    assert limits.grace + limits.reserve < settings.abort_margin
    assert 0 < limits.reserve <= 5
    assert limits.grace <= 10
    with pytest.raises(ValueError, match="abort_margin="):
        stop_times_of(settings, settings.abort_margin)


def test_no_watchdog_is_left_when_the_wait_ends(runs: Runs) -> None:
    with closing(lockstead.connect(f"sqlite:///{runs.where}/locks.db")) as client, client.lock("apt").acquire(0):
        waiter = runs.start("-v", "--", "true")
        assert waiter.process.stderr is not None
        waiter.process.stderr.readline()
        assert waiter.watchdog()
        waiter.send(signal.SIGKILL)
        until(lambda: not waiter.marked(), "the end of the watchdog")


def test_a_wait_that_survives_a_signal_is_ended_by_a_later_one() -> None:
    """What the first signal raised may be lost, in a finalizer of any library."""
    signals = Signals()
    with pytest.raises(Interrupted):
        signals._note(signal.SIGINT, None)
    signals._note(signal.SIGINT, None)  # the cleanup has its time
    signals._raised_at -= RAISES_AGAIN
    with pytest.raises(Interrupted):
        signals._note(signal.SIGINT, None)
    signals.ended()
    signals._raised_at -= RAISES_AGAIN
    signals._note(signal.SIGINT, None)
    assert list(signals.taken()) == [signal.SIGINT, signal.SIGINT]
    os.close(signals.awake)
    os.close(signals._wakes)
