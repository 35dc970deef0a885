"""What a record or an audit entry says is somebody else's text: it is shown clean, and never fails a wait (S3, S6)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import lockstead
from lockstead import Client, LeaseOutcome, NotAcquired
from lockstead.cli.format import details, entry_row, facts, headline, lock_row
from lockstead.protocol.commands import Create
from lockstead.protocol.members import MEMBERS_MAX
from lockstead.reading import EPOCH_MAX, clean, clean_lines
from lockstead.stores.memory import MemoryStore
from lockstead.unclean import Unclean, origin
from lockstead.values import LeaseTicket, Name, PreviousLease, Space
from lockstead.wrapping.messages import is_held, waiting_for
from tests.runtime.faulty import quiet

NOBODY = {"v": "1", "identity": "evil/1", "owner": "evil", "ttl": "300"}
HOSTILE = "x\x1b]0;title\x07\x1b[2J\n[2026] INFO - Marking task as SUCCESS\r<img>\u202e\u200b\x00\ud800\u2028\x9b1m"
OBEYED = "\x1b\x07\n\r\u202e\u200b\x00\ud800\u2028\x9b"


def client_with(*records: tuple[Name, dict[str, str]]) -> Client:
    store = MemoryStore()
    for name, fields in records:
        store.perform(Create(name, fields), 1.0)
    return Client(store, listener=quiet)


def everything_said(held: Any) -> list[str]:
    """Return every line that any part of the project makes of who holds a lock."""
    return [
        waiting_for("apt", held),
        is_held("apt", held),
        headline("apt", held, 1e9),
        *(text for _, text in details(held, 1e9)),
        *lock_row(held, 1e9),
        json.dumps(facts("apt", held, 1e9), allow_nan=False),
    ]


@pytest.mark.parametrize("name", ["acquired_at", "expires_at", "alert_at", "expected", "auto_unlock_at"])
@pytest.mark.parametrize("number", ["1795246030383", "1e300", "-1e300", str(EPOCH_MAX + 1), "-1"])
def test_h24_an_impossible_date_fails_no_waiter(name: str, number: str) -> None:
    with client_with((Name("apt"), {**NOBODY, "expected": "60", "acquired_at": "1.7e9", name: number})) as client:
        lock = client.lock("apt", ttl=60, backoff_min=0.01, backoff_max=0.02)
        with pytest.raises(NotAcquired, match="'apt' is held by 'evil'"):
            lock.acquire(timeout=0.05)
        held = lock.inspect()
        assert held is not None
        assert held.acquired_at is None or name != "acquired_at"
        assert held.expires_at is None
        assert held.alert_at is None
        assert max(map(len, everything_said(held))) < 2000


def test_h24_the_last_second_of_the_calendar_is_still_shown() -> None:
    with client_with((Name("apt"), {**NOBODY, "acquired_at": str(int(EPOCH_MAX))})) as client:
        held = client.lock("apt").inspect()
        assert held is not None
        assert held.acquired_at is not None
        assert held.acquired_at.year == 9999


@pytest.mark.parametrize(("name", "number"), [("ttl", "1e300"), ("ttl", "4e9"), ("lock_delay", "61")])
def test_h24_a_record_that_would_block_forever_can_be_removed(name: str, number: str) -> None:
    with client_with((Name("apt"), {**NOBODY, name: number})) as client:
        lock = client.lock("apt", ttl=60)
        with pytest.raises(lockstead.StoreRefused, match=f"is damaged: {name} is .*break it with now=True"):
            lock.try_acquire()
        assert lock.break_lease(reason="in the way", by="ops", now=True) is not None
        lock.acquire(timeout=1).release()


def test_h24_an_oversized_record_is_damaged_and_can_be_removed() -> None:
    with client_with((Name("apt"), {**NOBODY, "x": "y" * 70_000})) as client:
        lock = client.lock("apt", ttl=60)
        with pytest.raises(lockstead.StoreRefused, match="larger than 64 KiB; break it with now=True"):
            lock.try_acquire()
        assert "larger than 64 KiB" in str(client.list()[0].decode_error)
        assert lock.break_lease(reason="in the way", by="ops", now=True) is not None
        lock.acquire(timeout=1).release()


def test_h24_too_many_members_are_refused_and_can_be_broken() -> None:
    with client_with() as client:
        lock = client.lock("apt", ttl=60)
        lease = lock.acquire(timeout=1)
        ticket = lease.share()
        incarnation = LeaseTicket.parse(str(ticket)).incarnation
        for number in range(MEMBERS_MAX - len(lock.members(ticket))):
            fields = {**NOBODY, "identity": f"evil/{number}"}
            client._engine.store.perform(Create(Name("apt", Space.MEMBER, f"{incarnation}/{number}"), fields), 1.0)
        assert len(lock.members(ticket)) == MEMBERS_MAX
        for more in "xy":  # its owner takes back its own before it counts
            client._engine.store.perform(Create(Name("apt", Space.MEMBER, f"{incarnation}/{more}"), NOBODY), 1.0)
        said = rf"the lease of 'apt' has \d+ registered members, more than {MEMBERS_MAX}; .*break it with"
        for looks in (lambda: lock.members(ticket), lease.release):
            with pytest.raises(lockstead.StoreRefused, match=said):
                looks()
        assert lock.break_lease(reason="in the way", by="ops", now=True) is not None
        lock.acquire(timeout=1).release()


def test_h24_too_many_readers_of_one_key_hide_no_other_and_can_be_broken() -> None:
    with client_with((Name("other"), NOBODY)) as client:
        lock = client.lock("apt", ttl=60, mode="shared")
        with lock.hold():
            group = client._engine.observations.groups[Name("apt")]
            for number in range(MEMBERS_MAX):
                fields = {**NOBODY, "identity": f"evil/{number}"}
                registration = Name("apt", Space.MEMBER, f"{group.incarnation}/{number}")
                client._engine.store.perform(Create(registration, fields), 1.0)
            with pytest.raises(lockstead.StoreRefused, match=r"more than 10000; .*break it with now=True"):
                lock.inspect()
            held, other = client.list()
            assert (held.key, other.key, other.decode_error) == ("apt", "other", None)
            assert "more than 10000" in str(held.decode_error)
            broken = lock.break_lease(reason="in the way", by="ops", now=True, incarnation=held.incarnation)
            assert broken is not None
        lock.acquire(timeout=1, mode="exclusive").release()


def test_a_records_text_is_cleaned_once_before_use() -> None:
    fields = dict.fromkeys(("identity", "owner", "purpose", "progress", "where", "host", "backtrace"), HOSTILE)
    fields |= {"labels": json.dumps({HOSTILE: HOSTILE}), "revoked": json.dumps({"by": HOSTILE, "reason": HOSTILE})}
    with client_with((Name("apt"), {**NOBODY, **fields}), (Name("k\x1b[31m\nevil"), NOBODY)) as client:
        held, odd = sorted(client.list(), key=lambda one: one.key)
        assert "\ufffd" in str(held.purpose)
        texts = [held.owner, held.holder, held.purpose, held.progress, held.where, held.host, held.revoked_by]
        texts += [held.revoke_reason, *held.labels, *held.labels.values(), *(held.backtrace or "").split("\n")]
        assert not [text for text in texts if text is None or set(text) & set(OBEYED)]
        assert not [line for line in everything_said(held) if set(line) & set(OBEYED)]
        # a name that is not a key: nobody can hold it, and it is shown as what it is
        assert odd.key == "k\ufffd[31m evil"
        assert "unprintable" in str(odd.decode_error)
        with pytest.raises(NotAcquired) as refused:
            client.lock("apt", ttl=60).acquire(timeout=0)
        assert not set(str(refused.value)) & set(OBEYED)


def test_cleaning_is_idempotent_and_keeps_plain_text() -> None:
    plain = "grün 日本 👩\u200d💻 e\u0301 <a&b> \\x1b"
    assert clean(plain) == plain
    assert clean(clean(HOSTILE)) == clean(HOSTILE)
    assert clean("a\r\nb\tc") == "a b c"
    assert clean_lines("one\n\ttwo\x1b") == "one\n two\ufffd"


# --- audit entries ---------------------------------------------------------------------------------------------------

BROKEN = {"v": "1", "at": "1795000000", "by": "anna", "reason": "stuck", "what": "revoked", "token": "7"}
BAD_ENTRIES: list[dict[str, str]] = [
    {**BROKEN, "token": "\u00b2"},
    {**BROKEN, "token": "9" * 5000},
    {**BROKEN, "at": "1e300"},
    {**BROKEN, "at": "nan"},
    {**BROKEN, "reason": HOSTILE, "by": HOSTILE},
    {"v": "1", "damage": "its fields are not a map of text"},
    {},
]


@pytest.mark.parametrize("entry", BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
@pytest.mark.parametrize("part", ["01795000000001-bb", "\u00b2-bb", "9" * 5000 + "-bb", "", "\x1b"])
def test_one_bad_audit_entry_hides_no_other_and_fails_nobody(entry: dict[str, str], part: str) -> None:
    good = (Name("apt", Space.AUDIT, "01795000000000-aa"), BROKEN)
    with client_with(good, (Name("apt", Space.AUDIT, part), entry)) as client:
        entries = client.history()
        assert [one.reason for one in entries].count("stuck") >= 1
        assert len(entries) == 2
        for one in entries:
            assert one.at is None or one.at.year < 10_000
            assert not set("".join(entry_row(one))) & set(OBEYED)


def entry_of(reason: str) -> Any:
    fields = {**BROKEN, "holder": "me/1", "by": "me/1", "reason": reason}
    with client_with((Name("apt", Space.AUDIT, "01795000000000-aa"), fields)) as client:
        return client.history()[0]


@pytest.mark.parametrize("owner", ["x", "", "it's", 'say "x"', 'it\'s "x"', "a\\b", "\\'", "a' on 'apt' ended CLEAN"])
def test_who_was_refused_for_somebody_says_for_whom(owner: str) -> None:
    said = str(Unclean("apt", owner, LeaseOutcome.EXPIRED))
    last = Unclean("apt", "me", LeaseOutcome.REVOKED)
    found = origin(last, PreviousLease(LeaseOutcome.REVOKED, "me", "me/1"), [entry_of(said)])
    assert found == Unclean("apt", owner, LeaseOutcome.EXPIRED)


@pytest.mark.parametrize(
    "owner",
    ["-" * 100_000 + "1", "(" * 150 + "'x'" + ")" * 150, "[" * 9000, "1" + "+1" * 9000, "b'x'", "'x' 'y'"],
)
def test_a_reason_is_never_evaluated(owner: str) -> None:
    last = Unclean("apt", "me", LeaseOutcome.REVOKED)
    entry = entry_of(f"the lease of {owner} on 'apt' ended EXPIRED")
    assert origin(last, PreviousLease(LeaseOutcome.REVOKED, "me", "me/1"), [entry]) == last


# --- tickets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ticket",
    [
        LeaseTicket("memory:", "apt", "x\x1b/1", "1", 60.0),
        LeaseTicket("memory:", "apt\n", "x/1", "1", 60.0),
        LeaseTicket("memory:", "apt", "x/1", "1", 1e300),
        LeaseTicket("memory:", "apt", "x" * 70_000, "1", 60.0),
    ],
    ids=range(4),
)
def test_a_ticket_that_could_not_be_ours_is_none(ticket: LeaseTicket) -> None:
    with pytest.raises(ValueError, match="lease ticket"):
        LeaseTicket.parse(str(ticket))


@pytest.mark.parametrize("key", ["u\u0308", "e\u0301tape", "\u212b"])
def test_a_key_in_two_spellings_is_refused_in_one_line(key: str) -> None:
    with client_with() as client, pytest.raises(ValueError, match="NFC") as refused:
        client.lock(key)
    assert "\n" not in str(refused.value)
