"""`lockstead acquire`, `renew`, `release`: one lease through several steps, with no keeper in between."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead import LeaseTicket
from lockstead.cli.schemas import OUTPUTS
from tests.cli.conftest import until
from tests.cli.shell import PROGRAM, Shell
from tests.cli.test_looking import INSTANT

FORGED = str(lockstead.LeaseTicket("redis://elsewhere.example/0", "apt", "a/1", "1", 60.0))
GIVEN = tuple(OUTPUTS["acquire"]["properties"])


# --- a store that is busy for a moment ------------------------------------------------------------------------------


def test_one_answer_that_the_store_is_busy_ends_no_step(bucket: Shell, server: GcsServer) -> None:
    inject = server.faults.inject
    struck = [inject("fail", kind="get", status=503)]  # the first read is that of the token
    ticket = bucket.run("acquire", bucket.url(), "--ttl", "10m").out.strip()
    struck += [inject("lose_request", kind="get"), inject("fail", kind="patch", status=429)]
    assert bucket.run("renew", ticket).code == 0
    assert bucket.run("release", ticket).code == 0
    struck += [inject("fail", kind="get", status=503, skip=skip) for skip in range(4)]
    assert bucket.run("run", bucket.url(), "--", "true").code == 0
    assert [one.hits for one in struck] == [1] * len(struck)
    with bucket.client() as client:
        assert client.list() == []


# --- acquire --------------------------------------------------------------------------------------------------------


def test_acquire_prints_only_the_ticket_and_keeps_the_lock(shell: Shell) -> None:
    done = shell.run(
        *("acquire", shell.url(), "--ttl", "10m", "--owner", "ci/7", "--purpose", "publish"),
        *("--label", "team=deb", "--label", "run=7"),
    )
    ticket = lockstead.LeaseTicket.parse(done.out.removesuffix("\n"))
    assert (done.code, ticket.key, ticket.ttl) == (0, "apt", 600.0)
    assert done.err.startswith("lockstead: 'apt' is held; renew it before ")
    with shell.client() as client:
        held = client.lock("apt").inspect()
        assert held is not None
        assert (held.holder, held.incarnation) == (ticket.holder, ticket.incarnation)
        assert (held.owner, held.purpose, dict(held.labels)) == ("ci/7", "publish", {"team": "deb", "run": "7"})
        # the token was drawn, so that whoever looks sees it
        assert held.token is not None
        assert client.lock("apt").try_acquire() is None


def test_acquire_gives_what_the_steps_need_as_json(files: Shell) -> None:
    done = files.run("acquire", "--json", files.url())
    said = done.said
    assert (done.code, done.err, tuple(said)) == (0, "", GIVEN)
    # half an hour, as nobody renews it in between
    assert (said["key"], said["store"], said["ttl"]) == ("apt", files.store, 1800.0)
    assert said["sequencer"] == f"{said['token']}:exclusive:apt"
    assert 1700 < said["time_left"] < 1800
    assert INSTANT.fullmatch(said["renew_before"])
    with files.client() as client:
        assert client.verify(said["sequencer"])
        assert client.release(said["ticket"]) is True


def test_settings_come_from_the_url_and_options_outdo_it(files: Shell) -> None:
    url = files.url() + "?ttl=5m&owner=url&purpose=url"
    ticket = files.run("acquire", url, "--owner", "option").out.strip()
    with files.client() as client:
        held = client.lock("apt").inspect()
        assert held is not None
        assert (held.ttl, held.owner, held.purpose) == (300.0, "option", "url")
        assert client.release(ticket) is True


def test_75_acquire_tells_who_holds_it_and_prints_no_ticket(files: Shell) -> None:
    files.hold(owner="ci/7", purpose="publish")
    for timeout in ("0", "200ms"):
        done = files.run("acquire", files.url(), "--timeout", timeout)
        done.fails(75, "'apt' is held by 'ci/7' for")
    error = files.run("acquire", files.url(), "--timeout", "0", "--json").error
    assert "(purpose: publish)" in error.pop("message")
    assert error.pop("held_for") >= 0
    assert error == {"code": 75, "kind": "not_acquired", "key": "apt", "owner": "ci/7", "lost_reason": None}


def test_acquire_waits_for_its_turn(files: Shell) -> None:
    ticket = files.hold(owner="ci/7")
    waiting = files.start("acquire", files.url(), "-v", "--timeout", "60")
    assert waiting.stderr is not None
    assert waiting.stderr.readline().startswith("lockstead: waiting for 'apt', held by 'ci/7'")
    assert files.run("release", ticket).code == 0
    done = files.ended(waiting)
    assert done.code == 0
    assert files.run("release", done.out.strip()).code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_h18_a_signal_while_waiting_leaves_nothing_behind(files: Shell, number: signal.Signals) -> None:
    ticket = files.hold()
    waiting = files.start("acquire", "-v", files.url() + "?backoff_min=600&backoff_max=600")
    assert waiting.stderr is not None
    waiting.stderr.readline()
    waiting.send_signal(number)
    done = files.ended(waiting)
    assert (done.code, done.out, done.err) == (128 + number, "", f"lockstead: {number.name} ended the wait for 'apt'\n")
    assert files.run("release", ticket).code == 0
    with files.client() as client:
        assert client.list() == []


@pytest.mark.parametrize("kind", ["insert", "patch"], ids=["before the grant", "after it"])
def test_h18_a_signal_during_a_request_leaves_nothing_behind(bucket: Shell, server: GcsServer, kind: str) -> None:
    # the answer of the grant itself, or of a later request, comes after the signal
    server.faults.inject("stall_answer", kind=kind, seconds=3)
    asking = bucket.start("acquire", bucket.url())
    assert server.requests.wait_for(1, kind, timeout=60)
    until(lambda: "locks/apt" in server.objects("b"))
    asking.send_signal(signal.SIGTERM)
    done = bucket.ended(asking)
    assert (done.code, done.out) == (143, "")
    assert "locks/apt" not in server.objects("b")


@pytest.mark.parametrize(
    ("to", "code", "words"), [("full", 74, "No space left"), ("closed", 74, "it is closed"), ("gone", 141, "")]
)
def test_a_ticket_that_cannot_be_printed_leaves_no_lock_behind(files: Shell, to: str, code: int, words: str) -> None:
    if to == "gone":
        reads, writes = os.pipe()
        os.close(reads)
        stdout = writes
    else:
        stdout = os.open("/dev/full", os.O_WRONLY)
    closes = "exec 1>&-; " if to == "closed" else ""
    command = ["sh", "-c", f'{closes}exec "$0" "$@"', str(PROGRAM), "acquire", files.url()]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(stdout)
    assert done.returncode == code, done
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    with files.client() as client:
        assert client.list() == []


def is_writing(pid: int) -> bool:
    """Return whether a process is in a write to its standard output; wait a while if the kernel does not say."""
    try:
        number, first, *_ = (*Path(f"/proc/{pid}/syscall").read_text().split(), "")
    except OSError:
        time.sleep(2)
        return True
    return (number, first) in (("1", "0x1"), ("64", "0x1"))  # of x86-64, of the others


AT_THE_END = """
import os, signal, sys
from lockstead.cli.main import call

class Last:
    def __del__(self, kill=os.kill, own=os.getpid(), number=int(signal.SIGTERM)):
        kill(own, number)

last = Last()  # collected when the interpreter has given its signal handlers up
sys.exit(call(["acquire", sys.argv[1]]))
"""


def test_h18_a_signal_after_the_ticket_does_not_change_the_exit_code(files: Shell) -> None:
    command = [sys.executable, "-c", AT_THE_END, files.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    assert files.run("release", done.stdout.strip()).code == 0


def test_h18_a_signal_during_printing_releases_the_lock(files: Shell) -> None:
    """A caller that sees the exit code of a signal considers the lock not held, even if the ticket was printed."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(writes, b"x" * 65536)
    os.set_blocking(writes, True)
    process = subprocess.Popen([str(PROGRAM), "acquire", files.url()], stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    try:
        with files.client() as client:
            until(lambda: client.lock("apt").inspect() is not None, seconds=60)
            until(lambda: is_writing(process.pid), seconds=60)
            process.send_signal(signal.SIGTERM)
            printed = b""
            while chunk := os.read(reads, 65536):
                printed += chunk
            os.close(reads)
            _, err = process.communicate(timeout=60)
            assert process.returncode == 143, err
            assert b"the lock is released" in err
            assert client.list() == []
    finally:
        process.kill()
        process.wait()
    assert printed[filled:] == b"" or printed[filled:].startswith(b"lockstead1.")


# --- renew ----------------------------------------------------------------------------------------------------------


def test_one_lease_through_several_steps(shell: Shell) -> None:
    ticket = shell.acquire("--ttl", "10m")
    with shell.client() as client:
        first = client.lock("apt").inspect()
        done = shell.run("renew", ticket)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("apt is renewed; renew it again before ")
        second = client.lock("apt").inspect()
        assert first is not None
        assert second is not None
        assert second.incarnation == first.incarnation
        assert (second.expires_epoch or 0) > (first.expires_epoch or 0)
        assert client.lock("apt").try_acquire() is None
        done = shell.run("release", ticket)
        assert (done.code, done.out, done.err) == (0, "apt is released\n", "")
        assert client.lock("apt").inspect() is None


def test_renew_is_one_look_and_one_extension_of_that_incarnation(bucket: Shell, server: GcsServer) -> None:
    ticket = bucket.hold()
    server.requests.clear()
    said = bucket.run("renew", "--json", "--progress", "3 of 5", ticket).said
    assert tuple(said) == ("key", "holder", "ttl", "time_left", "renew_before")
    assert 1700 < said["time_left"] < 1800
    assert INSTANT.fullmatch(said["renew_before"])
    assert server.requests.counts() == {"get": 1, "patch": 1}
    (patch,) = [line for line in server.requests if line.kind == "patch"]
    assert patch.query["ifGenerationMatch"] == lockstead.LeaseTicket.parse(ticket).incarnation
    assert bucket.run("inspect", "--json", bucket.url()).said["progress"] == "3 of 5"


def test_the_ticket_is_an_argument_standard_input_or_a_variable(files: Shell) -> None:
    ticket = files.hold()
    assert files.run("renew", "-", given=f"{ticket}\n").code == 0
    assert files.run("renew", "-", given=f"  {ticket}").code == 0
    files.environment = {"LOCKSTEAD_TICKET": ticket}
    assert files.run("renew").code == 0
    files.environment = {"LOCKSTEAD_TICKET": "of another lock"}
    assert files.run("renew", ticket).code == 0
    assert files.run("release", "-", given=ticket).code == 0


def test_inside_run_the_ticket_is_the_one_of_that_run(files: Shell) -> None:
    command = f"{PROGRAM} renew --progress half && {PROGRAM} inspect --json '{files.url()}'"
    done = files.run("run", "--owner", "outer", files.url(), "--", "sh", "-c", f"{command} | tail -n 1")
    assert done.code == 0, done
    assert '"owner": "outer"' in done.out
    assert '"progress": "half"' in done.out


def test_64_inside_run_the_lease_of_that_run_is_not_given_back(files: Shell) -> None:
    done = files.run("run", files.url(), "--", PROGRAM, "release")
    assert (done.code, done.out) == (64, "")
    assert done.err == "lockstead: 'lockstead run' releases 'apt' when its command ends; do not release it yourself\n"


@pytest.mark.parametrize("now", [False, True], ids=["revoked", "ended"])
def test_h12_76_a_broken_lease_is_never_renewed(shell: Shell, now: bool) -> None:
    ticket = shell.hold()
    with shell.client() as client:
        client.lock("apt").break_lease(reason="stuck", by="anna", now=now)
        shell.run("renew", ticket).fails(76, "REVOKED: it was revoked (by anna: stuck)")
        held = client.lock("apt").inspect()
    assert (held is None) is now


def test_h02_76_a_lease_that_somebody_else_took_is_not_touched(files: Shell) -> None:
    ticket = files.hold()
    with files.client() as client:
        client.lock("apt").break_lease(reason="stuck", now=True)
        with client.lock("apt", owner="next").acquire(0) as lease:
            files.run("renew", ticket).fails(76, "TAKEN: another holder has it now (next)")
            files.run("release", ticket).fails(76, "on 'apt', TAKEN: another holder has it now (next)")
            assert lease.release() is True


# --- release --------------------------------------------------------------------------------------------------------


def test_76_releasing_a_lease_that_is_gone_is_reported(shell: Shell) -> None:
    ticket = shell.hold()
    holder = LeaseTicket.parse(ticket).holder
    done = shell.run("release", "--json", ticket)
    said = done.said
    assert (done.code, tuple(said), said["key"], said["released"]) == (0, ("key", "holder", "released"), "apt", True)
    shell.run("release", ticket).fails(76, f"cannot release the lease of {holder!r} on 'apt', GONE: its record is gone")


@pytest.mark.parametrize("now", [False, True], ids=["revoked", "ended"])
def test_76_a_broken_lease_is_released_once_naming_who_broke_it(shell: Shell, now: bool) -> None:
    ticket = shell.hold()
    with shell.client() as client:
        client.lock("apt").break_lease(reason="stuck", by="anna", now=now)
        first = shell.run("release", ticket)
        if not now:
            told = "lockstead: 'apt': the lease was revoked before it was released (by anna: stuck)\n"
            assert (first.code, first.out, first.err) == (0, "apt is released\n", told)
        for done in (first, shell.run("release", ticket), shell.run("release", ticket))[not now :]:
            done.fails(76, "on 'apt', REVOKED: it was revoked (by anna: stuck)")
        assert client.release(ticket) is False


def test_h27_75_release_waits_for_members_or_lets_it_expire(files: Shell) -> None:
    ticket = files.hold()
    with files.client() as client:
        member = client.lock("apt").attach(ticket)
        files.run("release", "--drain", "300ms", ticket).fails(75, "a member still works under it")
        assert member.is_held
        files.run("renew", ticket).fails(76, "it is being released")
        shown = files.run("inspect", files.url()).out
        assert " left)" in shown, "nobody can renew it any more"
        releasing = files.start("release", "--drain", "60", ticket)
        assert releasing.poll() is None
        member.release()
        assert files.ended(releasing).code == 0
        assert client.list() == []


# --- a ticket is somebody else's text -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["renew", "release"])
def test_a_ticket_does_not_choose_the_server_that_is_asked(files: Shell, command: str) -> None:
    """A forged ticket would send the credentials of this environment to its server: its store is compared, never
    opened."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        port = stranger.getsockname()[1]
        files.environment = {"REDIS_PASSWORD": "s3cret", "ETCDCTL_USER": "root:s3cret", "PGPASSWORD": "s3cret"}
        for store in ("redis", "etcd", "postgresql", "zk"):
            forged = str(lockstead.LeaseTicket(f"{store}://127.0.0.1:{port}/x", "apt", "a/1", "1", 60.0))
            files.run(command, forged).fails(64, f"127.0.0.1:{port}/x, this store is {files.store}")
            files.run(command, "--store", "", forged).fails(64, "it is not taken from the ticket")
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.parametrize("command", ["renew", "release"])
def test_a_ticket_makes_no_file(files: Shell, tmp_path: Path, command: str) -> None:
    forged = str(lockstead.LeaseTicket(f"sqlite:///{tmp_path}/made.db", "apt", "a/1", "1", 60.0))
    files.run(command, forged).fails(64, "this store is")
    assert not (tmp_path / "made.db").exists()


def test_the_url_of_the_lock_names_the_store_too(files: Shell) -> None:
    ticket = files.hold()
    files.environment = {"LOCKSTEAD_STORE": "sqlite:///another.db"}
    assert files.run("renew", "--store", f"{files.url()}?ttl=5m", ticket).code == 0
    assert files.run("release", ticket, "--store", files.url()).code == 0


# --- what can go wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["renew", "release"])
@pytest.mark.parametrize(
    ("ticket", "words"),
    [
        ([], "no ticket: give it as an argument, on standard input ('-'), or in LOCKSTEAD_TICKET"),
        ([""], "no ticket"),
        (["  "], "no ticket"),
        (["lockstead1.x"], "not a lease ticket"),
        (["lockstead1." + "x" * 100_000], "not a lease ticket: 'lockstead1.xxx"),
        ([FORGED, "--store", ""], "name the one that the ticket is for with --store URL, or in LOCKSTEAD_STORE"),
        ([FORGED, "--store", "memory:"], "a memory: store is private to one process"),
        ([FORGED, "--store", "nowhere://x"], "no store has the scheme 'nowhere'"),
        ([FORGED, "--store", "sqlite:///locks.db?ttl=soon"], "ttl 'soon' is not a duration"),
        ([FORGED, "--store", "sqlite:///locks.db#yum"], "the ticket is for 'apt', --store names 'yum'"),
    ],
    ids=["none", "empty", "blank", "damaged", "giant", "no store", "memory", "unknown store", "setting", "other key"],
)
def test_64_what_is_no_ticket(
    command: str, ticket: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockstead.cli.main import call

    monkeypatch.delenv("LOCKSTEAD_TICKET", raising=False)
    monkeypatch.delenv("LOCKSTEAD_STORE", raising=False)
    assert call([command, *ticket]) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert words in said.err


def test_69_the_store_does_not_answer(bucket: Shell, server: GcsServer) -> None:
    ticket = bucket.hold()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    bucket.environment = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}
    bucket.run("renew", ticket).fails(69, "")
    bucket.run("acquire", "--timeout", "0", bucket.url()).fails(69, "")


def test_a_ticket_is_good_in_another_folder(files: Shell, tmp_path: Path) -> None:
    files.store = "sqlite:///locks.db"
    ticket = files.acquire()
    files.where = tmp_path / "elsewhere"
    files.where.mkdir()
    files.run("release", ticket).fails(64, "this store is")
    assert files.run("release", ticket, "--store", f"sqlite:///{tmp_path}/locks.db").code == 0


def test_no_process_is_left_to_keep_the_lease(files: Shell) -> None:
    ticket = lockstead.LeaseTicket.parse(files.acquire("--ttl", "1"))
    with files.client() as client:
        until(lambda: client.lock("apt").try_acquire() is not None)
    files.run("renew", str(ticket)).fails(76, "TAKEN")


def test_the_command_is_the_installed_one() -> None:
    assert PROGRAM.is_file(), f"{PROGRAM} is missing: pip install the package for {sys.executable}"
