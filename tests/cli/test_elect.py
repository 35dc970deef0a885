"""`lockstead elect` and `lockstead leader`: the command runs on the leader alone, and is stopped when it is deposed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead.protocol.commands import Create
from lockstead.protocol.record import Record, encode
from lockstead.values import Name
from tests.cli.conftest import until
from tests.cli.shell import Shell
from tests.cli.valid import parsed

TTL = ("--ttl", "4")


def started(files: Shell, *words: str, owner: str, command: str) -> subprocess.Popen[str]:
    """Start a candidate."""
    return files.start("elect", files.url(), "--owner", owner, *TTL, *words, "--", "sh", "-c", command)


def leads(files: Shell, owner: str | None) -> None:
    """Wait until a candidate leads; None: until no candidate does."""
    election = lockstead.Election(files.url())
    until(lambda: (one := election.leader()) is not None and one.owner == owner, f"the term of {owner}")


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_the_command_runs_while_it_leads_and_its_code_is_passed_on(files: Shell) -> None:
    done = files.run("elect", files.url(), "--value", "http://a", "--", "sh", "-c", "echo $LOCKSTEAD_TOKEN; exit 5")
    assert (done.code, done.out.strip().isdigit()) == (5, True)
    assert lockstead.Election(files.url()).leader() is None


def test_leader_shows_who_leads_and_what_it_advertises(files: Shell) -> None:
    with files.client() as client:
        assert client.lock("apt").try_acquire() is not None, "a lock that elects no leader"
    files.run("leader", files.url()).fails(75, "'apt' has no leader")
    lockstead.Lock(files.url()).break_lease(reason="x", by="y", now=True)
    process = started(files, "--value", "http://a:1", owner="pod-1", command="exec sleep 60")
    leads(files, "pod-1")
    done = files.run("leader", files.url())
    owner, value, _word, token = done.out.split()
    assert (done.code, owner, value) == (0, "pod-1", "http://a:1")
    said = files.run("leader", "--json", files.url()).said
    assert (said["key"], said["owner"], said["value"], said["token"]) == ("apt", "pod-1", "http://a:1", int(token))
    listed = files.run("list", files.store).out
    assert "pod-1" in listed
    assert "http://a:1" in listed
    assert "http://a:1" in files.run("inspect", files.url()).out
    process.send_signal(signal.SIGTERM)
    assert files.ended(process).code == 128 + signal.SIGTERM
    done = files.run("leader", "--json", files.url())
    assert (done.code, done.said["owner"]) == (75, None)


def test_a_second_candidate_takes_over_when_the_first_resigns(files: Shell) -> None:
    first = started(files, owner="a", command="echo a >> led; exec sleep 60")
    leads(files, "a")
    second = started(files, owner="b", command="echo b >> led; exec sleep 60")
    watch = files.start("leader", "--watch", "--json", files.url())
    assert watch.stdout is not None
    assert parsed("leader", watch.stdout.readline()[:-1])["owner"] == "a"
    first.send_signal(signal.SIGTERM)
    assert files.ended(first).code == 128 + signal.SIGTERM
    leads(files, "b")
    shown = [parsed("leader", watch.stdout.readline()[:-1])["owner"]]
    while shown[-1] != "b":
        shown.append(parsed("leader", watch.stdout.readline()[:-1])["owner"])
    assert set(shown) <= {None, "b"}
    until(lambda: lines(files.where / "led") == ["a", "b"], "the command of b")
    for process in (second, watch):
        process.send_signal(signal.SIGINT)
    assert files.ended(second).code == 128 + signal.SIGINT
    assert files.ended(watch).code == 128 + signal.SIGINT


def test_sigterm_ends_a_campaign(files: Shell) -> None:
    files.hold()
    process = files.start("elect", "-v", files.url(), "--", "true")
    assert process.stderr is not None
    assert "waiting for 'apt'" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    files.ended(process).fails(128 + signal.SIGTERM, "SIGTERM ended the campaign for 'apt'")


def test_the_key_is_free_only_when_the_command_has_ended(files: Shell) -> None:
    slow = "trap 'sleep 1; echo ended > ended; exit 3' TERM; touch ready; while :; do sleep 0.05; done"
    process = started(files, owner="a", command=slow)
    until((files.where / "ready").exists, "the command")
    process.send_signal(signal.SIGTERM)
    with lockstead.Election(files.url(), owner="b").lead(timeout=30):
        assert (files.where / "ended").exists()
    assert files.ended(process).code == 3


def test_a_deposed_leader_is_stopped_and_campaigns_again(files: Shell) -> None:
    process = started(files, owner="a", command="echo $LOCKSTEAD_TOKEN >> terms; exec sleep 60")
    until(lambda: len(lines(files.where / "terms")) == 1, "the first term")
    broken = lockstead.Lock(files.url()).break_lease(reason="drill", by="ops")
    assert broken is not None
    until(lambda: len(lines(files.where / "terms")) == 2, "the second term")
    first, second = (int(line) for line in lines(files.where / "terms"))
    assert second > first
    process.send_signal(signal.SIGTERM)
    done = files.ended(process)
    assert done.code == 128 + signal.SIGTERM
    assert "REVOKED" in done.err
    assert done.err.count("\n") == 2, "one line for the loss, one for the unclean end before the second term"


@pytest.mark.parametrize("how", ["broken", "max_term"])
def test_once_exits_when_deposed(files: Shell, how: str) -> None:
    words = ("--once", "--max-term", "0.2") if how == "max_term" else ("--once",)
    process = started(files, *words, owner="a", command="touch ready; exec sleep 60")
    until((files.where / "ready").exists, "the command")
    if how == "broken":
        lockstead.Lock(files.url()).break_lease(reason="drill", by="ops")
    files.ended(process).fails(76, "max_term has passed" if how == "max_term" else "REVOKED")
    assert lockstead.Election(files.url()).leader() is None


def test_a_term_that_ends_before_its_command_starts_is_given_back_and_campaigned_for_again(files: Shell) -> None:
    url = f"{files.store}?backoff_max=0.1#apt"
    process = files.start("elect", url, *TTL, "--max-term", "0", "--", "sleep", "60")
    assert process.stderr is not None
    tokens: set[str] = set()
    while len(tokens) < 6:
        line = process.stderr.readline()
        assert line, "it campaigns again"
        tokens.update(re.findall(r"token (\d+) is lost", line))
    process.send_signal(signal.SIGTERM)
    assert files.ended(process).code in (76, 128 + signal.SIGTERM), "the last term may have ended first"
    assert lockstead.Election(files.url()).leader() is None


def test_max_term_lets_another_candidate_lead(files: Shell) -> None:
    election = lockstead.Election(files.url(), owner="b")
    process = started(files, "--max-term", "0.5", owner="a", command="exec sleep 60")
    leads(files, "a")
    with election.lead(timeout=30) as term:
        assert term.previous_lease.ending is lockstead.LeaseOutcome.CLEAN
    assert process.poll() is None
    process.kill()


def test_the_hook_is_told_of_each_leader_and_no_text_of_a_record_is_run(files: Shell) -> None:
    hook = 'echo "$LOCKSTEAD_KEY:$LOCKSTEAD_LEADER:$LOCKSTEAD_VALUE:${LOCKSTEAD_TOKEN:+token}" >> told'
    value = "$(touch broken);`touch broken`"
    process = started(files, "--value", value, "--on-leader", hook, owner="a", command="exec sleep 60")
    until(lambda: f"apt:a:{value}:token" in lines(files.where / "told"), "the hook")
    assert set(lines(files.where / "told")) <= {"apt:::", f"apt:a:{value}:token"}
    assert not (files.where / "broken").exists()
    process.send_signal(signal.SIGTERM)
    files.ended(process)


def test_a_hook_that_fails_is_one_line(files: Shell) -> None:
    process = started(files, "--on-leader", "exit 9", owner="a", command="while [ ! -e end ]; do sleep 0.05; done")
    assert process.stderr is not None
    assert process.stderr.readline() == "lockstead: --on-leader failed: exit code 9\n"
    (files.where / "end").touch()
    assert files.ended(process).code == 0


def test_a_candidate_that_is_killed_is_succeeded_and_its_command_is_stopped(files: Shell) -> None:
    process = started(files, owner="a", command="echo $$ > pid; exec sleep 60")
    until(lambda: lines(files.where / "pid"), "the command")
    os.kill(process.pid, signal.SIGKILL)
    with lockstead.Election(files.url(), owner="b").lead(timeout=30):
        pid = int(lines(files.where / "pid")[0])
        assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_a_restarted_candidate_reclaims_its_term(files: Shell) -> None:
    process = started(files, owner="pod-0", command="touch ready; exec sleep 60")
    until((files.where / "ready").exists, "the command")
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    again = files.run("elect", files.url(), "--owner", "pod-0", "--reclaim", "--ttl", "60", "--", "true")
    assert again.code == 0
    assert time.monotonic() - began < 30


def test_hostile_text_of_a_leader_is_shown_without_control_characters(files: Shell) -> None:
    with files.client() as client:
        fields: dict[str, Any] = encode(Record("a/1", 600, owner="a", token=7, value="x"))
        fields |= {"owner": "\x1b[2Jowner", "value": "\x1b]0;evil\x07" + "v" * 2048}
        client._engine.store.perform(Create(Name("apt"), fields, 600), 5.0)
    for words in (("leader", files.url()), ("list", files.store), ("inspect", files.url())):
        done = files.run(*words)
        assert done.code == 0
        assert "\x1b" not in done.out
        assert "\x07" not in done.out
        assert "owner" in done.out
    said = files.run("leader", "--json", files.url()).said
    assert len(said["value"].encode()) <= 1024
    assert said["value"].startswith("\ufffd]0;evil\ufffdvvv")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("elect", "URL", "--value", "a\x1b[31m", "--", "true"), 64, "value must be printable text"),
        (("elect", "URL", "--value", "v" * 2048, "--", "true"), 64, "value has 2048 bytes; it may have 1024"),
        (("elect", "URL", "--max-term", "soon", "--", "true"), 64, "--max-term 'soon' is not a duration"),
        (("elect", "URL", "--reclaim", "--", "true"), 64, "reclaim needs an explicit owner"),
        (("elect", "URL", "--ttl", "4", "--grace", "9", "--", "true"), 64, "grace is 9 s"),
        (("elect", "URL"), 64, "the command is missing: lockstead elect URL -- CMD"),
        (("elect", "--", "true"), 64, "the lock's URL is missing: lockstead elect URL -- CMD"),
        (("elect", "URL?mode=shared", "--", "true"), 64, "an election has one leader"),
        (("elect", "URL", "--", "./no-such-command"), 127, "command not found"),
        (("elect", "redlock://127.0.0.1,127.0.0.2,127.0.0.3#k", "--", "true"), 64, "no fencing tokens"),
        (("elect", "memory:#k", "--", "true"), 64, "private to one process"),
        (("leader", "sqlite:///absent/locks.db#k"), 69, "absent"),
        (("leader", "sqlite:///locks.db"), 64, "names no key"),
    ],
)
def test_each_mistake_is_one_line(files: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    files.run(*(word.replace("URL", files.url()) for word in words)).fails(code, said)


def test_the_environment_of_a_nested_command_has_the_term(files: Shell) -> None:
    done = files.run("elect", files.url(), "--", "sh", "-c", 'echo "$LOCKSTEAD_KEY $LOCKSTEAD_SEQUENCER"')
    key, sequencer = done.out.split()
    assert (key, lockstead.Sequencer.parse(sequencer).key) == ("apt", "apt")
