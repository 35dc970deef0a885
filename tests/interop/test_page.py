"""What `docs/interop.md` says of the record is what the code reads and writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lockstead.protocol.expiry import FOREIGN_ALLOWANCE
from lockstead.protocol.record import Record, Revocation, decode, encode
from lockstead.stores.gcs.encoding import BucketPath
from lockstead.values import Name, Space

PAGE = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()

FULL = Record(
    holder="a/1",
    ttl=300.0,
    owner="a",
    acquired_at=1.0,
    expires_at=2.0,
    purpose="p",
    expected=3.0,
    alert_at=4.0,
    auto_unlock_at=5.0,
    progress="q",
    token=7,
    closing=True,
    revoked=Revocation("o", "w"),
    lock_delay=1.0,
    host="h",
    pid=8,
    where="w",
    backtrace="b",
    labels={"x": "y"},
    tombstone=True,
    ended=True,
)


def section(title: str) -> str:
    """Return one section of the page."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_field_of_a_record_stands_in_the_table() -> None:
    table = re.findall(r"^\| (`.*?) \|", section("What is stored under a key"), re.MULTILINE)
    named = {field for row in table for field in re.findall(r"`([a-z_]+)`", row)}
    assert encode(FULL).keys() <= named


def test_the_example_is_a_record_and_nothing_in_it_is_unknown() -> None:
    example = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
    name = BucketPath.at("bucket", "locks").name_of(example["name"], Space.LOCK)
    assert name == Name("apt")
    record = decode(name, example["metadata"])
    assert encode(record) == example["metadata"]
    assert not record.unknown
    assert record.holder.startswith(f"{record.owner}/")


def test_the_reserved_names_are_those_of_the_page() -> None:
    place = BucketPath.at("bucket", "prefix")
    for space, part, shown in (
        (Space.MEMBER, "INCARNATION/NONCE", "member/KEY/INCARNATION/NONCE"),
        (Space.PERMIT, "PART", "permit/KEY/PART"),
        (Space.COMPANION, "", "companion/KEY"),
        (Space.AUDIT, "MILLISECONDS-NONCE", "audit/KEY/MILLISECONDS-NONCE"),
    ):
        assert place.object_name(Name("KEY", space, part)) == f"prefix/.lockstead/{shown}"
        assert f"| `{shown}` |" in PAGE


def test_the_minute_that_is_allowed_is_one() -> None:
    assert "until the store's `Date` is a minute past it" in PAGE
    assert FOREIGN_ALLOWANCE == 60.0
