"""Semaphores at the command line: `lockstead permits`, `run -n`, and what the other commands make of them."""

from __future__ import annotations

import pytest

import lockstead
from lockstead import LeaseTicket
from lockstead.views import LockInfo
from tests.cli.shell import PROGRAM, Done, Shell


def holding(files: Shell, limit: int = 3, held: int = 2) -> list[object]:
    """Hold permits from here."""
    client = files.client()
    leases = [
        client.semaphore("apt", limit, owner=f"ci/{number}", purpose="import").acquire() for number in range(held)
    ]
    return [client, *leases]


def test_a_semaphore_is_shown_with_its_holders(files: Shell) -> None:
    kept = holding(files)
    shown = files.run("permits", files.url())
    assert (shown.code, shown.err) == (0, "")
    first, *others = shown.out.splitlines()
    assert first == "apt is a semaphore: 2 of 3 permits held"
    slots = sorted(lease.slot for lease in kept[1:])  # type: ignore[attr-defined]
    assert [line.split()[:2] for line in others] == [["slot", f"{slot}"] for slot in slots]
    assert all(", import, token " in line for line in others)
    assert files.run("inspect", files.url()).out.splitlines()[0] == first


def test_a_listing_says_how_many_are_held(files: Shell) -> None:
    kept = holding(files)
    with files.client() as client, client.lock("other").hold():
        head, row, other = files.run("list", files.store).out.splitlines()
    assert head.split()[:3] == ["KEY", "STATE", "OWNER"]
    assert row.startswith("apt    2 of 3  ci/")
    assert row.endswith("semaphore")
    assert other.split()[:2] == ["other", "held"]
    del kept


def test_a_semaphore_is_json_with_its_holders_in_it(files: Shell) -> None:
    kept = holding(files, limit=2)
    for words in (("permits", "--json", files.url()), ("inspect", "--json", files.url())):
        said = files.run(*words).said
        assert (said["key"], said["state"], said["owner"], said["slot"]) == ("apt", "held", None, None)
        permits = said["permits"]
        assert (permits["limit"], permits["free"], permits["next_waiter"]) == (2, 0, None)
        assert [one["slot"] for one in permits["held"]] == [0, 1]
        assert [one["sequencer"] for one in permits["held"]] == [
            f"{one['token']}:permit/{one['slot']}:apt" for one in permits["held"]
        ]
    (listed,) = files.run("list", "--json", files.store).lines
    assert listed["permits"]["limit"] == 2
    del kept


def test_the_exit_code_tells_whether_a_permit_is_free(files: Shell) -> None:
    kept = holding(files, limit=2, held=1)
    assert files.run("inspect", "--exit-code", files.url()).code == 0
    kept += [files.client().semaphore("apt", 2).acquire()]
    assert files.run("inspect", "--exit-code", files.url()).code == 75


def test_the_limit_is_set_closed_and_the_semaphore_removed(files: Shell) -> None:
    assert files.run("run", "-n", "3", files.url(), "--", "true").code == 0
    assert files.run("permits", files.url(), "--set", "5").out == "apt is a semaphore: 0 of 5 permits held\n"
    assert files.run("permits", files.url(), "--set", "0").out == "apt is a closed semaphore: its limit is 0\n"
    files.run("run", "-n", "3", "--timeout", "0", files.url(), "--", "true").fails(75, "is closed: its limit is 0")
    done = files.run("permits", files.url(), "--remove", "--json")
    assert (done.code, done.said["done"], done.said["permits"], done.said["state"]) == (0, True, None, "free")
    assert files.run("permits", files.url()).out == "there is no semaphore apt\n"


def test_holders_above_a_lowered_limit_are_told_and_waited_for(files: Shell) -> None:
    kept = holding(files, limit=3, held=3)
    done = files.run("permits", files.url(), "--set", "1")
    assert done.code == 75
    assert done.err == "lockstead: the limit is 1: permits above the limit are still held\n"
    assert done.out.splitlines()[0] == "apt is a semaphore: 1 of 1 permits held"
    assert sum("above the limit" in line for line in done.out.splitlines()) == 2
    waiting = files.start("permits", files.url(), "--set", "1", "--wait", "1m", "--json")
    for lease in kept[1:]:
        if lease.slot:  # type: ignore[attr-defined]
            lease.release()  # type: ignore[attr-defined]
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (0, "")
    assert '"done": true' in out
    done = files.run("permits", files.url(), "--remove")
    assert done.code == 75
    assert done.err == "lockstead: it is closed, but not removed: permits above the limit are still held\n"


def test_one_permit_is_broken(files: Shell) -> None:
    kept = holding(files, limit=2, held=2)
    done = files.run("break", files.url(), "--slot", "1", "--reason", "stuck", "--now", "--yes", "--json")
    assert (done.code, done.said["removed"], done.said["was"]["slot"]) == (0, True, 1)
    said = files.run("permits", "--json", files.url()).said["permits"]
    assert [one["slot"] for one in said["held"]] == [0]
    assert len(files.run("history", "--json", files.url()).lines) == 1
    assert files.run("break", files.url(), "--slot", "1", "--reason", "stuck", "--yes").err.endswith(
        "nothing to break\n"
    )
    files.run("break", files.url(), "--reason", "stuck", "--yes").fails(69, "'apt' is a semaphore with 2 permits")
    del kept


def test_a_command_runs_with_a_permit(files: Shell) -> None:
    script = 'echo "$LOCKSTEAD_SLOT $LOCKSTEAD_SEQUENCER"; echo "$LOCKSTEAD_TICKET"'
    done = files.run("run", "-n", "2", files.url(), "--", "sh", "-c", script)
    assert done.code == 0, done
    slot, sequencer = done.out.split("\n")[0].split()
    assert slot in ("0", "1")
    assert sequencer.endswith(f":permit/{slot}:apt")
    assert LeaseTicket.parse(done.out.split("\n")[1]).slot == int(slot)


def test_a_lock_inside_a_permit_inherits_no_slot(files: Shell) -> None:
    inner = f"{PROGRAM} run '{files.url('other')}' -- sh -c 'echo [$LOCKSTEAD_SLOT]'"
    assert files.run("run", "-n", "1", files.url(), "--", "sh", "-c", inner).out == "[]\n"


def test_a_command_waits_for_a_permit_and_not_longer_than_it_may(files: Shell) -> None:
    kept = holding(files, limit=2, held=2)
    done = files.run("run", "-n", "2", "--timeout", "0.2", files.url(), "--", "true")
    done.fails(75, "'apt': all 2 permits are held by 'ci/")
    files.run("run", "--timeout", "0", files.url(), "--", "true").fails(69, "'apt' is a semaphore with 2 permits")
    files.run("run", "-n", "3", "--timeout", "0", files.url(), "--", "true").fails(
        69, "has 2 permits, this process expects 3"
    )
    del kept


def test_a_permit_is_held_through_several_steps(files: Shell) -> None:
    said = files.run("acquire", "-n", "2", "--json", files.url()).said
    ticket = LeaseTicket.parse(said["ticket"])
    assert (said["slot"], said["sequencer"]) == (ticket.slot, f"{said['token']}:permit/{ticket.slot}:apt")
    other = files.acquire("-n", "2")
    files.run("acquire", "-n", "2", "--timeout", "0", files.url()).fails(75, "'apt': all 2 permits are held by")
    assert files.run("renew", other).code == 0
    assert files.run("release", other).code == 0
    shown = files.run("permits", "--json", files.url()).said["permits"]
    assert [one["slot"] for one in shown["held"]] == [ticket.slot]
    assert files.run("acquire", files.url()).code == 69


@pytest.mark.parametrize("command", ["run", "acquire"])
def test_another_limit_is_refused_followed_or_set(files: Shell, command: str) -> None:
    with files.client() as client:
        client.semaphore("apt", 2).acquire().release()

    def with_limit(limit: str, *words: str) -> Done:
        done = files.run(command, "-n", limit, *words, files.url(), *(["--", "true"] if command == "run" else []))
        if command == "acquire" and done.code == 0:
            files.run("release", done.out.strip())
        return done

    for words in ((), ("--on-mismatch", "refuse")):
        with_limit("3", *words).fails(69, "has 2 permits, this process expects 3")
    followed = with_limit("3", "--on-mismatch", "follow")
    assert followed.code == 0
    assert "has 2 permits" in followed.err
    assert with_limit("3", "--on-mismatch", "resize").code == 0
    assert files.run("permits", "--json", files.url()).said["permits"]["limit"] == 3


def test_wait_ends_when_a_permit_is_free(files: Shell) -> None:
    kept = holding(files, limit=2, held=2)
    files.run("wait", "--timeout", "0.2", files.url()).fails(75, "'apt': all 2 permits are held")
    done = files.run("wait", "--timeout", "0", "--json", files.url())
    assert (done.code, done.said["state"], done.said["permits"]["free"]) == (75, "held", 0)
    waiting = files.start("wait", "--json", files.url())
    assert waiting.poll() is None
    lease = kept[1]
    assert isinstance(lease, lockstead.Lease)
    lease.release()
    done = files.ended(waiting)
    assert (done.code, done.said["state"], done.said["permits"]["free"]) == (0, "free", 1)
    files.run("permits", "--set", "0", files.url())
    files.run("wait", "--timeout", "0", files.url()).fails(75, "'apt': it is a closed semaphore: its limit is 0")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("run", "-n", "2", "--shared", "URL", "--", "true"), 64, "no two holders share: leave out --shared"),
        (("acquire", "-n", "2", "--shared", "URL"), 64, "no two holders share: leave out --shared"),
        (("run", "--on-mismatch", "follow", "URL", "--", "true"), 64, "--on-mismatch belongs to -n N"),
        (("acquire", "--on-mismatch", "follow", "URL"), 64, "--on-mismatch belongs to -n N"),
        (("acquire", "-n", "2", "--on-mismatch", "x", "URL"), 64, "'x' is not one of 'refuse', 'follow', 'resize'"),
        (("acquire", "-n", "0", "URL"), 64, "permits is 0; it must be at least 1"),
        (("permits", "URL", "--set", "-1"), 64, "permits is -1; it must be at least 0 and at most 10000"),
        (("permits", "URL", "--set", "x"), 64, "'x' is not a valid integer"),
        (("permits", "URL", "--set", "2", "--remove"), 64, "--set and --remove exclude each other"),
        (("permits", "URL", "--wait", "2"), 64, "--wait belongs to --set or --remove"),
        (("permits", "URL", "--set", "3"), 69, "there is no semaphore 'apt'"),
        (("permits", "URL", "--remove"), 69, "there is no semaphore 'apt'"),
        (("break", "URL", "--slot", "-1", "--reason", "x", "--yes"), 64, "slot is -1; slots are numbered from 0"),
        (("run", "-n", "0", "URL", "--", "true"), 64, "permits is 0; it must be at least 1"),
    ],
)
def test_what_is_wrong_is_one_clear_line(files: Shell, words: tuple[str, ...], code: int, line: str) -> None:
    with files.client() as client, client.lock("other").hold():  # so that the file is there
        pass
    files.run(*(files.url() if word == "URL" else word for word in words)).fails(code, line)


def test_a_semaphore_on_a_locks_key_is_refused(files: Shell) -> None:
    with files.client() as client, client.lock("apt", owner="me").hold():
        files.run("permits", files.url()).fails(69, "'apt' is a lock, held by 'me'; a semaphore needs another key")


def test_a_semaphore_is_no_foreign_record() -> None:
    from lockstead.views import Permits, semaphore_info

    shown = semaphore_info(Permits("api", 3, ()))
    assert isinstance(shown, LockInfo)
    assert not shown.is_foreign


def test_a_semaphore_is_not_broken_as_a_whole_and_its_permits_are_named(files: Shell) -> None:
    with files.client() as client:
        kept = [client.semaphore("apt", 12, owner=f"ci/{number}").acquire() for number in range(11)]
        first = min(kept, key=lambda lease: lease.slot if lease.slot is not None else 99)
        done = files.run("break", files.url(), "--reason", "stuck", "--yes")
        owner = first.holder.rpartition("/")[0]
        shown = f"'apt' is a semaphore with 12 permits; name the one to break: --slot {first.slot} (of '{owner}')"
        done.fails(69, shown)
        assert "and 1 more, see 'lockstead permits'" in done.err
        assert all(lease.is_held for lease in kept)
        for lease in kept:
            lease.release()
    files.run("break", files.url(), "--reason", "stuck", "--yes", "--now").fails(69, "none is held")
