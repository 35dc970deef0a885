"""The pure parts: every margin by arithmetic, every choice by example."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest

from examples.publishing.bucket import Stat
from examples.publishing.errors import Refused
from examples.publishing.layout import Layout, next_number, number_of, numbers_of, prunable
from examples.publishing.manifest import FileFacts, Manifest, differences, facts_by_path
from examples.publishing.packages import Package
from examples.publishing.plan import CARRY_AGE_MAX, ages, plan, signing_instant, to_copy, wait_before_index

FACTS = FileFacts(1, "crc")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)


def package(name: str, version: str = "1", sha256: str = "a", path: str = "") -> Package:
    return Package(name, version, "all", path or f"pool/{name}_{version}", 1, sha256, None)


def test_a_number_is_one_above_everything_seen() -> None:
    assert next_number(0, []) == 1
    assert next_number(4, [1, 2, 4]) == 5
    assert next_number(4, [9, 4]) == 10
    assert next_number(12, [4]) == 13


def test_numbers_are_read_from_folders_and_strangers_are_left_alone() -> None:
    assert numbers_of(["10", "2", "x", "02", "0", "-1", "1.5", ""]) == (2, 10)


@pytest.mark.parametrize(("text", "number"), [(b"0", 0), (b"7", 7), (b"123\n", 123)])
def test_the_pointers_text_is_a_plain_number(text: bytes, number: int) -> None:
    assert number_of(text, "pointer") == number


def test_prunable_is_below_the_pointer_and_off_the_chain_or_too_old() -> None:
    everything = range(1, 13)
    assert prunable(everything, 10, (8, 7, 5, 3, 2, 1), keep=2) == (1, 2, 3, 4, 5, 6, 9)
    assert prunable(everything, 10, (8, 7, 5), keep=99) == (1, 2, 3, 4, 6, 9)
    assert prunable([10, 11, 99], 10, (), keep=1) == ()


def test_a_plan_adds_keeps_and_carries() -> None:
    old, new = package("old"), package("new")
    files = {old.path: FACTS, "index-0": FACTS, "index-4": FACTS, "index-5": FACTS, "version.txt": FACTS}
    chosen = plan([old], files, {"index-0": 0, "index-4": 4, "index-5": CARRY_AGE_MAX, "gone": 1}, [new])
    assert chosen.packages == (old, new)
    assert chosen.added == (new,)
    assert chosen.kept == {old.path: FACTS, "index-0": FACTS, "index-4": FACTS}
    assert chosen.old_index == {"index-0": 1, "index-4": 5}
    assert to_copy(chosen, ["index-4", "written"]) == ("index-0", old.path)
    assert ages(chosen, ["index-4"]) == {"index-0": 1, "index-4": 0}


def test_a_plan_with_what_is_there_already_is_idle() -> None:
    old = package("old")
    assert plan([old], {old.path: FACTS}, {}, [old, old]).is_idle
    assert not plan([], {}, {}, [old]).is_idle


def test_a_plan_refuses_what_would_surprise_a_reader() -> None:
    old, other = package("old"), package("old", sha256="b")
    files = {old.path: FACTS}
    with pytest.raises(Refused, match="other content"):
        plan([old], files, {}, [other])
    with pytest.raises(Refused, match="other content"):
        plan([], {}, {}, [old, other])
    with pytest.raises(Refused, match="other content"):
        plan([old], files, {}, [other, package("old", sha256="c")], overwrite=True)
    with pytest.raises(Refused, match="would both be"):
        plan([old], files, {}, [package("old", "1:1", path=old.path)])
    with pytest.raises(Refused, match="not in the version"):
        plan([old], {}, {}, [])
    replaced = plan([old], files, {}, [other], overwrite=True)
    assert replaced.added == replaced.packages == (other,)
    assert not replaced.kept


def test_an_index_is_never_dated_back_nor_far_ahead() -> None:
    second = timedelta(seconds=1)
    whole = NOW.replace(microsecond=0)
    assert signing_instant(NOW, None) == whole
    assert signing_instant(NOW, whole - second) == whole
    assert signing_instant(NOW, whole + second) == whole + second
    assert signing_instant(NOW, whole + timedelta(minutes=5)) == whole + timedelta(minutes=5)
    with pytest.raises(Refused, match="clocks"):
        signing_instant(NOW, whole + timedelta(minutes=5, seconds=1))


@pytest.mark.parametrize(
    ("last_at", "bucket_now", "wait"),
    [(0.0, 100.0, 0.0), (99.9, 100.0, 0.0), (100.0, 100.25, 0.75), (100.9, 100.95, 0.05), (500.0, 100.0, 1.0)],
)
def test_two_indexes_never_fall_into_one_second_of_the_bucket(last_at: float, bucket_now: float, wait: float) -> None:
    assert wait_before_index(last_at, bucket_now) == pytest.approx(wait)


def test_a_manifest_survives_being_written_and_nothing_else_does() -> None:
    manifest = Manifest(7, (6, 4), {"index": 0}, {"a": FACTS, "b": FileFacts(2, "x")})
    written = manifest.to_bytes()
    assert Manifest.from_bytes(written, "here") == manifest
    for at in range(len(written)):
        damaged = bytearray(written)
        damaged[at] ^= 0x02
        with contextlib.suppress(Refused):
            assert Manifest.from_bytes(bytes(damaged), "here") == manifest
    for content in (b"", b"[]", b"null", b"{}", written[:-3]):
        with pytest.raises(Refused):
            Manifest.from_bytes(content, "here")


def test_differences_are_named() -> None:
    found = facts_by_path([Stat("v/7/a", 1, "crc", 1), Stat("v/7/manifest.json", 9, "", 1)], "v/7/")
    assert found == {"a": FACTS}
    assert differences(found, found) == ()
    assert differences({"a": FileFacts(2, "crc"), "b": FACTS}, {"a": FACTS, "c": FACTS}) == (
        "b is missing",
        "c does not belong there",
        "a has 1 bytes (crc32c crc) instead of 2 (crc)",
    )


def test_names_of_objects() -> None:
    layout = Layout("a/apt/")
    assert layout.pointer == "a/apt/latest_version.txt"
    assert layout.version(7, "dists/x") == "a/apt/versions/7/dists/x"
    assert layout.incoming("f00") == "a/apt/incoming/f00"
