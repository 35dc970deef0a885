"""Records are flat maps of text: they are read as written, unknown fields are kept, damaged ones are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import FIELDS_BYTES_MAX, Create, Extend, Read, Remove, Replace, StoreClock
from lockstead.protocol.record import (
    PROGRESS_BYTES_MAX,
    REVOKED_BYTES_MAX,
    ROOM,
    Record,
    Revocation,
    decode,
    encode,
    is_ours,
    number,
    previous_lease_text,
    progress_text,
    revocation_text,
    shortened,
    truncated,
    with_timestamps,
)
from lockstead.reading import RECORD_BYTES_MAX, clean, clean_lines
from lockstead.settings import LOCK_DELAY_MAX
from lockstead.values import DURATION_MAX, LeaseOutcome, Name, PreviousLease

APT = Name("apt")
FULL = Record(
    holder="pub/1f",
    ttl=300.0,
    owner="pub",
    acquired_at=1.5,
    expires_at=301.5,
    purpose="publish",
    expected=60.0,
    alert_at=90.0,
    auto_unlock_at=120.0,
    progress="3 of 5",
    token=7,
    closing=True,
    revoked=Revocation("op", "stuck — really"),
    lock_delay=2.5,
    host="h1",
    pid=42,
    where="a.py:3",
    backtrace="line",
    labels={"team": "ö"},
    tombstone=True,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    unknown={"later": "kept"},
)


def test_what_is_written_is_read() -> None:
    assert decode(APT, encode(FULL)) == FULL
    assert decode(APT, encode(Record("a", 1.0))) == Record("a", 1.0)


def test_empty_values_are_not_written_and_labels_are_compact() -> None:
    assert encode(Record("a", 1.0)) == {"v": "1", "identity": "a", "ttl": "1"}
    assert encode(FULL)["labels"] == '{"team":"ö"}'


TEXT = st.text(min_size=1, max_size=30)


@example("0", "\x1f\n", "0", 1, {})
@example("0", "0", "\r\n", 1, {})
@given(holder=TEXT, owner=TEXT, purpose=TEXT, ttl=st.integers(1, 10**6), labels=st.dictionaries(TEXT, TEXT, max_size=3))
def test_any_text_survives_but_control_characters(
    holder: str, owner: str, purpose: str, ttl: int, labels: dict[str, str]
) -> None:
    read = decode(APT, encode(Record(holder, float(ttl), owner=owner, purpose=purpose, labels=labels)))
    cleaned = {clean(name): clean(text) for name, text in labels.items()}
    assert read == Record(
        clean(holder), float(ttl), owner=clean(clean_lines(owner)), purpose=clean(clean_lines(purpose)), labels=cleaned
    )
    assert decode(APT, encode(read)) == read


@given(st.floats(0, 1e10))
def test_numbers_keep_microseconds_and_need_no_exponent(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, abs=1e-6)
    assert "e" not in number(value)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("ttl", "soon"),
        ("ttl", "nan"),
        ("ttl", "-1"),
        ("lock_delay", "-1"),
        ("lock_delay", "inf"),
        ("token", "x7"),
        ("pid", "1.5"),
        ("acquired_at", "yesterday"),
        ("expires_at", "inf"),
        ("revoked", "by me"),
        ("revoked", "[]"),
        ("revoked", '{"by":"op"}'),
        ("labels", "a=b"),
        ("labels", "[1]"),
        ("v", "one"),
        ("v", ""),
    ],
)
def test_a_damaged_field_is_refused_with_the_key(field: str, text: str) -> None:
    with pytest.raises(StoreRefused, match=r"'apt' is damaged"):
        decode(APT, {**encode(Record("a", 10.0)), field: text})


@pytest.mark.parametrize("missing", ["ttl", "identity"])
def test_a_record_without_what_ownership_needs_is_refused(missing: str) -> None:
    fields = encode(Record("a", 10.0))
    del fields[missing]
    with pytest.raises(StoreRefused, match=f"no {missing}"):
        decode(APT, fields)


def test_versions() -> None:
    fields = encode(Record("a", 10.0))
    assert decode(APT, {**fields, "v": "1.9", "new": "x"}).unknown == {"new": "x"}
    with pytest.raises(StoreRefused, match="upgrade this process"):
        decode(APT, {**fields, "v": "2"})
    with pytest.raises(StoreRefused, match="not written by lockstead"):
        decode(APT, {"identity": "gem", "expires_at": "5"})


def test_a_foreign_record_is_respected_where_the_store_has_such() -> None:
    foreign = decode(APT, {"identity": "gem", "expires_at": "5", "x": "y"}, foreign=True)
    assert foreign.is_foreign
    assert (foreign.holder, foreign.expires_at, foreign.ttl) == ("gem", 5.0, None)
    with pytest.raises(StoreRefused, match="damaged"):
        decode(APT, {"identity": "gem", "expires_at": "soon"}, foreign=True)


def size(fields: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in fields.items())


def filled(fields: dict[str, str]) -> int:
    """Return the size of a record after a renewal and a break that wrote as much as they may."""
    progress, revoked = progress_text('"' * 9_000), revocation_text(Revocation('"' * 9_000, '"' * 9_000))
    return size({**fields, "progress": progress, "revoked": revoked})


def test_what_is_too_long_is_cut_and_the_backtrace_first() -> None:
    fields = encode(replace(FULL, backtrace="b" * 20_000, where="w" * 100))
    assert filled(fields) <= FIELDS_BYTES_MAX - 256
    assert fields["backtrace"].endswith("…")
    assert fields["where"] == "w" * 100


@given(st.integers(0, 30_000), st.integers(0, 30_000), st.integers(0, 30_000), st.sampled_from(["a", "ö", "😀"]))
def test_a_record_never_outgrows_its_store(back: int, progress: int, purpose: int, letter: str) -> None:
    record = Record("a", 10.0, backtrace=letter * back, progress=letter * progress, purpose=letter * purpose)
    fields = encode(record)
    assert max(size(fields), filled(fields)) <= FIELDS_BYTES_MAX - 256
    assert decode(APT, fields).holder == "a"


@given(st.integers(0, 3_000), st.integers(0, 3_000), st.sampled_from(["a", '"', "ö", "😀", "\x00"]))
def test_what_is_written_into_a_record_later_is_bounded_in_bytes(long: int, longer: int, letter: str) -> None:
    assert len(progress_text(letter * longer).encode()) <= PROGRESS_BYTES_MAX
    text = revocation_text(Revocation(letter * long, letter * longer))
    assert len(text.encode()) <= REVOKED_BYTES_MAX
    revoked = decode(APT, encode(Record("a", 1.0, revoked=Revocation(letter * long, letter * longer)))).revoked
    assert revoked is not None
    assert bool(revoked.by) == (long > 0)
    assert bool(revoked.reason) == (longer > 0)


def test_a_text_is_shortened_to_the_byte() -> None:
    assert [shortened("abcdefg", most) for most in (7, 6, 4, 3, 0, -1)] == ["abcdefg", "abc…", "a…", "", "", ""]
    assert shortened("öö", 4) == "öö"
    assert shortened("ööö", 5) == "ö…"


def test_whoever_is_closing_or_revoked_is_ending() -> None:
    assert Record("a", 1.0, closing=True).is_ending
    assert Record("a", 1.0, revoked=Revocation("o", "w")).is_ending
    assert not Record("a", 1.0).is_ending


def test_adding_timestamps_keeps_waiter_id_and_retention() -> None:
    made = with_timestamps(Create(APT, {"v": "1"}, 10.0, "me", 12.0), 1000.0)
    assert isinstance(made, Create)
    assert (made.lifetime, made.waiter_id, made.min_retention) == (10.0, "me", 12.0)
    replaced = with_timestamps(Replace(APT, {}, "1", "2", 10.0, "me", 12.0), 1000.0)
    assert isinstance(replaced, Replace)
    assert (replaced.incarnation, replaced.revision) == ("1", "2")
    assert (replaced.lifetime, replaced.waiter_id, replaced.min_retention) == (10.0, "me", 12.0)


def test_timestamps_are_added_only_to_what_is_written_at_a_grant() -> None:
    made = with_timestamps(Create(APT, {"v": "1", "alert_at": "5"}, lifetime=10.0), 1000.0)
    assert isinstance(made, Create)
    assert made.fields == {"v": "1", "acquired_at": "1000", "expires_at": "1010", "alert_at": "1005"}
    replaced = with_timestamps(Replace(APT, {}, "1", "1", lifetime=10.0), 1000.0)
    assert isinstance(replaced, Replace)
    assert replaced.fields == {"acquired_at": "1000", "expires_at": "1010"}
    extended = with_timestamps(Extend(APT, {}, "1", lifetime=10.0), 1000.0)
    assert isinstance(extended, Extend)
    assert extended.fields == {"expires_at": "1010"}
    for plain in (Create(APT, {}), Extend(APT, {}, "1"), Read(APT), Remove(APT, "1")):
        assert with_timestamps(plain, 1000.0) is plain


def test_no_expires_at_is_written_where_the_server_expires() -> None:
    clock = StoreClock.SERVER_EXPIRES
    made = with_timestamps(Create(APT, {"alert_at": "5"}, lifetime=10.0), 1000.0, clock)
    assert isinstance(made, Create)
    assert made.fields == {"acquired_at": "1000", "alert_at": "1005"}
    replaced = with_timestamps(Replace(APT, {}, "1", "1", lifetime=10.0), 1000.0, clock)
    assert isinstance(replaced, Replace)
    assert replaced.fields == {"acquired_at": "1000"}
    renewal = Extend(APT, {}, "1", lifetime=10.0)
    assert with_timestamps(renewal, 1000.0, clock) is renewal


def test_the_limits_of_a_record_include_themselves() -> None:
    fields = encode(Record("a", 10.0))
    length = sum(len(name) + len(text) for name, text in fields.items())
    fits = {**fields, "x": "y" * (RECORD_BYTES_MAX - length - 1)}
    assert decode(APT, fits).holder == "a"
    with pytest.raises(StoreRefused, match="larger than 64 KiB"):
        decode(APT, {**fits, "x": fits["x"] + "y"})
    for name, most in (("ttl", DURATION_MAX), ("lock_delay", LOCK_DELAY_MAX)):
        for value in (0.0, 0.5, most):
            assert getattr(decode(APT, {**fields, name: number(value)}), name) == value
        with pytest.raises(StoreRefused, match=f"{name} is"):
            decode(APT, {**fields, name: number(most + 1)})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pid", str(2**31 - 1), 2**31 - 1),
        ("pid", str(2**31), None),
        ("expected", "0", 0.0),
        ("expected", "0.5", 0.5),
        ("expected", "-1", None),
        ("expected", number(DURATION_MAX), DURATION_MAX),
        ("expected", number(DURATION_MAX + 1), None),
    ],
)
def test_what_is_for_people_alone_and_out_of_bounds_is_left_out(name: str, text: str, said: float | None) -> None:
    assert getattr(decode(APT, {**encode(Record("a", 10.0)), name: text}), name) == said


def test_a_foreign_record_is_kept_and_its_revocation_ignored() -> None:
    fields = {"identity": "gem", "expires_at": "5", "x": "y", "revoked": revocation_text(Revocation("op", "why"))}
    read = decode(APT, fields, foreign=True)
    assert (read.holder, read.owner, read.labels, read.unknown) == ("gem", "gem", {"x": "y"}, fields)
    assert read.revoked == Revocation("op", "why")
    assert decode(APT, {**fields, "revoked": "no"}, foreign=True).revoked is None
    del fields["revoked"]
    assert decode(APT, fields, foreign=True).revoked is None


def test_ours_is_what_bears_a_version_that_is_read_here() -> None:
    said = {version: is_ours({"v": version}) for version in ("0", "1", "1.7", "2", "one", "")}
    assert said == {"0": True, "1": True, "1.7": True, "2": False, "one": False, "": False}
    assert not is_ours({})


def test_texts_in_a_record_are_compact_and_unescaped() -> None:
    assert revocation_text(Revocation("ö", "wäre")) == '{"by":"ö","reason":"wäre"}'
    before = previous_lease_text(PreviousLease(LeaseOutcome.EXPIRED, "ö", "ö/1"))
    assert before == f'{{"ending":"{LeaseOutcome.EXPIRED.value}","owner":"ö","holder":"ö/1"}}'
    numbers = {1.000001: "1.000001", 1.00001: "1.00001", 10.0: "10", 0.25: "0.25", 0.0: "0"}
    assert {value: number(value) for value in numbers} == numbers


def test_truncation_is_exact_to_the_byte() -> None:
    room = ROOM
    fields = {"v": "1", "identity": "a", "backtrace": "b", "purpose": "p"}
    fields["backtrace"] += "b" * (room - size(fields))
    assert truncated(dict(fields)) == fields
    longer = {**fields, "backtrace": fields["backtrace"] + "b"}
    cut = truncated(dict(longer))
    assert size(cut) == room
    assert (cut["backtrace"][-1], cut["purpose"]) == ("…", "p")
    labels = {**fields, "backtrace": "b", "labels": "{}" * room}
    assert truncated(labels) == {"v": "1", "identity": "a", "purpose": "p"}, "half of a JSON text says nothing"
    wide = {"v": "1", "identity": "a", "purpose": "😀" * (room // 4)}
    assert size(truncated(wide)) <= room


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-01-what-is-new", f"cc-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-01-what-is-new", None),
        (f"cc-{TRACE}-{SPAN}-01.what", None),
        (f"cc-{TRACE}-{SPAN}-01-{'x' * 1000}", f"cc-{TRACE}-{SPAN}-01"),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        (f" 00-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("<script>alert(1)</script>", None),
        ("0\u0660" * 27, None),
        ("", None),
    ],
)
def test_a_traceparent_is_read_by_the_rules_of_w3c_or_left_out(text: str, said: str | None) -> None:
    assert decode(APT, {**encode(Record("a", 10.0)), "traceparent": text}).traceparent == said


def test_a_trace_has_room_in_the_largest_record() -> None:
    trace = f"00-{TRACE}-{SPAN}-01"
    fields = encode(Record("a", 10.0, backtrace="b" * 9000, purpose="p" * 9000, traceparent=trace))
    assert fields["traceparent"] == trace
    assert sum(len(name) + len(text) for name, text in fields.items()) <= ROOM
