"""`lockstead break` and `history`: exactly the lease that was shown, and a trace of it."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import time
from dataclasses import replace

import pytest

import lockstead
from gcs_emulator import GcsServer
from gcs_emulator.objects import draft_of
from lockstead.cli.format import details, facts
from lockstead.cli.output import instant
from lockstead.cli.schemas import OUTPUTS
from lockstead.reading import date_text
from tests.cli.conftest import until
from tests.cli.screen import Screen
from tests.cli.shell import PROGRAM, Shell
from tests.cli.test_looking import INSTANT

TOLD = ("key", "broken", "removed", "by", "reason", "max_overlap", "overlap_until", "was")
ENTRY = tuple(OUTPUTS["history"]["properties"])


# --- break ----------------------------------------------------------------------------------------------------------


def test_h12_break_shows_the_holder_and_leaves_an_entry(shell: Shell) -> None:
    ticket = lockstead.LeaseTicket.parse(shell.hold(owner="ci/7", purpose="publish"))
    done = shell.run("break", shell.url(), "--reason", "stuck", "--yes")
    assert done.code == 0, done
    assert done.err.splitlines()[0] == "apt is held by ci/7"
    assert "purpose    publish" in done.err
    assert done.out.startswith("apt is revoked. Its holder finds out at its next renewal;")
    assert done.out.endswith(
        " at the latest. If it is dead, the lock is free soon after that; --now frees it at once\n"
    )
    with shell.client() as client:
        held = client.lock("apt").inspect()
        assert held is not None
        assert (held.incarnation, held.revoke_reason) == (ticket.incarnation, "stuck")
        assert re.fullmatch(r"\S+@\S+", held.revoked_by or "")
        (entry,) = client.history()
        assert (entry.by, entry.reason, entry.what, entry.owner) == (held.revoked_by, "stuck", "revoked", "ci/7")
    assert shell.run("inspect", shell.url()).out.startswith("apt is held by ci/7, but was revoked\n")
    again = shell.run("break", shell.url(), "--reason", "me too", "--yes")
    assert again.code == 0, again
    assert again.out.startswith(f"apt is revoked already, by {held.revoked_by}: stuck. Nothing was changed.")
    assert "the lock is free soon after 2" in again.out
    told = shell.run("break", shell.url(), "--reason", "me too", "--yes", "--json").said
    assert (told["broken"], told["removed"], told["by"], told["reason"]) == (True, False, held.revoked_by, "stuck")
    with shell.client() as client:
        assert [entry.reason for entry in client.history()] == ["stuck"]


def test_a_revoked_lease_is_shown_with_the_ttl_of_the_break(files: Shell) -> None:
    files.hold(ttl="20s", owner="ci/7")
    with files.client() as client:
        client.lock("apt").break_lease(reason="stuck", by="anna")
        held = client.lock("apt").inspect()
    assert held is not None
    # written by the holder 30 seconds ago, revoked 5 seconds ago
    now = time.time()
    seen = replace(held, age=5.0, expires_epoch=now - 10)
    said = facts("apt", seen, now)
    assert (said["state"], said["time_left"], said["expires_at"]) == ("revoked", 15.0, instant(now + 15))
    told = dict(details(seen, now))
    assert told["until"] == f"{date_text(now + 15)} (15 seconds left)"
    assert told["ttl"] == "20 seconds, last changed 5 seconds ago"
    unknown = facts("apt", replace(seen, age=None), now)
    assert (unknown["time_left"], unknown["expires_at"]) == (None, None)


def test_break_now_frees_it_at_once_and_says_the_overlap(shell: Shell) -> None:
    shell.hold(ttl="10m", owner="ci/7")
    done = shell.run("break", shell.url(), "--reason", "gone", "--by", "anna", "--now", "--yes", "--json")
    said = done.said
    assert (done.code, done.err, tuple(said)) == (0, "", TOLD)
    assert (said["broken"], said["removed"], said["by"], said["reason"]) == (True, True, "anna", "gone")
    # ttl * (1 + drift), and what the store's clock may err
    assert 606 <= said["max_overlap"] <= 609
    assert INSTANT.fullmatch(said["overlap_until"])
    assert said["was"]["owner"] == "ci/7"
    assert shell.run("inspect", shell.url()).out == "apt is free: the store has no lease of it\n"


def test_where_there_is_nothing_to_break_that_is_said(files: Shell) -> None:
    with files.client() as client, client.lock("apt").hold():
        pass
    done = files.run("break", files.url(), "--reason", "x", "--yes")
    assert (done.code, done.out, done.err) == (0, "", "lockstead: 'apt' is free: nothing to break\n")
    said = files.run("break", files.url(), "--reason", "x", "--yes", "--json").said
    assert (said["broken"], said["was"]) == (False, None)
    assert files.run("history", "--json", files.store).lines == []


def test_break_asks_nobody_where_there_is_no_terminal(files: Shell) -> None:
    ticket = files.hold()
    files.run("break", files.url(), "--reason", "x").fails(
        64, "is not a terminal, so there is no one to confirm: add --yes"
    )
    files.run("break", files.url(), "--reason", "x", given="y\n").fails(64, "add --yes")
    assert files.run("renew", ticket).code == 0


def test_break_needs_a_reason(files: Shell) -> None:
    files.hold()
    files.run("break", files.url(), "--yes").fails(64, "'--reason'")
    files.run("break", files.url(), "--yes", "--reason", " ").fails(64, "needs a reason")


@pytest.mark.parametrize(
    ("answer", "code", "words"), [("y", 0, "apt is revoked."), ("n", 75, "nothing was broken"), ("", 75, "")]
)
def test_break_asks_at_a_terminal(files: Shell, answer: str, code: int, words: str) -> None:
    ticket = files.hold(owner="ci/7")
    with Screen(files.where, f"{PROGRAM} break '{files.url()}' --reason stuck; echo code $?") as screen:
        screen.shows("Revoke this lease? [y/N]:")
        assert "apt is held by ci/7" in screen.read()
        screen.type(f"{answer}\n".encode())
        screen.shows(f"code {code}")
        assert words in screen.read()
    assert files.run("renew", ticket).code == (76 if code == 0 else 0)


def test_break_never_hits_a_lease_that_was_not_shown(files: Shell) -> None:
    ticket = files.hold(owner="first")
    with Screen(files.where, f"{PROGRAM} break '{files.url()}' --reason stuck; echo code $?") as screen:
        screen.shows("Revoke this lease? [y/N]:")
        assert files.run("release", ticket).code == 0
        second = files.hold(owner="second")
        screen.type(b"y\n")
        screen.shows("code 75")
        assert "'apt' has passed to 'second' meanwhile; nothing was broken" in " ".join(screen.read().split())
    assert files.run("renew", second).code == 0
    assert files.run("history", "--json", files.store).lines == []


def test_h24_a_damaged_record_is_removed_only_on_request(files: Shell) -> None:
    files.hold()
    with sqlite3.connect(files.where / "locks.db") as database:
        fields = '{"v": "1", "identity": "x/1", "ttl": "soon"}'
        database.execute("UPDATE record SET fields = ? WHERE space = 'lock'", (fields,))
    database.close()
    files.run("break", files.url(), "--reason", "damaged", "--yes").fails(69, "(--now)")
    done = files.run("break", files.url(), "--reason", "damaged", "--yes", "--now")
    assert done.code == 0, done
    assert done.err.startswith("apt has an unreadable record")
    assert files.run("inspect", files.url()).out == "apt is free: the store has no lease of it\n"


def test_h24_what_is_newer_is_refused(bucket: Shell, server: GcsServer) -> None:
    newer = {"v": "2", "identity": "x/1", "ttl": "60"}
    server.store.insert("b", "locks/apt", draft_of(b"", {}, newer))
    for now in ([], ["--now"]):
        done = bucket.run("break", bucket.url(), "--reason", "x", "--yes", *now)
        assert (done.code, done.out) == (69, "")
        assert "has version 2" in done.err.splitlines()[-1]
    assert dict(server.objects("b")["locks/apt"].draft.metadata) == newer


# --- history --------------------------------------------------------------------------------------------------------


def test_history_shows_who_broke_what_the_newest_last(shell: Shell) -> None:
    for key, by in (("b", "anna"), ("a", "bert"), ("b", "cara")):
        shell.hold(key, owner="ci/7")
        with shell.client() as client:
            client.lock(key).break_lease(reason=f"because {by}", by=by, now=True)
    said = shell.run("history", "--json", shell.store).lines
    assert [tuple(entry) for entry in said] == [ENTRY] * 3
    assert [(entry["key"], entry["by"]) for entry in said] == [("b", "anna"), ("a", "bert"), ("b", "cara")]
    assert said[0]["reason"] == "because anna"
    assert (said[0]["what"], said[0]["owner"]) == ("removed", "ci/7")
    assert INSTANT.fullmatch(said[0]["at"])
    assert isinstance(said[0]["token"], int)
    done = shell.run("history", f"{shell.store}#b")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["AT", "KEY", "WHAT", "BY", "REASON", "OWNER", "TOKEN"]
    assert [line.split()[3:6] for line in lines[1:]] == [["b", "removed", "anna"], ["b", "removed", "cara"]]
    assert "because anna" in lines[1]


def test_a_store_without_a_history_says_so(files: Shell) -> None:
    files.hold()
    done = files.run("history", files.store)
    assert (done.code, done.out, done.err) == (0, "", "lockstead: no broken leases recorded\n")


# --- the terminal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", ["", "NO_COLOR=1 ", "TERM=dumb "])
def test_tables_are_coloured_only_on_a_terminal_that_allows_it(files: Shell, plain: str) -> None:
    with files.client() as client:
        client.lock("apt", owner="ci/7", purpose="[red]publish", alert_after=0.001, expected=60).acquire(0).detach()
    until(lambda: files.run("list", "--json", files.store).lines[0]["state"] == "overdue")
    assert "\x1b" not in files.run("list", files.store).out
    commands = f"{PROGRAM} list '{files.store}'; {PROGRAM} inspect '{files.url()}'; echo done"
    with Screen(files.where, f"export TERM=xterm-256color {plain}; {commands}") as screen:
        screen.shows("done")
        shown = screen.read()
    assert "[red]publish" in shown
    assert "overdue" in shown
    assert ("\x1b[1moverdue\x1b[0m" in shown) is (not plain)
    assert ("\x1b[31m" in shown) is (not plain)


def test_a_pipe_that_ends_early_is_no_failure(files: Shell) -> None:
    for number in range(3):
        files.hold(f"a{number}")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {PROGRAM} list '{files.store}' | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""
