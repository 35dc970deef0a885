"""`lockstead inspect`, `list` and `wait`: what they show, and that they only look."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import lockstead
from gcs_emulator import GcsServer
from gcs_emulator.objects import draft_of
from lockstead.cli.format import FACTS, sequencer_text
from lockstead.cli.main import COMMANDS, call
from lockstead.errors import StoreUnavailable
from lockstead.views import LockInfo
from tests.cli.conftest import until
from tests.cli.screen import Screen
from tests.cli.shell import PROGRAM, Shell
from tests.cli.valid import INSTANT, checked, parsed

FREE = "apt is free: the store has no lease of it\n"


def writes(server: GcsServer) -> int:
    return server.requests.count("mutation")


# --- inspect --------------------------------------------------------------------------------------------------------


def used(files: Shell) -> None:
    """Take a lock and give it back."""
    with files.client() as client, client.lock("apt").hold():
        pass


def test_inspecting_creates_no_file_and_says_there_is_none(files: Shell) -> None:
    path = files.where / "locks.db"
    none = f"lockstead: there is no file {path} yet\n"
    for words, out in (
        (("inspect", files.url()), FREE),
        (("wait", files.url()), ""),
        (("list", "--json", files.store), ""),
        (("history", "--json", files.store), ""),
    ):
        done = files.run(*words)
        assert (done.code, done.out, done.err) == (0, out, none)
    ticket = files.hold()
    assert path.exists()
    assert files.run("inspect", files.url()).err == ""
    path.unlink()
    assert files.run("renew", ticket).code == files.run("release", ticket).code == 76
    done = files.run("break", "--yes", "--reason", "stuck", files.url())
    assert (done.code, done.err) == (0, f"{none}lockstead: 'apt' is free: nothing to break\n")
    assert not path.exists()


def test_inspect_says_that_a_lock_is_free(files: Shell) -> None:
    used(files)
    done = files.run("inspect", files.url())
    assert (done.code, done.out, done.err) == (0, FREE, "")
    said = files.run("inspect", "--json", files.url()).said
    assert said == {**dict.fromkeys((*FACTS, "waiting")), "key": "apt", "state": "free"}
    assert files.run("inspect", "--exit-code", files.url()).code == 0


@pytest.mark.parametrize("command", ["inspect", "list", "history", "wait", "acquire", "run", "break"])
def test_it_is_said_that_an_emulator_has_the_locks(bucket: Shell, command: str) -> None:
    notice, bucket.notice = bucket.notice, ""
    more = {"run": ["--", "true"], "break": ["--reason", "x", "--yes"]}
    done = bucket.run(command, bucket.url(), *more.get(command, []))
    assert (done.code, done.err.count(notice)) == (0, 1)


def test_inspect_shows_holder_times_and_purpose(shell: Shell) -> None:
    before = datetime.now(UTC)
    ticket = shell.acquire("--ttl", "30m", "--owner", "ci/7", "--purpose", "publish", "--label", "team=deb")
    shell.run("renew", ticket, "--progress", "3 of 5")
    done = shell.run("inspect", shell.url())
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "apt is held by ci/7"
    told = {line[2:11].strip(): line[13:] for line in lines[1:]}
    assert told["purpose"] == "publish"
    assert told["progress"] == "3 of 5"
    assert told["labels"] == "team=deb"
    assert " left unless it is renewed)" in told["until"]
    assert re.fullmatch(r"30 minutes, renewed (less than a second|\d+ seconds?) ago", told["ttl"])
    assert told["since"].endswith(" ago)")
    said = shell.run("inspect", "--json", shell.url()).said
    assert tuple(said) == (*FACTS, "waiting")
    shown = {name: said[name] for name in ("key", "state", "owner", "purpose", "progress", "labels", "ttl")}
    assert shown == {
        "key": "apt",
        "state": "held",
        "owner": "ci/7",
        "purpose": "publish",
        "progress": "3 of 5",
        "labels": {"team": "deb"},
        "ttl": 1800.0,
    }
    assert said["sequencer"] == f"{said['token']}:exclusive:apt"
    assert told["token"] == str(said["token"])
    assert INSTANT.fullmatch(said["acquired_at"])
    assert INSTANT.fullmatch(said["expires_at"])
    since = datetime.fromisoformat(said["acquired_at"])
    # to the millisecond downwards
    assert before.timestamp() - 0.001 <= since.timestamp() <= time.time()
    assert 0 <= said["held_for"] <= time.time() - before.timestamp() + 0.001
    assert 0 < said["time_left"] <= 1800
    assert said["decode_error"] is None


def test_h17_the_sequencer_that_is_shown_of_readers_admits_no_writer(files: Shell) -> None:
    files.hold(mode="shared")
    said = files.run("inspect", "--json", files.url()).said
    assert said["sequencer"] == f"{said['token']}:shared:apt"
    later = LockInfo(key="apt", holder="x/1", owner="x", incarnation="1", token=7, mode="wish")
    assert sequencer_text(later) is None


def test_inspect_shows_when_a_reaper_may_revoke_the_lease_and_the_run_of_its_holder(files: Shell) -> None:
    files.hold(auto_unlock_after="2h", expected="1h", labels={"url": "https://ci.example/7"})
    said = files.run("inspect", "--json", files.url()).said
    assert said["url"] == "https://ci.example/7"
    assert INSTANT.fullmatch(said["auto_unlock_at"])
    shown = files.run("inspect", files.url()).out
    instant = f"{said['auto_unlock_at'][:10]} {said['auto_unlock_at'][11:19]} UTC"
    assert f"\n  unlock     a reaper may revoke it from {instant} on\n" in shown


def test_a_lock_of_the_command_line_names_no_line_of_code(files: Shell) -> None:
    files.acquire()
    said = files.run("inspect", "--json", files.url()).said
    assert (said["host"], said["where"]) == (os.uname().nodename, None)


def test_inspect_exits_with_75_only_if_asked_to(files: Shell) -> None:
    files.hold()
    assert files.run("inspect", files.url()).code == 0
    assert files.run("inspect", "--exit-code", files.url()).code == 75


def test_a_lease_whose_time_is_up_is_free_to_take(files: Shell) -> None:
    files.hold(ttl="1", owner="ci/7")
    with files.client() as client:
        until(lambda: (held := client.lock("apt").inspect()) is not None and held.is_expired)
    done = files.run("inspect", "--exit-code", files.url())
    assert (done.code, done.out.splitlines()[0]) == (0, "apt is free: the lease of ci/7 has expired")
    assert files.run("inspect", "--json", files.url()).said["state"] == "expired"
    assert files.run("wait", "--timeout", "0", files.url()).code == 0
    done = files.run("break", files.url(), "--reason", "gone", "--yes")
    assert (done.code, done.out) == (0, "apt is removed: its lease had expired, and the lock is free\n")
    assert [one["what"] for one in files.run("history", "--json", files.store).lines] == ["removed"]
    assert files.run("inspect", "--json", files.url()).said["state"] == "free"


def test_no_text_of_a_record_reaches_the_terminal_unwritten(files: Shell) -> None:
    nasty = "ok\x1b[2J\x9b31m [red]\u202e"
    with files.client() as client:
        lease = client.lock("apt", labels={"x": nasty}).acquire(0)
        lease.detach()
    for words in (["inspect", files.url()], ["list", files.store], ["inspect", "--json", files.url()]):
        done = files.run(*words)
        assert done.code == 0
        assert all(character.isprintable() or character == "\n" for character in done.out), done.out
        assert words[0] == "list" or "[red]" in done.out
    assert files.run("inspect", "--json", files.url()).said["labels"] == {"x": "ok\ufffd[2J\ufffd31m [red]\ufffd"}


# --- list -----------------------------------------------------------------------------------------------------------


def test_the_table_keeps_the_most_urgent_locks_alone(
    files: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lockstead.cli.listing.ROWS_MAX", 2)
    with files.client() as client:
        for key in ("c", "b", "a", "late"):
            assert client.lock(key, expected=0.001 if key == "late" else None).try_acquire()
        until(lambda: any(held.alert_epoch is not None and held.alert_epoch < time.time() for held in client.scan()))
        assert call(["list", files.store]) == 0
        shown = capsys.readouterr()
        assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["late", "a"]
        assert shown.err == "lockstead: 2 more are not shown; --json shows every lock\n"


def test_list_of_nothing_is_no_line_and_a_word(files: Shell) -> None:
    used(files)
    done = files.run("list", files.store)
    assert (done.code, done.out, done.err) == (0, "", "lockstead: no lock is held there\n")
    assert files.run("list", "--json", files.store).lines == []


def test_list_shows_what_is_overdue_first_and_then_by_name(files: Shell) -> None:
    with files.client() as client:
        for key in ("b", "a"):
            client.lock(key, owner="ci", purpose=f"for {key}").acquire(0).detach()
        client.lock("z", owner="ci", alert_after=0.001, expected=60).acquire(0).detach()

    def states() -> dict[str, str]:
        return {one["key"]: one["state"] for one in files.run("list", "--json", files.store).lines}

    until(lambda: states() == {"a": "held", "b": "held", "z": "overdue"})
    done = files.run("list", files.store)
    lines = done.out.splitlines()
    assert lines[0].split() == ["KEY", "STATE", "OWNER", "HELD", "FOR", "LEFT", "TOKEN", "PURPOSE"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["z", "overdue", "ci"],
        ["a", "held", "ci"],
        ["b", "held", "ci"],
    ]
    assert lines[2].endswith("for a")
    overdue = files.run("inspect", files.url("z"))
    assert overdue.out.splitlines()[0] == "z is held by ci, OVERDUE"
    assert re.search(r"^  overdue .* \(for .*\)$", overdue.out, re.MULTILINE)


def test_every_store_command_accepts_key_and_settings_in_the_url(files: Shell) -> None:
    files.hold("apt")
    files.hold("yum")
    files.run("break", files.url("yum"), "--reason", "stuck", "--yes")
    for command, keys in (("list", ["apt"]), ("history", [])):
        said = files.run(command, "--json", f"{files.store}?ttl=5m#apt").lines
        assert [one["key"] for one in said] == keys


OWNER, PURPOSE = "prefect:publish-under-lock/prefect-apt/69e5cc2d", "publish the packages of everybody to the mirror"


@pytest.mark.parametrize("columns", [80, 200])
def test_a_narrow_terminal_breaks_no_token_and_no_owner(files: Shell, columns: int) -> None:
    files.hold("apt", owner=OWNER, purpose=PURPOSE)
    token = files.run("inspect", "--json", files.url()).said["token"]
    script = f"unset COLUMNS; stty cols {columns}; NO_COLOR=1 {PROGRAM} list {files.store}; echo end"
    with Screen(files.where, script) as screen:
        screen.shows("end")
        lines = screen.seen.splitlines()
    assert max(map(len, lines)) <= columns
    row = next(line for line in lines if line.startswith("apt "))
    assert str(token) in row
    if columns == 80:
        assert lines[lines.index(row) + 1 :][:2] == [f"    owner: {OWNER}", f"    purpose: {PURPOSE}"]
    else:
        assert OWNER in row
        assert row.endswith(PURPOSE)


def test_json_is_one_line_at_a_terminal_too(files: Shell) -> None:
    files.hold()
    with Screen(files.where, f"{PROGRAM} inspect --json '{files.url()}'; echo end") as screen:
        screen.shows("end")
        first, *_ = screen.seen.splitlines()
    assert json.loads(first)["state"] == "held"


def test_69_a_server_that_hangs_up_is_reported_in_one_line(files: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hang_up, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        url = f"zk://127.0.0.1:{port}/x?request_timeout=2#apt"
        files.run("inspect", url).fails(69, "")
        debugged = files.run("--debug", "inspect", url)
        server.shutdown(socket.SHUT_RDWR)
    assert debugged.code == 69
    assert debugged.err.count("\n") > 1


def hang_up(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()


JSON_COMMANDS = sorted(set(COMMANDS) - {"run", "elect", "completion", "schema"})
ABSENT = "sqlite:///absent/locks.db#apt"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((["--debug", name, "--json", "--nonsense"], 64) for name in JSON_COMMANDS),
        (["break", "--json", "--yes", "--reason", "stuck", ABSENT], 69),
        *(([name, "--json", ABSENT], 69) for name in ("acquire", "bench", "history", "inspect", "list", "wait")),
    ],
)
def test_a_failing_command_reports_json_if_requested(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(words) == code
    said = capsys.readouterr()
    checked(words, code, said.out, said.err)
    error = json.loads(said.err.splitlines()[-1])["error"]
    assert (said.out, error["code"]) == ("", code)
    assert error["kind"] == {64: "usage", 69: "store_refused"}[code]
    assert "lockstead: " not in said.err
    assert ("Traceback" in said.err) is ("--debug" in words)


def test_a_damaged_record_is_shown_as_such_and_hides_no_other(files: Shell) -> None:
    files.hold("good")
    files.hold("bad")
    with sqlite3.connect(files.where / "locks.db") as database:
        fields = '{"v": "1", "identity": "x/1", "ttl": "soon"}'
        assert database.execute("UPDATE record SET fields = ? WHERE key = 'bad'", (fields,)).rowcount == 1
    database.close()
    done = files.run("list", files.store)
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[1].split()[:2] == ["bad", "unreadable"]
    assert "is damaged: ttl is 'soon'" in lines[1]
    assert lines[2].split()[:2] == ["good", "held"]
    said = {one["key"]: one["decode_error"] for one in files.run("list", "--json", files.store).lines}
    assert said["good"] is None
    assert "is damaged" in said["bad"]
    files.run("inspect", files.url("bad")).fails(69, "is damaged")
    files.run("wait", "--timeout", "0", files.url("bad")).fails(69, "is damaged")


def test_locks_of_other_programs_are_shown(bucket: Shell, server: GcsServer) -> None:
    bucket.hold()
    server.store.insert("b", "locks/deb", draft_of(b"", {}, {"identity": "gem/1", "expires_at": "17"}))
    said = bucket.run("list", "--json", bucket.store).lines
    assert [(one["key"], one["owner"]) for one in said] == [("apt", said[0]["owner"]), ("deb", "gem/1")]
    assert (said[1]["ttl"], said[1]["expires_at"]) == (None, "1970-01-01T00:00:17.000Z")


# --- wait -----------------------------------------------------------------------------------------------------------


def test_h15_wait_only_reads_and_is_bounded_by_its_timeout(bucket: Shell, server: GcsServer) -> None:
    bucket.hold(owner="ci/7", purpose="publish")
    server.requests.clear()
    bucket.run("wait", "--timeout", "2", bucket.url()).fails(75, "'apt' is held by 'ci/7' for")
    assert writes(server) == 0
    assert set(server.requests.counts()) == {"get"}
    # from 0.1 s on each pause is drawn from a longer span: in 2 s there are a handful of looks, not hundreds
    assert 1 <= server.requests.count("get") <= 25


def test_wait_ends_at_the_release_and_acquires_nothing(shell: Shell) -> None:
    ticket = shell.hold(owner="ci/7")
    waiting = shell.start("wait", "-v", shell.url())
    assert waiting.stderr is not None
    assert waiting.stderr.readline().startswith("lockstead: waiting for 'apt', held by 'ci/7' for ")
    assert waiting.poll() is None
    assert shell.run("release", ticket).code == 0
    done = shell.ended(waiting)
    assert (done.code, done.out) == (0, "")
    with shell.client() as client:
        assert client.list() == []


def test_h01_wait_ends_when_a_dead_holders_lease_expires(bucket: Shell, server: GcsServer) -> None:
    bucket.hold(ttl="2")
    waiting = bucket.start("wait", "--json", bucket.url() + "?backoff_max=0.5")
    server.requests.wait_for(2, "get")
    server.requests.clear()
    done = bucket.ended(waiting)
    assert (done.code, done.said["state"], done.said["key"]) == (0, "expired", "apt")
    assert done.said["waited"] > 0
    assert writes(server) == 0
    assert "locks/apt" in server.objects("b")


def test_wait_that_looks_once_says_at_once_who_holds_it(files: Shell) -> None:
    assert files.run("wait", "--timeout", "0", files.url()).code == 0
    files.hold(owner="ci/7")
    files.run("wait", "--timeout", "0", files.url()).fails(75, "'apt' is held by 'ci/7'")
    done = files.run("wait", "--timeout", "0", "--json", files.url())
    assert (done.code, done.said["state"], done.said["owner"]) == (75, "held", "ci/7")
    assert tuple(done.said) == (*FACTS, "waited")


def test_a_single_look_waits_for_a_slow_request(bucket: Shell, server: GcsServer) -> None:
    server.faults.inject("stall_answer", kind="get", seconds=2)
    assert bucket.run("wait", "--timeout", "0", bucket.url()).code == 0


def test_wait_waits_out_a_store_that_is_down(bucket: Shell, server: GcsServer) -> None:
    bucket.hold()
    server.pause()
    waiting = bucket.start("wait", bucket.url())
    bucket.run("wait", "--timeout", "300ms", bucket.url()).fails(69, "")
    assert waiting.poll() is None
    server.store.delete("b", "locks/apt")
    server.resume()
    assert bucket.ended(waiting).code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_h18_a_signal_ends_the_wait_at_once(files: Shell, number: signal.Signals) -> None:
    ticket = files.hold(owner="ci/7")
    waiting = files.start("wait", "-v", files.url() + "?backoff_min=600&backoff_max=600")
    assert waiting.stderr is not None
    waiting.stderr.readline()
    waiting.send_signal(number)
    # long before the pause of ten minutes is over
    done = files.ended(waiting)
    assert (done.code, done.out) == (128 + number, "")
    assert done.err == f"lockstead: {number.name} ended the wait for 'apt'\n"
    assert files.run("release", ticket).code == 0


def test_a_signal_ends_a_wait_on_a_store_that_hangs(bucket: Shell, server: GcsServer) -> None:
    server.pause("hang")
    waiting = bucket.start("wait", bucket.url() + "?ttl=1h")
    assert server.requests.wait_for(1, timeout=60)
    waiting.send_signal(signal.SIGTERM)
    assert bucket.ended(waiting).code == 143


def test_several_who_wait_all_end(files: Shell) -> None:
    ticket = files.hold()
    all_of_them = [files.start("wait", "-v", files.url()) for _ in range(3)]
    for waiting in all_of_them:
        assert waiting.stderr is not None
        waiting.stderr.readline()
    assert files.run("release", ticket).code == 0
    assert [files.ended(waiting).code for waiting in all_of_them] == [0, 0, 0]


# --- formats of list ------------------------------------------------------------------------------------------------


def test_list_prints_metrics_that_prometheus_reads(files: Shell) -> None:
    files.hold("apt-1", owner="ci/7")
    files.hold("yum")
    done = files.run("list", "--format", "openmetrics", "--lock-label", "apt-*=apt", files.store)
    assert (done.code, done.err) == (0, "")
    samples = {
        (sample.name, sample.labels.get("lock")): sample.value
        for family in text_string_to_metric_families(done.out)
        for sample in family.samples
    }
    assert 0 <= samples["lockstead_held_seconds", "apt"] < 60
    assert 0 < samples["lockstead_ttl_left_seconds", "other"] <= 1800
    assert samples["lockstead_scrape_errors_total", None] == 0
    if (promtool := shutil.which("promtool")) is not None:
        # it parses as the node exporter's text collector does; 3: parsed, with remarks on style
        checked_metrics = subprocess.run([promtool, "check", "metrics"], input=done.out, text=True, check=False)
        assert checked_metrics.returncode in (0, 3)
    elif os.environ.get("CI") == "true":
        pytest.fail("promtool is not installed")


def test_list_replaces_a_file_only_as_a_whole(files: Shell) -> None:
    files.hold("apt")
    path = files.where / "locks.prom"
    words = ("list", "--format", "openmetrics", "--output", str(path))
    assert files.run(*words, files.store).out == ""
    shown = path.read_text()
    assert shown.endswith("# EOF\n")
    assert path.stat().st_mode & 0o444 == 0o444
    files.run(*words, "sqlite:///absent/locks.db").fails(69, "there is no folder")
    assert path.read_text() == shown
    with path.open() as before:
        files.run("list", "--json", "--output", str(path), files.store)
        # who has the old one open reads the old one to its end
        assert before.read() == shown != path.read_text()
    files.run("list", "--output", "absent/locks.prom", files.store).fails(
        74, "cannot write 'absent/locks.prom': No such"
    )
    files.run("list", "--output", "/dev/full/x", files.store).fails(74, "cannot write '/dev/full/x': Not a directory")
    assert sorted(one.name for one in files.where.iterdir() if "prom" in one.name) == ["locks.prom"]


def test_list_writes_each_format_to_a_file(files: Shell) -> None:
    files.hold("apt")
    for words in (("--json",), ("--format", "json"), ("--format=json",)):
        assert files.run("list", *words, "--output", "locks", files.store).out == ""
        assert parsed("list", (files.where / "locks").read_text()[:-1])["key"] == "apt"
    files.run("list", "--output", "locks", files.store)
    shown = files.run("list", "--format", "table", files.store).out.splitlines()
    assert [line[:20] for line in (files.where / "locks").read_text().splitlines()] == [line[:20] for line in shown]


def test_an_error_is_json_with_either_option(files: Shell) -> None:
    for words in (("--json",), ("--format", "json"), ("--format=json",)):
        assert files.run("list", *words, "sqlite:///absent/locks.db").error["kind"] == "store_refused"


def test_list_streams_what_it_reads_and_reports_a_later_error(
    files: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(_client: lockstead.Client) -> Iterator[LockInfo]:
        yield LockInfo(key="apt", holder="ci/7/1", owner="ci/7", incarnation="1", ttl=60.0)
        raise StoreUnavailable("the store hung up")

    monkeypatch.setattr(lockstead.Client, "scan", broken_off)
    assert call(["list", "--json", files.store]) == 69
    said = capsys.readouterr()
    assert parsed("list", said.out[:-1])["key"] == "apt"
    assert parsed("error", said.err.splitlines()[-1])["error"]["kind"] == "store_unavailable"


def test_metrics_without_their_extra_say_what_to_install(
    files: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.hold()
    monkeypatch.delitem(sys.modules, "lockstead.monitor.openmetrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    assert call(["list", "--format", "openmetrics", files.store]) == 69
    assert capsys.readouterr().err.endswith("pip install 'lockstead[cli,prometheus]'\n")
