"""Shared locks on the command line: readers overlap, a writer waits for them, each is shown and can be broken."""

from __future__ import annotations

import json
import re
import signal

import lockstead
from lockstead.cli.format import READER_FACTS
from tests.cli.conftest import PATIENT, Runs, until
from tests.cli.shell import PROGRAM, Shell


def readers(shell: Shell, count: int = 2, **settings: str) -> list[str]:
    """Let readers hold the lock, without renewals; return their tickets."""
    return [shell.hold(mode="shared", owner=f"ci/{number}", **settings) for number in range(1, count + 1)]


def name_of(ticket: str) -> str:
    return lockstead.LeaseTicket.parse(ticket).holder


def is_wanted(shell: Shell) -> bool:
    with shell.client() as client:
        held = client.lock("apt").inspect()
        return held is not None and held.wanted_by is not None


def test_two_runs_share_a_lock_and_a_writer_waits_for_both(runs: Runs) -> None:
    first = runs.script(PATIENT, "--shared")
    first.ready()
    look = f"echo \"$LOCKSTEAD_MODE $LOCKSTEAD_SEQUENCER\"; {PROGRAM} inspect --json '{runs.url}'"
    code, out, err = runs.start("--shared", "--", "sh", "-c", look).outcome()
    told, shown = out.splitlines()
    said = json.loads(shown)
    assert (code, err, told) == (0, "", f"shared {said['sequencer']}")
    assert (said["state"], said["mode"], len(said["readers"])) == ("held", "shared", 2)
    assert runs.start("--timeout", "0", "--", "true").code() == 75
    writer = runs.start("--", "sh", "-c", "echo $LOCKSTEAD_MODE")
    with lockstead.connect(f"sqlite:///{runs.where}/locks.db") as client:
        until(lambda: (held := client.lock("apt").inspect()) is not None and held.wanted_by is not None)
    code, _out, err = runs.start("--shared", "-v", "--timeout", "0.5", "--", "true").outcome()
    assert code == 75
    assert re.search(r"waiting for 'apt', held by 'readers' for .*, and '.*' waits for them\n", err), err
    assert re.search(r"'apt' is held by readers for .*, and '.*' waits for them; waited", err), err
    assert writer.process.poll() is None
    first.send(signal.SIGTERM)
    assert writer.outcome()[:2] == (0, "exclusive\n")


def test_a_run_of_a_reader_inside_a_readers_run_warns_of_a_writer(runs: Runs) -> None:
    runs.environment = {"LOCKSTEAD_KEY": "apt", "LOCKSTEAD_STORE": f"sqlite:///{runs.where}/locks.db"}
    runs.environment["LOCKSTEAD_MODE"] = "shared"
    warned = {shared: runs.start(*shared, "--", "true").outcome()[2] for shared in ((), ("--shared",))}
    assert "took 'apt': while it holds it, this one waits for itself" in warned[()]
    assert "took 'apt': as soon as a writer waits, this one waits for itself" in warned["--shared",]


def test_inspect_and_list_show_each_reader_and_the_writer_that_waits(shell: Shell) -> None:
    tickets = readers(shell, 4, purpose="look")
    waiting = shell.start("acquire", shell.url(), "--owner", "etl/9")
    until(lambda: is_wanted(shell))
    shell.run("renew", tickets[0], "--progress", "half")
    lines = shell.run("inspect", shell.url()).out.splitlines()
    assert lines[0] == "apt is held by 4 readers"
    told = {line[2:11].strip(): line[13:] for line in lines[1:]}
    assert re.fullmatch("by etl/9/[0-9a-f]{16}, before any further reader", told["wanted"])
    shown = lines[-4:]
    assert shown[0].startswith(f"  reader     {name_of(tickets[0])} for ")
    assert shown[0].endswith("(look) [half]")
    assert [line[2:11].strip() for line in shown[1:]] == ["", "", ""]
    said = shell.run("inspect", "--json", shell.url()).said
    assert (said["state"], said["mode"], said["wanted_by"][:6]) == ("held", "shared", "etl/9/")
    assert said["sequencer"] == f"{said['token']}:shared:apt"
    assert all(tuple(reader) == READER_FACTS for reader in said["readers"])
    assert [(one["owner"], one["holder"]) for one in said["readers"]] == [
        (f"ci/{number}", name_of(ticket)) for number, ticket in enumerate(tickets, 1)
    ]
    row = shell.run("list", shell.store).out.splitlines()[1]
    assert re.split(" {2,}", row)[:3] == ["apt", "shared 4", "ci/1, ci/2, ci/3, ..."]
    assert row.endswith(f"  {said['token']}  wanted by etl/9")
    for ticket in tickets:
        assert shell.run("release", ticket).code == 0
    assert shell.ended(waiting).code == 0
    said = shell.run("inspect", "--json", shell.url()).said
    assert (said["mode"], said["readers"], said["wanted_by"]) == ("exclusive", None, None)


def test_an_empty_group_is_free(shell: Shell) -> None:
    (ticket,) = readers(shell, 1)
    assert shell.run("release", ticket).code == 0
    assert shell.run("inspect", "--json", shell.url()).said["state"] == "free"
    assert shell.run("list", "--json", shell.store).lines == []
    assert shell.run("wait", "--json", "--timeout", "0", shell.url()).said["state"] == "free"


def test_free_for_a_reader_is_not_free_for_a_writer(shell: Shell) -> None:
    readers(shell)
    assert shell.run("wait", "--shared", "--timeout", "0", shell.url()).code == 0
    done = shell.run("wait", "--json", "--timeout", "0", shell.url())
    assert (done.code, done.said["state"], done.said["mode"]) == (75, "held", "shared")
    shell.start("acquire", shell.url())
    until(lambda: is_wanted(shell))
    shell.run("wait", "--shared", "--timeout", "0", shell.url()).fails(75, "waits for them")


def test_a_readers_ticket_serves_every_step(shell: Shell) -> None:
    first, second = (shell.acquire("--shared", "--owner", f"ci/{number}") for number in (1, 2))
    assert lockstead.LeaseTicket.parse(first).mode == "shared"
    assert shell.run("renew", first).code == 0
    assert shell.run("release", first).code == 0
    # the other reader's lease is none of its business, and does not keep it
    shell.run("release", first).fails(76, "cannot release")
    shell.run("renew", first).fails(76, "cannot renew")
    assert shell.run("acquire", "--timeout", "0", shell.url()).code == 75
    assert shell.run("release", second).code == 0
    assert shell.run("acquire", "--timeout", "0", shell.url()).code == 0


def test_break_of_one_reader_leaves_the_others(shell: Shell) -> None:
    first, second = readers(shell)
    held = shell.run("inspect", "--json", shell.url()).said
    shell.run("break", shell.url(), "--reason", "stuck", "--yes", "--reader", "ci/1").fails(
        75, "'apt' has no reader 'ci/1', nothing was broken; 'lockstead inspect' shows its readers"
    )
    done = shell.run("break", shell.url(), "--reason", "stuck", "--yes", "--reader", name_of(first))
    assert done.code == 0, done
    assert done.err.splitlines()[0] == "apt is held by ci/1"
    assert done.out.startswith(f"reader {name_of(first)} of apt is revoked. Its holder finds out at its next renewal;")
    shell.run("renew", first).fails(76, "REVOKED")
    assert shell.run("renew", second).code == 0
    states = {one["owner"]: one["state"] for one in shell.run("inspect", "--json", shell.url()).said["readers"]}
    assert states == {"ci/1": "revoked", "ci/2": "held"}
    said = shell.run("break", shell.url(), "--reason", "x", "--now", "--yes", "--json", "--reader", name_of(first)).said
    assert (said["broken"], said["removed"], said["was"]["owner"]) == (True, True, "ci/1")
    assert said["was"]["token"] == held["token"]
    assert [one["owner"] for one in shell.run("inspect", "--json", shell.url()).said["readers"]] == ["ci/2"]
    history = shell.run("history", "--json", shell.store).lines
    assert [(one["owner"], one["token"]) for one in history] == [("ci/1", held["token"])] * 2


def test_break_of_a_shared_lock_breaks_all_readers(shell: Shell) -> None:
    tickets = readers(shell)
    done = shell.run("break", shell.url(), "--reason", "stuck", "--yes")
    assert done.code == 0, done
    assert done.err.splitlines()[0] == "apt is held by 2 readers"
    assert done.out.startswith("apt is revoked. Each reader finds out at its next renewal;")
    for ticket in tickets:
        shell.run("renew", ticket).fails(76, "REVOKED")
    assert shell.run("inspect", shell.url()).out.startswith("apt is held by 2 readers, but was revoked\n")
    assert shell.run("break", shell.url(), "--reason", "stuck", "--yes", "--now").code == 0
    assert shell.run("acquire", "--timeout", "0", shell.url()).code == 0


def test_a_permit_is_no_reader(files: Shell) -> None:
    files.run("run", "-n", "2", "--shared", files.url(), "--", "true").fails(64, "no two holders share")
    words = ("--reason", "stuck", "--yes", "--slot", "0", "--reader", "ci/1/x")
    files.run("break", files.url(), *words).fails(64, "--slot is for a semaphore, --reader for a shared lock")


def test_a_reader_of_an_exclusive_lock_is_not_found(files: Shell) -> None:
    ticket = files.hold(owner="ci/1")
    files.run("break", files.url(), "--reason", "stuck", "--yes", "--reader", name_of(ticket)).fails(
        75, "nothing was broken; it is held by 'ci/1'"
    )
