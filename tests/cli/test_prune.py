"""`lockstead prune`: what it removes, what it shows, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstead import Client
from lockstead.cli.prune import _rounds
from lockstead.protocol.commands import Create, StoreClock
from lockstead.protocol.record import Record, encode
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name, Space
from tests.cli.shell import Shell

DEAD = encode(Record("ci/1", 0.001, owner="ci"))


def left_by_the_dead(files: Shell) -> None:
    """Leave a registration, a lock of a process that died, and an old entry of the history."""
    with files.client() as client:
        store = client._engine.store
        store.perform(Create(Name("apt", Space.MEMBER, "1/ab"), DEAD), 5.0)
        store.perform(Create(Name("apt"), DEAD), 5.0)
        store.perform(
            Create(Name("apt", Space.AUDIT, "00000000000001-x"), {"v": "1", "at": "0", "what": "revoked"}), 5.0
        )


def test_a_dry_run_shows_what_a_run_then_removes(files: Shell) -> None:
    left_by_the_dead(files)
    asked = ("prune", "--older-than", "0", "--history-older-than", "0", files.store)
    shown = files.run(*asked, "--dry-run")
    assert (shown.code, shown.out.splitlines()) == (
        0,
        [
            "KIND           WOULD BE REMOVED",
            "registrations  1",
            "history        1",
            "KIND           NAME",
            "registrations  apt 1/ab",
            "history        apt 00000000000001-x",
        ],
    )
    done = files.run(*asked)
    assert (done.code, done.out.splitlines()) == (0, ["KIND           REMOVED", "registrations  1", "history        1"])
    assert done.err == (
        "lockstead: kept records that tell the next holder of a lost or broken lease: 1; --forget-unclean moves that "
        "into the history\n"
    )
    assert files.run(*asked).err.startswith("lockstead: there is nothing to remove\n")


def test_a_lost_lease_is_forgotten_on_demand_only_and_the_history_has_it(files: Shell) -> None:
    left_by_the_dead(files)
    done = files.run("prune", "--older-than", "0", "--forget-unclean", "--json", files.store)
    said = done.said
    assert (said["removed"]["locks"], said["kept"]["unclean"]) == (1, 0)
    assert {"kind": "locks", "name": "apt"} in said["names"]
    [entry] = [one for one in files.run("history", "--json", files.store).lines if one["what"] == "forgotten"]
    assert (entry["key"], entry["owner"]) == ("apt", "ci")
    assert files.run("inspect", files.url()).out.startswith("apt is free")


def test_by_default_a_week_and_a_year_are_kept(files: Shell) -> None:
    left_by_the_dead(files)
    assert files.run("prune", "--json", files.store).said["removed"] == dict.fromkeys(
        ("registrations", "groups", "locks", "permits", "turns", "history", "queues", "scratch", "companions"), 0
    )


def test_held_locks_stay(files: Shell) -> None:
    files.hold()
    assert files.run("prune", "--older-than", "0", "--forget-unclean", files.store).out == ""
    assert "is held" in files.run("inspect", files.url()).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--older-than", "soon"),
            "--older-than 'soon' is not a duration; write seconds, '5m', '1h30m' or ISO 8601 ('PT5M')",
        ),
        (("--per-second", "0"), "per_second must be above 0 and at most 10000, not 0.0"),
        (("--per-second", "nan"), "per_second must be above 0 and at most 10000, not nan"),
    ],
)
def test_bad_input_is_one_line(files: Shell, words: tuple[str, ...], message: str) -> None:
    done = files.run("prune", *words, files.store)
    assert (done.code, done.err.count("\n")) == (64, 1)
    assert message in done.err


def test_a_lock_is_not_a_store(files: Shell) -> None:
    done = files.run("prune", files.url())
    assert (done.code, done.err.count("\n")) == (64, 1)
    assert "prune cleans a whole store: leave out '#apt'" in done.err


class Clockless(MemoryStore):
    """A store that shows no age, like ZooKeeper and Cassandra."""

    traits = replace(MemoryStore.traits, clock=StoreClock.NONE)


def test_where_the_store_shows_no_age_the_records_are_watched_for_as_long_as_asked() -> None:
    asked = {"older_than": 0, "per_second": 1000}
    store = Clockless()
    store.perform(Create(Name("apt", Space.MEMBER, "1/ab"), encode(Record("ci/1", 0.2))), 5.0)
    with Client(store) as client:
        (only,) = _rounds(client, asked, 0.0)
        assert (only.kept["undecided"], only.removed["registrations"]) == (1, 0)
        assert only.again_in is not None
        *_before, last = _rounds(client, asked, 60.0)
        assert (last.kept["undecided"], last.removed["registrations"], last.again_in) == (0, 1, None)
