"""What readers, writers and permits are admitted to, whatever keeps the highest sequencer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockstead import FenceGuard, LeaseLost, LossReason, Sequencer, SqlFenceStore
from lockstead.fencing import GcsFenceStore


@pytest.fixture(params=["memory", "row", "object"])
def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FenceGuard]:
    match request.param:
        case "memory":
            yield FenceGuard()
        case "object":
            yield FenceGuard(GcsFenceStore(request.getfixturevalue("bucket").blob("index")))
        case _:
            with closing(sqlite3.connect(tmp_path / "data.db")) as data:
                SqlFenceStore(data).create_table()
                yield FenceGuard(SqlFenceStore(data))


many_fences = pytest.mark.parametrize("guard", ["memory", "row"], indirect=True)


def test_a_reader_may_not_write_and_is_told_what_to_use(guard: FenceGuard) -> None:
    with pytest.raises(
        ValueError, match=r"^'9:shared:apt' is a reader's, and a reader may not write: use admit_reader$"
    ):
        guard.admit("9:shared:apt")
    guard.admit("7:exclusive:apt")


def test_h17_a_late_writer_is_refused_before_it_changes_what_a_reader_reads(guard: FenceGuard) -> None:
    guard.admit("7:exclusive:apt")
    guard.admit_reader("9:shared:apt")
    with pytest.raises(LeaseLost, match="token 7 of 'apt' is superseded: 9 was admitted before") as caught:
        guard.admit("7:exclusive:apt")
    assert (caught.value.reason, caught.value.key, caught.value.token) == (LossReason.TAKEN, "apt", 7)
    guard.admit_reader(Sequencer("apt", 9, "shared"))


def test_h17_a_late_reader_is_refused_after_the_next_writer(guard: FenceGuard) -> None:
    guard.admit_reader("7:shared:apt")
    guard.admit("9:exclusive:apt")
    for late in ("7:shared:apt", "8:exclusive:apt"):
        with pytest.raises(LeaseLost, match="is superseded: 9"):
            guard.admit_reader(late)
    guard.admit("9:exclusive:apt")


def test_a_writer_may_read_and_then_write(guard: FenceGuard) -> None:
    guard.admit_reader("7:exclusive:apt")
    guard.admit("7:exclusive:apt")
    with pytest.raises(LeaseLost):
        guard.admit_reader("6:shared:apt")


def test_a_downgraded_holder_may_not_write_once_a_reader_was_admitted(guard: FenceGuard) -> None:
    """A downgrade keeps the token, and the holder may still have the sequencer of its exclusive time."""
    guard.admit("7:exclusive:apt")
    guard.admit_reader("7:shared:apt")
    with pytest.raises(LeaseLost, match="token 7 of 'apt' may not write any more: its lease was downgraded"):
        guard.admit("7:exclusive:apt")
    guard.admit_reader("7:exclusive:apt")
    guard.admit_reader("7:shared:apt")
    guard.admit("8:exclusive:apt")


def test_a_permit_writes_and_is_no_reader(guard: FenceGuard) -> None:
    with pytest.raises(
        ValueError, match=r"^'9:permit/2:api' is a permit's, and a semaphore has no readers: use admit$"
    ):
        guard.admit_reader("9:permit/2:api")
    guard.admit("7:permit/2:api")
    guard.admit("8:permit/2:api")
    with pytest.raises(LeaseLost, match="superseded: 8"):
        guard.admit("7:permit/2:api")


def test_a_mode_of_a_later_version_is_admitted_nowhere(guard: FenceGuard) -> None:
    later = Sequencer("apt", 9)
    object.__setattr__(later, "mode", "wish")  # as a pickle brings it, past the constructor
    for admit in (guard.admit, guard.admit_reader):
        with pytest.raises(ValueError, match=r"^'9:wish:apt' is "):
            admit(later)
    guard.admit("7:exclusive:apt")


@many_fences
def test_the_slots_of_a_semaphore_are_fenced_one_by_one(guard: FenceGuard) -> None:
    guard.admit("9:permit/1:api")
    guard.admit("7:permit/12:api")
    guard.admit("7:permit/2:api")
    guard.admit("5:exclusive:api")
    with pytest.raises(LeaseLost, match="superseded: 9"):
        guard.admit("8:permit/1:api")


@many_fences
def test_no_key_reaches_the_fence_of_a_permit_or_of_another_key(guard: FenceGuard) -> None:
    guard.admit("9:permit/2:api")
    guard.admit("9:exclusive:api")
    for key in ("permit/2:api", "lock:api", "exclusive:api", "lock:permit/2:api"):
        guard.admit(Sequencer(key, 7))
        guard.admit(Sequencer(key, 7, "permit/2"))
