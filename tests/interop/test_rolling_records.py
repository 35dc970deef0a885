"""Old and new versions of lockstead under one key: records with fewer fields, with more, and of a newer major (H30)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import lockstead
from lockstead.protocol.record import VERSION
from lockstead.values import LeaseOutcome, LeaseTicket, Space
from tests.interop.places import Place

MINIMAL = {"v": "1", "identity": "old/1", "ttl": "300"}
"""The least that a record of version 1 says."""

LATER = {
    "v": f"{VERSION}.9",
    "identity": "new/1",
    "ttl": "300",
    "owner": "new",
    "shiny": 'ä "{}" 1',
    "x-empty": "",
    "identity_2": "other",
}
"""A record of a later minor version: with fields that this one does not know."""

UNKNOWN = {"v", "shiny", "x-empty", "identity_2"}

NEWER = {"v": f"{VERSION + 1}", "identity": "next/1", "ttl": "1", "owner": "next", "shiny": "yes"}
"""A record of the next major version, which may mean anything."""


def kept(place: Place) -> None:
    """Hold the record to what a later version wrote into it."""
    fields = place.see().fields
    assert {name: fields[name] for name in UNKNOWN} == {name: LATER[name] for name in UNKNOWN}


# --- fewer fields, more fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [MINIMAL, LATER], ids=["minimal", "later"])
def test_h30_a_record_of_another_minor_version_is_respected_and_shown(place: Place, record: dict[str, str]) -> None:
    seen = place.put(record)
    lock = place.client.lock("apt", owner="ours")
    assert lock.try_acquire() is None
    with pytest.raises(lockstead.NotAcquired, match=r"'apt' is held by '(old/1|new)'"):
        lock.acquire(timeout=0.3)
    shown = lock.inspect()
    assert shown is not None
    assert (shown.holder, shown.ttl, shown.is_foreign, shown.is_expired) == (record["identity"], 300.0, False, False)
    assert [one.key for one in place.client.list()] == ["apt"]
    assert place.see().revision == seen.revision


def test_h30_a_trace_that_is_none_is_ignored_and_blocks_nobody(place: Place) -> None:
    place.put({**MINIMAL, "traceparent": "<script>"})
    lock = place.client.lock("apt", owner="ours")
    assert lock.try_acquire() is None
    shown = lock.inspect()
    assert shown is not None
    assert (shown.holder, shown.traceparent) == ("old/1", None)


@pytest.mark.parametrize("record", [MINIMAL, LATER], ids=["minimal", "later"])
def test_h30_once_over_it_is_taken_over_and_leaves_nothing_behind(place: Place, record: dict[str, str]) -> None:
    place.put({**record, "ttl": "1"})
    place.elapse()
    with place.client.lock("apt", ttl=300, owner="ours").acquire(timeout=60) as lease:
        assert lease.previous_lease is not None
        assert (lease.previous_lease.ending, lease.previous_lease.holder) == (LeaseOutcome.EXPIRED, record["identity"])
        fields = place.see().fields
        assert (fields["v"], fields["identity"]) == (str(VERSION), lease.holder)
        assert not (UNKNOWN - {"v"}) & fields.keys()


def attached(place: Place, ticket: LeaseTicket) -> lockstead.Lease:
    """Work under a lease that a later version took, renewing often."""
    often = {"renew_every": 0.3, "request_timeout": 0.25, "max_failures": 20}  # and in no hurry to give up
    return place.client.lock("apt", ttl=ticket.ttl, **often).attach(ticket)


def test_h30_unknown_fields_are_kept_by_renewals_and_by_progress(place: Place) -> None:
    seen = place.put({**LATER, "ttl": "20"})
    with attached(place, place.ticket(seen)) as lease:
        seen = place.moved_on(seen.revision, times=2)
        kept(place)
        lease.progress("3 of 5")
        while "progress" not in place.see().fields:
            seen = place.moved_on(seen.revision)
        assert place.see().fields["progress"] == "3 of 5"
        kept(place)
        assert lease.is_held


def test_h30_unknown_fields_are_kept_by_a_renewal_from_the_ticket(place: Place) -> None:
    ticket = place.ticket(place.put(LATER))
    assert place.client.renew(ticket, progress="1 of 5") > 0
    assert place.see().fields["progress"] == "1 of 5"
    kept(place)


def test_h30_unknown_fields_are_kept_by_a_token(place: Place) -> None:
    ticket = place.ticket(place.put(LATER))
    lock = place.client.lock("apt")
    with lock.attach(ticket) as lease:
        token = lease.sequencer()
        kept(place)
        shown = lock.inspect()
        assert shown is not None
        assert shown.token == token.token
        assert place.client.verify(token)


def test_h30_unknown_fields_are_kept_by_members_and_by_closing(place: Place) -> None:
    """A member of a later version works under the lease, too: it is waited for, and left alone."""
    seen = place.put(LATER)
    member = {"v": f"{VERSION}.9", "identity": "theirs", "ttl": "300", "shiny": "member"}
    place.put(member, space=Space.MEMBER, part=f"{seen.incarnation}/theirs")
    with place.client.lock("apt").attach(place.ticket(seen)):
        kept(place)
    assert place.client.release(place.ticket(seen), drain=0.2) is False
    assert place.see().fields["closing"] == "1"
    kept(place)
    assert [name.part for name in place.names(Space.MEMBER)] == [f"{seen.incarnation}/theirs"]


def test_h30_unknown_fields_are_kept_by_a_revocation(place: Place) -> None:
    place.put(LATER)
    done = place.client.lock("apt").break_lease(reason="a test", by="operator")
    assert done is not None
    shown = place.client.lock("apt").inspect()
    assert shown is not None
    assert (shown.revoked_by, shown.owner) == ("operator", "new")
    kept(place)


def test_h30_unknown_fields_are_kept_by_breaking_at_once(place: Place) -> None:
    place.put(LATER)
    lock = place.client.lock("apt", owner="ours")
    done = lock.break_lease(reason="a test", by="operator", now=True)
    assert done is not None
    assert done.removed
    assert place.see().fields["ended"] == "1"
    kept(place)
    with lock.acquire(timeout=10) as lease:
        assert lease.previous_lease is not None
        assert (lease.previous_lease.ending, lease.previous_lease.owner) == (LeaseOutcome.REVOKED, "new")


# --- a newer major ---------------------------------------------------------------------------------------------------

Asks = Callable[[Place, LeaseTicket], object]

REFUSED: dict[str, Asks] = {
    "try_acquire": lambda place, _: place.client.lock("apt").try_acquire(),
    "acquire": lambda place, _: place.client.lock("apt").acquire(timeout=5),
    "foreign_ttl": lambda place, _: place.client.lock("apt", foreign_ttl=1).acquire(timeout=5),
    "reclaim": lambda place, _: place.client.lock("apt", owner="next").try_acquire(reclaim=True),
    "inspect": lambda place, _: place.client.lock("apt").inspect(),
    "break": lambda place, _: place.client.lock("apt").break_lease(reason="a test"),
    "break now": lambda place, _: place.client.lock("apt").break_lease(reason="a test", now=True),
    "attach": lambda place, ticket: place.client.lock("apt").attach(ticket),
    "renew": lambda place, ticket: place.client.renew(ticket),
    "release": lambda place, ticket: place.client.release(ticket, drain=1),
    "verify": lambda place, _: place.client.verify("7:exclusive:apt"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_h24_h30_a_newer_major_version_is_refused_and_unchanged(place: Place, what: str) -> None:
    before = place.put(NEWER)
    if what in ("try_acquire", "acquire", "foreign_ttl", "reclaim"):
        place.elapse()  # its time would be up, did it mean what it means to us
    with pytest.raises(lockstead.StoreRefused, match=r"'apt' has version 2, this lockstead reads 1: upgrade"):
        REFUSED[what](place, place.ticket(before))
    after = place.see()
    assert (after.fields, after.incarnation, after.revision) == (NEWER, before.incarnation, before.revision)
    assert place.names(Space.MEMBER) == []


def test_h30_a_newer_major_version_is_listed_with_advice(place: Place) -> None:
    place.put(NEWER)
    place.put(MINIMAL, key="yum")
    newer, known = place.client.list()
    assert (newer.key, known.key) == ("apt", "yum")
    assert newer.decode_error is not None
    assert "upgrade" in newer.decode_error
    assert (newer.is_expired, newer.is_foreign, known.decode_error) == (False, False, None)


def test_h30_who_waits_is_told_when_a_newer_major_takes_the_key(place: Place) -> None:
    place.put(MINIMAL)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            place.client.lock("apt", backoff_max=0.2).acquire(timeout=120)
        except BaseException as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.5)
    place.change({"v": "2"})
    waiter.join(timeout=60)
    assert not waiter.is_alive()
    assert isinstance(told[0], lockstead.StoreRefused)
    assert "upgrade" in str(told[0])


def test_h30_a_member_of_a_newer_major_is_waited_for_and_not_removed(place: Place) -> None:
    seen = place.put({**MINIMAL, "owner": "ours"})
    part = f"{seen.incarnation}/next"
    place.put(NEWER, space=Space.MEMBER, part=part)
    place.elapse()
    assert place.client.release(place.ticket(seen), drain=0.5) is False
    assert place.client.lock("apt", owner="ours").try_acquire(reclaim=True) is None
    assert place.see().incarnation == seen.incarnation
    assert [name.part for name in place.names(Space.MEMBER)] == [part]


def test_h30_the_holder_whose_record_became_unreadable_stops_in_time(place: Place) -> None:
    """A migration while the process runs: it cannot read the record, so it must stop."""
    lease = place.client.lock("apt", ttl=3, renew_every=0.3, request_timeout=0.2).acquire(timeout=10)
    place.change({"v": "2"})
    ends_at = time.monotonic() + 60
    while lease.is_held:
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    with pytest.raises(lockstead.LeaseLost) as lost:
        lease.check()
    assert lost.value.reason in (lockstead.LossReason.UNREACHABLE, lockstead.LossReason.EXPIRED)
    assert place.see().fields["v"] == "2"
