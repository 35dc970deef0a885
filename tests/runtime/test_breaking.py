"""Taking a lock from its holder: reclaim, break, the lock-delay, and what the holder and the audit log are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lockstead
from lockstead import (
    AsyncClient,
    Client,
    LeaseLost,
    LeaseOutcome,
    LossReason,
    NotAcquired,
    OutcomeUnknown,
    PreviousLease,
)
from lockstead.events import EngineWarning, LockEvent
from lockstead.protocol.commands import Command, Create, Extend, Remove
from lockstead.values import Name, Space
from tests.runtime.faulty import Faulty, lose_answer, quiet, refuse, until
from tests.runtime.processes import Child


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def client(store: Faulty) -> Iterator[Client]:
    with Client(store, listener=quiet) as client:
        yield client


@pytest.fixture
def other(store: Faulty) -> Iterator[Client]:
    with Client(store.beside(), listener=quiet) as other:
        yield other


def audit(store: Faulty) -> list[dict[str, str]]:
    return [entry.fields for name, entry in store.inner._memory.entries.items() if name.space is Space.AUDIT]


def test_reclaim_needs_an_explicit_owner(client: Client) -> None:
    with pytest.raises(ValueError, match="explicit owner"):
        client.lock("apt").acquire(reclaim=True)
    with pytest.raises(ValueError, match="explicit owner"):
        client.lock("apt").try_acquire(reclaim=True)


def test_reclaim_takes_the_lock_of_a_dead_process_at_once(shared_url: str) -> None:
    script = """
    lease = lockstead.Lock(URL + "#apt", ttl=300, owner="nightly").acquire()
    say(lease.holder, lease.sequencer().token)
    os._exit(9)
    """
    with Child(script, shared_url) as dead:
        holder, token = dead.hear().split()
        dead.end()
    lock = lockstead.Lock(f"{shared_url}#apt", ttl=300, owner="nightly")
    assert lock.try_acquire() is None
    with lock.hold(timeout=60, reclaim=True) as lease:
        assert lease.previous_lease.holder == holder
        # the earlier process may live after all, so it is fenced before the lease is given
        assert lease.token is not None
        assert lease.token > int(token)


def test_reclaim_is_refused_for_what_this_very_process_keeps(client: Client) -> None:
    lock = client.lock("apt", owner="nightly")
    with lock.hold() as lease:
        assert lock.try_acquire(reclaim=True) is None
        lease.check()


def test_reclaim_is_refused_for_another_owner(client: Client, other: Client) -> None:
    with other.lock("apt", owner="somebody").hold():
        with pytest.raises(NotAcquired, match="somebody"):
            client.lock("apt", owner="nightly").acquire(timeout=0, reclaim=True)


def test_a_reclaimed_holder_finds_out_at_its_next_renewal(client: Client, other: Client) -> None:
    theirs = other.lock("apt", ttl=2, owner="nightly").acquire()
    with client.lock("apt", ttl=60, owner="nightly").hold(timeout=20, reclaim=True) as lease:
        until(lambda: not theirs.is_held)
        assert theirs.lost_reason in (LossReason.TAKEN, LossReason.REVOKED)
        assert theirs.release() is False
        lease.check()


def test_break_lease_revokes_and_the_holder_ends_its_block(client: Client, other: Client, store: Faulty) -> None:
    with pytest.raises(LeaseLost, match="REVOKED"), other.lock("apt", ttl=3, purpose="publish").hold() as lease:
        breaking = client.lock("apt").break_lease(reason="stuck for an hour", by="anna")
        assert breaking is not None
        assert (breaking.removed, breaking.was.holder, breaking.was.purpose) == (False, lease.holder, "publish")
        seen = client.lock("apt").inspect()
        assert seen is not None
        assert (seen.revoked_by, seen.revoke_reason) == ("anna", "stuck for an hour")
        until(lambda: not lease.is_held)
    # the section has ended, so its holder gave the key back: nobody waits for the ttl
    assert client.lock("apt").inspect() is None
    (entry,) = audit(store)
    assert (entry["by"], entry["reason"], entry["what"], entry["holder"], entry["token"]) == (
        "anna",
        "stuck for an hour",
        "revoked",
        lease.holder,
        "1",
    )


def test_break_lease_now_removes_and_returns_the_overlap(client: Client, other: Client, store: Faulty) -> None:
    lease = other.lock("apt", ttl=60).acquire()
    breaking = client.lock("apt").break_lease(reason="its host is gone", now=True)
    assert breaking is not None
    assert breaking.removed
    assert breaking.max_overlap == pytest.approx(60.6)
    assert breaking.overlap_until is not None
    assert client.lock("apt").inspect() is None
    assert audit(store)[0]["what"] == "removed"
    with client.lock("apt").hold(timeout=10) as successor:
        assert lease.release() is False
        successor.check()


def test_whoever_comes_after_a_broken_lease_finds_who_was_cut_off(client: Client, other: Client) -> None:
    lease = other.lock("apt", ttl=60, owner="nightly").acquire()
    client.lock("apt").break_lease(reason="its host is gone", now=True)
    assert client.list() == []
    assert client.lock("apt").break_lease(reason="again", now=True) is None
    assert not client.verify(f"{lease.token or 1}:exclusive:apt")
    with client.lock("apt").hold(timeout=0) as successor:
        assert successor.previous_lease == PreviousLease(LeaseOutcome.REVOKED, "nightly", lease.holder)
    with client.lock("apt").hold(timeout=0) as next_one:
        assert next_one.previous_lease == PreviousLease(LeaseOutcome.CLEAN)
    assert lease.release() is False


def test_the_next_holder_learns_of_a_noticed_revocation(client: Client, other: Client) -> None:
    lease = other.lock("apt", ttl=3, owner="nightly").acquire()
    client.lock("apt").break_lease(reason="a test", by="anna")
    until(lambda: not lease.is_held)
    assert lease.lost_reason is LossReason.REVOKED
    assert lease.release() is True
    assert client.lock("apt").inspect() is None
    with client.lock("apt").hold(timeout=0) as successor:
        assert successor.previous_lease == PreviousLease(LeaseOutcome.REVOKED, "nightly", lease.holder)


def test_a_section_that_ends_before_noticing_a_break_is_clean(client: Client, other: Client) -> None:
    for now in (False, True):
        with other.lock("apt", ttl=60).hold(timeout=0):
            client.lock("apt").break_lease(reason="a test", now=now)
        with client.lock("apt").hold(timeout=0) as successor:
            assert successor.previous_lease == PreviousLease(LeaseOutcome.CLEAN)


@pytest.mark.parametrize("now", [False, True])
def test_the_next_holder_learns_of_a_members_revocation(client: Client, other: Client, now: bool) -> None:
    """The owner releases the lease by its ticket, and has noticed nothing."""
    ticket = other.lock("apt", ttl=3, owner="nightly").acquire().detach()
    member = client.lock("apt").attach(ticket)
    client.lock("apt").break_lease(reason="a test", now=now)
    until(lambda: not member.is_held)
    assert member.lost_reason is LossReason.REVOKED
    assert member.release() is True
    # what was broken at once was over before, and is not given back
    assert other.release(ticket) is not now
    assert client.lock("apt").inspect() is None
    with client.lock("apt").hold(timeout=0) as successor:
        assert successor.previous_lease == PreviousLease(LeaseOutcome.REVOKED, "nightly", ticket.holder)


def test_h04_a_lost_answer_to_the_end_of_a_lost_lease_leaves_it_free(client: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=3, owner="nightly").acquire()
    client.lock("apt").break_lease(reason="a test")
    until(lambda: not lease.is_held)
    answers = iter([True])

    def loses(command: Command[Any]) -> None:
        if isinstance(command, Extend) and "ended" in command.fields and next(answers, False):
            lose_answer(command)

    store.after = loses
    assert lease.release() is True
    with client.lock("apt").hold(timeout=0) as successor:
        assert successor.previous_lease.ending is LeaseOutcome.REVOKED


def test_an_ended_record_is_renewed_and_attached_to_by_nobody(client: Client, other: Client) -> None:
    lease = other.lock("apt", ttl=60).acquire()
    ticket = lease.share()
    client.lock("apt").break_lease(reason="a test", now=True)
    for attempt in (client.lock("apt").attach, client.lock("apt").renew):
        with pytest.raises(LeaseLost, match="REVOKED"):
            attempt(ticket)
    assert client.lock("apt").inspect() is None
    lease.release(drain=0)


def test_h12_a_broken_lease_removes_nothing_of_its_successors(client: Client, other: Client, store: Faulty) -> None:
    lease = other.lock("apt", ttl=3).acquire()
    client.lock("apt").break_lease(reason="a test", now=True)
    with client.lock("apt").hold(timeout=20) as successor:
        until(lambda: not lease.is_held)
        assert lease.lost_reason is LossReason.TAKEN
        with pytest.raises(LeaseLost):
            lease.sequencer()
        assert lease.release() is False
        successor.check()


def test_a_second_break_writes_only_a_missing_audit_entry(client: Client, other: Client, store: Faulty) -> None:
    ticket = other.lock("apt", ttl=60).acquire().detach()
    lock = client.lock("apt")
    for by in ("anna", "bert"):
        breaking = lock.break_lease(reason=f"because {by}", by=by)
        assert breaking is not None
        assert not breaking.removed
        assert breaking.was.revoked_by == (None if by == "anna" else "anna")
    (entry,) = audit(store)
    assert entry["by"] == "anna"
    store.inner.perform(Remove(Name("apt"), ticket.incarnation), 1.0)
    other.lock("apt", ttl=60).acquire().detach()

    store.after = lambda command: lose_answer(command) if isinstance(command, Extend) else None
    with pytest.raises(OutcomeUnknown):
        lock.break_lease(reason="because anna", by="anna")
    store.after = lambda _command: None
    lock.break_lease(reason="because bert", by="bert")
    assert [(one["by"], one["what"]) for one in audit(store)] == [("anna", "revoked"), ("anna", "revoked")]


def test_two_who_break_a_lease_at_once_revoke_and_audit_it_once(client: Client, other: Client, store: Faulty) -> None:
    other.lock("apt", ttl=60).acquire().detach()
    rival = Client(store.beside(), listener=quiet)

    def overtake(command: Command[Any]) -> None:
        if isinstance(command, Extend) and "revoked" in command.fields:
            store.before = overtake_audit
            assert rival.lock("apt").break_lease(reason="because bert", by="bert") is not None

    def overtake_audit(command: Command[Any]) -> None:
        if isinstance(command, Create) and command.name.space is Space.AUDIT:
            store.before = lambda _command: None
            rival.lock("apt").break_lease(reason="because carl", by="carl")

    store.before = overtake
    with rival:
        late = client.lock("apt").break_lease(reason="because anna", by="anna")
        assert late is not None
        assert late.was.revoked_by == "bert"
        (entry,) = rival.history("apt")
    assert (entry.by, entry.reason, entry.what, entry.mode, entry.slot) == (
        "bert",
        "because bert",
        "revoked",
        "exclusive",
        None,
    )


def test_the_audit_says_which_reader_or_permit_was_broken(client: Client) -> None:
    index, pool = client.lock("index", mode="shared"), client.semaphore("pool", 3)
    reader, permit = index.acquire(), pool.acquire()
    held = index.inspect()
    assert held is not None
    assert permit.slot is not None
    assert index.break_lease(reason="stuck", reader=held.readers[0]) is not None
    assert index.break_lease(reason="stuck") is not None
    assert pool.break_lease(slot=permit.slot, reason="stuck") is not None
    said = [(entry.key, entry.mode, entry.slot, entry.holder) for entry in client.history()]
    assert set(said) == {
        ("index", "shared", None, reader.holder),
        ("index", "shared", None, held.holder),
        ("pool", f"permit/{permit.slot}", permit.slot, permit.holder),
    }


def test_break_lease_of_nothing_is_none_and_needs_a_reason(client: Client, store: Faulty) -> None:
    assert client.lock("apt").break_lease(reason="a test") is None
    assert audit(store) == []
    with pytest.raises(ValueError, match="reason"):
        client.lock("apt").break_lease(reason=" ")


def test_break_lease_of_an_earlier_incarnation_spares_the_later_one(client: Client) -> None:
    with client.lock("apt").hold():
        seen = client.lock("apt").inspect()
        assert seen is not None
    with client.lock("apt").hold() as lease:
        for now in (False, True):
            assert client.lock("apt").break_lease(reason="late", now=now, incarnation=seen.incarnation) is None
        lease.check()


def test_a_break_whose_audit_cannot_be_written_is_told_as_done(store: Faulty) -> None:
    told: list[LockEvent] = []

    def refuse_audit(command: object) -> None:
        if isinstance(command, Create) and command.name.space is Space.AUDIT:
            refuse(command)

    with Client(store, listener=told.append) as client:
        lease = client.lock("apt", ttl=60).acquire()
        store.before = refuse_audit
        assert client.lock("apt").break_lease(reason="a test", now=True) is not None
        assert [event for event in told if isinstance(event, EngineWarning) and "audit" in event.message]
        assert client.lock("apt").inspect() is None
        lease.release()


def test_the_lock_delay_keeps_the_key_from_others_after_a_loss(client: Client, other: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=3, lock_delay=30).acquire()
    seen = other.lock("apt").break_lease(reason="a test")
    assert seen is not None
    until(lambda: not lease.is_held)
    # who lost a lease with a delay gives nothing back
    assert lease.release() is False
    assert store.count(Remove) == 0
    assert other.lock("apt").try_acquire() is None


def test_a_removal_of_a_lease_with_a_delay_leaves_a_tombstone(client: Client, other: Client) -> None:
    lease = client.lock("apt", ttl=3, lock_delay=1).acquire()
    breaking = other.lock("apt").break_lease(reason="a test", now=True)
    assert breaking is not None
    assert breaking.removed
    assert other.lock("apt").try_acquire() is None
    until(lambda: not lease.is_held)
    with other.lock("apt").hold(timeout=60) as successor:
        assert successor.previous_lease.ending is LeaseOutcome.REVOKED


def test_a_clean_release_ends_at_once_whatever_the_delay(client: Client) -> None:
    with client.lock("apt", lock_delay=60).hold():
        pass
    with client.lock("apt").hold(timeout=0) as lease:
        assert lease.previous_lease.ending is LeaseOutcome.CLEAN


def test_an_owner_that_reads_closing_stops_renewing(client: Client, other: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    entry = store.inner._memory.entries[lockstead.values.Name("apt")]
    entry.fields["closing"] = "1"
    until(lambda: not lease.is_held)
    renewed = store.count(Extend)
    until(lambda: (seen := other.lock("apt").inspect()) is None or seen.is_expired)
    assert store.count(Extend) == renewed


def test_the_awaiting_side_breaks_and_reclaims_alike() -> None:
    async def use() -> None:
        store = Faulty()
        async with AsyncClient(store, listener=quiet) as client:
            with Client(store.beside(), listener=quiet) as dead:
                dead.lock("apt", ttl=300, owner="nightly").acquire()
            lock = client.lock("apt", owner="nightly", ttl=3)
            lease = await lock.acquire(timeout=20, reclaim=True)
            breaking = await lock.break_lease(reason="a test", by="tester")
            assert breaking is not None
            await asyncio.to_thread(until, lambda: not lease.is_held)
            assert lease.lost_reason is LossReason.REVOKED
            assert await lease.release() is True
            assert len(audit(store)) == 1

    asyncio.run(use())


def test_h24_a_damaged_record_is_refused_until_an_operator_removes_it(client: Client, store: Faulty) -> None:
    store.perform(Create(Name("apt"), {"v": "1", "identity": "x", "ttl": "not a number"}), 1.0)
    lock = client.lock("apt")
    with pytest.raises(lockstead.StoreRefused, match=r"'apt' is damaged.*break it with now=True"):
        lock.try_acquire()
    with pytest.raises(lockstead.StoreRefused, match="'apt' is damaged"):
        lock.break_lease(reason="cannot be read")
    broken = lock.break_lease(reason="cannot be read", by="ops", now=True)
    assert broken is not None
    assert broken.removed
    with lock.hold(timeout=5) as lease:
        lease.check()


@pytest.mark.parametrize("fields", [{"v": "2", "identity": "x", "ttl": "60"}, {"owner": "somebody else"}])
def test_h24_h30_what_is_newer_or_not_ours_is_not_even_removed(
    client: Client, store: Faulty, fields: dict[str, str]
) -> None:
    store.perform(Create(Name("apt"), fields, lifetime=0.0), 1.0)
    with pytest.raises(lockstead.StoreRefused, match="'apt'"):
        client.lock("apt").break_lease(reason="in the way", now=True)


def test_rule_12_reclaim_spares_a_siblings_pending_grant(client: Client, store: Faulty) -> None:
    """The sibling's Create has landed and its answer is on the way: the keeper does not know of the lease yet."""
    landed, may_answer = threading.Event(), threading.Event()

    def slow(command: Command[Any]) -> None:
        if isinstance(command, Create) and command.name == Name("apt") and not landed.is_set():
            landed.set()
            assert may_answer.wait(20)

    store.after = slow
    got: list[lockstead.Lease | None] = []
    sibling = threading.Thread(target=lambda: got.append(client.lock("apt", owner="nightly", ttl=300).try_acquire()))
    sibling.start()
    try:
        assert landed.wait(20)
        assert client.lock("apt", owner="nightly", ttl=300).try_acquire(reclaim=True) is None
    finally:
        may_answer.set()
        sibling.join(20)
    (lease,) = got
    assert lease is not None
    lease.check()
    assert lease.release()
    assert not client._engine.pending_holders
