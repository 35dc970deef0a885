"""What is shown of a lock: bounded, escaped by the templates, and the same text for the same lock."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstead.dashboard.filters import Filter
from lockstead.dashboard.rendering import lasting
from lockstead.dashboard.rows import (
    BACKTRACE_MAX,
    LABELS_MAX,
    PARTS_MAX,
    TEXT_MAX,
    URGENCY,
    consequence,
    identity,
    percent,
    row_of,
)
from lockstead.views import LockInfo, Permits

HELD = LockInfo(
    key="apt",
    holder="ci/7/aa",
    owner="ci/7",
    incarnation="1",
    purpose="publish",
    ttl=60.0,
    age=10.0,
    acquired_epoch=1000.0,
    expires_epoch=1060.0,
    labels={"team": "deb"},
)


# --- rows -----------------------------------------------------------------------------------------------------------


def test_every_text_is_bounded() -> None:
    long = "x" * 100_000
    texts: dict[str, Any] = {
        one.name: long
        for one in fields(LockInfo)
        if one.type in ("str", "str | None") and one.name not in ("key", "mode", "incarnation", "decode_error")
    }
    parts = tuple(replace(HELD, **texts) for _ in range(1000))
    labels = {f"{number}{long}": long for number in range(1000)}
    row = row_of("s", replace(HELD, **texts, labels=labels, readers=parts), 1010.0)
    assert len(row.readers) == PARTS_MAX
    assert row.more_parts == 1000 - PARTS_MAX
    assert len(row.labels) == LABELS_MAX
    assert row.more_labels == 1000 - LABELS_MAX
    assert len(row.backtrace) == BACKTRACE_MAX
    assert max(len(row.owner), len(row.purpose), len(row.wanted_by), len(row.labels[0][1])) <= 4 * TEXT_MAX
    assert len(repr(replace(row, readers=()))) < BACKTRACE_MAX + 40_000


@given(st.text(), st.text())
def test_the_id_of_a_lock_is_fit_for_a_page(store: str, key: str) -> None:
    assert re.fullmatch(r"lock-[0-9a-f]{16}", identity(store, key))


def test_two_locks_have_two_ids() -> None:
    assert len({identity(*pair) for pair in (("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"))}) == 4


def test_a_row_changes_with_its_lock_and_not_with_time() -> None:
    rows = [row_of("s", replace(HELD, age=10.0 + later), 1010.0 + later) for later in (0.0, 7.3, 31.9)]
    assert len({lasting(row) for row in rows}) == 1
    assert len({row.left for row in rows}) == 3
    assert lasting(row_of("s", replace(HELD, age=0.0, expires_epoch=1070.0), 1010.0)) != lasting(rows[0])


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "held"),
        ({"alert_epoch": 1005.0}, "overdue"),
        ({"is_expired": True}, "expired"),
        ({"revoked_by": "anna"}, "revoked"),
        ({"closing": True}, "closing"),
        ({"decode_error": "damaged"}, "unreadable"),
        ({"readers": (replace(HELD, alert_epoch=1005.0),)}, "overdue"),
        ({"readers": (HELD,)}, "held"),
        ({"permits": Permits("apt", 2, (replace(HELD, mode="permit/0", alert_epoch=1005.0),))}, "overdue"),
        ({"permits": Permits("apt", 2, (replace(HELD, mode="permit/0"),))}, "free"),
    ],
)
def test_the_state_is_the_most_urgent_of_its_leases(changed: dict[str, Any], state: str) -> None:
    assert row_of("s", replace(HELD, **changed), 1010.0).state == state
    assert state in URGENCY


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("3 of 5", 60),
        ("3/4", 75),
        ("80%", 80),
        ("80 %", 80),
        ("7 of 0", None),
        ("9 of 5", 100),
        ("5", None),
        ("٣ of 5", None),
        ("9" * 5000 + " of 1", None),
        ("packages", None),
        ("", None),
        (None, None),
    ],
)
def test_a_progress_that_says_how_far_it_is_has_a_bar(text: str | None, shown: int | None) -> None:
    assert percent(text) == shown


@given(st.text())
def test_no_progress_fails(text: str) -> None:
    assert percent(text) in (None, *range(101))


# --- what a break does ----------------------------------------------------------------------------------------------


def test_a_break_says_when_the_holder_stops_at_the_latest() -> None:
    said = consequence(36.2, 60.0, now=False, is_expired=False, who="its holder")
    assert said.startswith("Its holder stops at its next renewal, at the latest in 37 s.")
    # where the store does not tell when it was renewed, a whole ttl may be left
    assert "in 60 s" in consequence(None, 60.0, now=False, is_expired=False, who="its holder")
    assert "in 5 min 1 s" in consequence(300.1, 600.0, now=False, is_expired=False, who="its holder")


def test_a_removal_says_that_two_may_hold_the_lock() -> None:
    said = consequence(36.2, 60.0, now=True, is_expired=False, who="its holder")
    assert "free at once" in said
    assert "37 s" in said
    assert "Make sure that it has stopped" in said


def test_an_expired_lease_is_removed_whichever_was_chosen() -> None:
    for now in (False, True):
        assert "free at once" in consequence(0.0, 60.0, now=now, is_expired=True, who="its holder")


# --- filters --------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["q", "store", "owner", "label", "state", "other"]), st.text(max_size=300)))
def test_the_address_keeps_the_filter(query: dict[str, str]) -> None:
    wanted = Filter.parse(query)
    assert Filter.parse(dict(parse_qsl(wanted.query))) == wanted
    assert wanted.query.isascii()


@pytest.mark.parametrize(
    ("query", "is_admitted"),
    [
        ({}, True),
        ({"q": "APT"}, True),
        ({"q": "publish"}, True),
        ({"q": "deb"}, True),
        ({"q": "yum"}, False),
        ({"owner": "ci"}, True),
        ({"owner": "CI/7"}, True),
        ({"owner": "publish"}, False),
        ({"label": "team"}, True),
        ({"label": "team=deb"}, True),
        ({"label": "team=de"}, False),
        ({"label": "deb"}, False),
        ({"state": "held"}, True),
        ({"state": "overdue"}, False),
        ({"state": "nothing"}, True),
        ({"store": "s"}, True),
        ({"store": "t"}, False),
        ({"q": "apt", "state": "overdue"}, False),
    ],
)
def test_a_filter_admits_what_it_says(query: dict[str, str], is_admitted: bool) -> None:
    assert Filter.parse(query).admits("s", HELD, "held") is is_admitted


def test_a_filter_looks_at_readers_and_permits() -> None:
    shared = LockInfo(key="index", holder="", owner="readers", incarnation="1", readers=(HELD,))
    slots = LockInfo(key="slots", holder="", owner="", incarnation="", permits=Permits("slots", 2, (HELD,)))
    for query in ({"owner": "ci/7"}, {"label": "team=deb"}, {"q": "publish"}):
        assert Filter.parse(query).admits("s", shared, "held")
        assert Filter.parse(query).admits("s", slots, "free")


# --- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://ci.example/run/7",
        "http://10.0.0.1:8080/a?b=c&d=%20#e",
        "https://[::1]:8443/",
        "HTTPS://ci.example",
        "https://ci.example?a@b",
    ],
)
def test_a_run_is_linked_by_http(url: str) -> None:
    held = replace(HELD, labels={"url": url})
    assert held.url == row_of("s", held, 1010.0).url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ci.example/run/7",
        "javascript:alert(1)",
        "JavaScript:alert(1)//https://x",
        "data:text/html,x",
        "//ci.example/",
        "ftp://ci.example/",
        "https://",
        "https://[::1",
        "https://[]/",
        "https://[1]/",
        "https://[v1.x]/",
        "https://::1]/",
        "https://[::1]ci/",
        "https://ci.example:99999/",
        "https://ci.example:x/",
        "https:///run",
        "https://bank.example@evil.example/",
        "https://bank.example:x@evil.example/",
        "https://ci.example/a b",
        "https://ci.example/\n",
        "https://ci.example/\u202e",
        "https://bänk.example/",
        " https://ci.example/",
        "https://ci.example/" + "x" * 2000,
    ],
)
def test_nothing_else_becomes_a_link(url: str) -> None:
    held = replace(HELD, labels={"url": url})
    assert held.url is None
    row = row_of("s", held, 1010.0)
    assert row.url is None
    assert row.host_of_url == ""
    # the label is shown as any other
    assert [name for name, _ in row.labels] == ["url"]
