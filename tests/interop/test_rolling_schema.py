"""SQLite files of other versions: an older one opens as it is, a newer one is refused and unharmed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import lockstead
from lockstead.stores.bootclock import BootIdentity as Clock
from lockstead.stores.bootclock import boot_now
from lockstead.stores.sqlite.file import SCHEMA_VERSION
from lockstead.values import LeaseOutcome, LeaseTicket
from tests.interop.recordings import FOLDER

DUMP = (FOLDER / "lockstead-e829f36.sql").read_text()
"""What commit e829f36 left in its file. The schema is that of version 1."""

KEYS = ["closing", "full", "plain", "revoked"]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The recorded file; its machine was switched off meanwhile."""
    path = tmp_path / "locks.db"
    with sqlite3.connect(path) as database:
        database.executescript(DUMP)
    database.close()
    return path


@pytest.fixture
def living(recorded: Path) -> Path:
    """The recorded file as if those who hold its locks ran on this machine now."""
    here = Clock.here()
    with sqlite3.connect(recorded) as database:
        database.execute(
            "UPDATE record SET updated = ?, boot = ?, namespace = ?",
            (boot_now(), here.boot or "", here.namespace or ""),
        )
    database.close()
    return recorded


def test_h30_a_file_of_an_earlier_version_keeps_its_locks(living: Path) -> None:
    with lockstead.connect(f"sqlite:///{living}") as client:
        assert [shown.key for shown in client.list()] == KEYS
        for key in KEYS:
            assert client.lock(key, owner="ours").try_acquire() is None
        full, revoked, closing = (client.lock(key).inspect() for key in ("full", "revoked", "closing"))
        assert full is not None
        assert (full.owner, full.purpose, full.labels["team"]) == ("recorder:full", "publish APT packages", "packages")
        assert revoked is not None
        assert revoked.revoked_by == "operator"
        assert closing is not None
        assert closing.closing
        (entry,) = client.history()
        assert (entry.key, entry.what, entry.reason) == ("revoked", "revoked", "for the record")
        with client.lock("new").acquire(timeout=10) as lease:
            assert int(lease.sequencer().token) > max(shown.token or 0 for shown in client.list() if shown.key != "new")


def test_h30_after_another_boot_what_an_earlier_version_held_is_free(recorded: Path) -> None:
    with lockstead.connect(f"sqlite:///{recorded}") as client:
        for key in KEYS:
            with client.lock(key, owner="ours").acquire(timeout=10) as lease:
                assert lease.previous_lease is not None
                assert lease.previous_lease.ending is (
                    LeaseOutcome.REVOKED if key == "revoked" else LeaseOutcome.EXPIRED
                )


def tickets(path: Path) -> dict[str, LeaseTicket]:
    """Return the recorded tickets, for where the file is now."""
    said = [line.split()[2:] for line in DUMP.splitlines() if line.startswith("-- ticket ")]
    read = {key: LeaseTicket.parse(text) for key, text in said}
    return {
        key: LeaseTicket(f"sqlite:///{path}", one.key, one.holder, one.incarnation, one.ttl)
        for key, one in read.items()
    }


def test_h30_a_ticket_of_an_earlier_version_works(living: Path) -> None:
    with lockstead.connect(f"sqlite:///{living}") as client:
        ticket = tickets(living)["plain"]
        with client.lock("plain").attach(ticket) as lease:
            assert lease.holder == ticket.holder
            assert client.verify(lease.sequencer())
        assert client.release(ticket)
        assert client.lock("plain").inspect() is None


def test_h27_h30_members_of_an_earlier_version_are_waited_for(living: Path) -> None:
    with lockstead.connect(f"sqlite:///{living}") as client:
        assert client.release(tickets(living)["full"], drain=0.3) is False
        shown = client.lock("full").inspect()
        assert shown is not None
        assert shown.closing


def test_h30_a_file_of_a_newer_version_is_refused_and_unchanged(recorded: Path) -> None:
    with sqlite3.connect(recorded) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        database.execute("ALTER TABLE record ADD COLUMN shiny TEXT")
    database.close()
    before = recorded.read_bytes()
    with lockstead.connect(f"sqlite:///{recorded}") as client:
        for ask in (
            client.lock("plain").try_acquire,
            client.lock("free").try_acquire,
            client.lock("plain").inspect,
            client.list,
            lambda: client.lock("plain").break_lease(reason="a test", now=True),
            lambda: client.release(tickets(recorded)["plain"]),
        ):
            with pytest.raises(lockstead.StoreRefused, match=r"of version 2, newer than this one reads \(1\)") as no:
                ask()
            assert "upgrade lockstead" in str(no.value)
            assert "\n" not in str(no.value)
    assert recorded.read_bytes() == before
    assert [one.name for one in recorded.parent.iterdir()] == [recorded.name]


def test_the_schema_is_still_the_recorded_one(tmp_path: Path, recorded: Path) -> None:
    """Version 1 is recorded: a change of one of its tables needs a new version."""
    with lockstead.connect(f"sqlite:///{tmp_path}/new.db") as client:
        client.lock("apt").acquire(timeout=10).release()
    schemas = []
    for path in (tmp_path / "new.db", recorded):
        with sqlite3.connect(path) as database:
            tables = database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
            version = database.execute("PRAGMA user_version").fetchone()
        database.close()
        schemas.append((version, [(name, " ".join(sql.split())) for name, sql in tables if sql]))
    assert schemas[0] == schemas[1]
