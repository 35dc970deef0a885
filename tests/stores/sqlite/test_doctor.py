"""What an examination finds of a SQLite file, its disk and the clock."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lockstead.stores.bootclock import BootIdentity
from lockstead.stores.examination import Finding, Severity
from lockstead.stores.sqlite.doctor import CHILD, examination

HERE = BootIdentity.here()


def found(path: Path, place: BootIdentity = HERE, child: str = CHILD) -> dict[str, Finding]:
    return {finding.check: finding for finding in examination(path, place, 10.0, child)}


def test_a_file_on_a_local_disk_is_ok_and_says_that_it_was_made(tmp_path: Path) -> None:
    first, second = found(tmp_path / "locks.db"), found(tmp_path / "locks.db")
    assert "was made" in first["file"].text
    assert "can be written" in second["file"].text
    severities = {finding.severity for finding in second.values()}
    # a container's own layer is worth a note
    assert severities <= {Severity.OK, Severity.NOTE}
    assert second["file.processes"].severity is Severity.OK


@pytest.mark.parametrize(
    ("place", "check"),
    [(BootIdentity(None, "time:[1]+0"), "clock.boot"), (BootIdentity("boot", None), "clock.namespace")],
)
def test_a_missing_boot_clock_is_a_warning_with_its_consequences(
    tmp_path: Path, place: BootIdentity, check: str
) -> None:
    finding = found(tmp_path / "locks.db", place)[check]
    assert finding.severity is Severity.WARNING
    assert "whole ttl" in finding.text


def test_locks_that_do_not_hold_between_processes_are_a_failure(tmp_path: Path) -> None:
    # a child with another file in its hands does not see our lock, as on a file system without locks
    child = CHILD.replace("sys.argv[1]", "sys.argv[1] + '.other'")
    with sqlite3.connect(tmp_path / "locks.db.other") as other:
        other.execute("CREATE TABLE meta (granted)")
        other.execute("INSERT INTO meta VALUES (0)")
    other.close()
    finding = found(tmp_path / "locks.db", child=child)["file.processes"]
    assert finding.severity is Severity.FAILURE
    assert "did not exclude another one" in finding.text


def test_writes_that_another_process_does_not_see_are_a_failure(tmp_path: Path) -> None:
    child = CHILD.replace('print("free", seen', 'print("free", seen - 1')
    finding = found(tmp_path / "locks.db", child=child)["file.processes"]
    assert finding.severity is Severity.FAILURE
    assert "does not see what was written" in finding.text


def test_a_damaged_file_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    found(path)
    fields = '{"x": "' + "y" * 900 + '"}'
    with sqlite3.connect(path) as one:
        rows = [(str(n), fields) for n in range(50)]
        one.executemany("INSERT INTO record VALUES ('lock', ?, '', 1, 1, 0, '', '', ?)", rows)
    one.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    one.close()
    raw = path.read_bytes()
    # one page of records, and not the first: the file can still be opened
    page = 4096
    at = next(n for n in range(2, len(raw) // page) if b"yyyy" in raw[n * page : (n + 1) * page])
    path.write_bytes(raw[: at * page] + b"\xff" * page + raw[(at + 1) * page :])
    finding = found(path)["file.damage"]
    assert finding.severity is Severity.FAILURE
    assert "remove it" in finding.remedy
