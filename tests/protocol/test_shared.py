"""Readers and writers: directed scenarios for the rules S1 to S12 of shared leases and the hazards M1 to M13.

A test whose name has `_s03_` shows rule S3; one whose name has `_m03_` shows hazard M3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lockstead.errors import LossReason
from lockstead.protocol import keeping
from lockstead.protocol.acquire import AcquireRequest, Contended, Grant, acquire
from lockstead.protocol.commands import (
    Conflict,
    Create,
    Extend,
    List,
    Pause,
    Paused,
    Read,
    Remove,
    Replace,
    Reply,
    StoreClock,
    Traits,
)
from lockstead.protocol.context import LeaseId, ProtocolContext
from lockstead.protocol.lifecycle import Action, LeaseState
from lockstead.protocol.members import (
    DOWNGRADED,
    MEMBERS_MAX,
    Attached,
    Introduction,
    MemberRenewed,
    attach,
    member_name,
    renew_member,
    sift,
)
from lockstead.protocol.readers import attempt_shared
from lockstead.protocol.record import Record, Revocation, encode, revocation_text
from lockstead.protocol.release import (
    Outcome,
    UsedLease,
    break_lease,
    give_back,
    left_group,
    may_remove_after_loss,
    sweep,
)
from lockstead.protocol.renew import Over, renew
from lockstead.renewal import RENEWALS_PER_TTL
from lockstead.runtime.engine import Engine
from lockstead.settings import Settings
from lockstead.stores.memory import MemoryStore
from lockstead.values import SHARED, LeaseOutcome, Name, PreviousLease, Space
from tests.protocol.bench import APT, Bench, Session
from tests.simulation.expiring import EXPIRING
from tests.simulation.store import DATED, NONE
from tests.simulation.store import SHARED as ONE_CLOCK

ALL: tuple[Traits, ...] = (ONE_CLOCK, DATED, NONE, EXPIRING)
CLOCKS = pytest.mark.parametrize("traits", ALL, ids=lambda traits: traits.clock.name)
JUDGING = pytest.mark.parametrize("traits", [ONE_CLOCK, DATED, NONE], ids=lambda traits: traits.clock.name)
"""Stores whose clients judge the age of a record."""

TTL = 10.0
REVOKED = {"revoked": revocation_text(Revocation(by="me", reason="repair"))}


# --- words ------------------------------------------------------------------------------------------------------------


def reader(bench: Bench, holder: str) -> AcquireRequest:
    ttl = bench.settings.ttl
    group = encode(Record(f"shared/{holder}", ttl, mode=SHARED))
    registration = encode(Record(holder, ttl, owner=holder))
    return AcquireRequest(APT, holder, holder, group, nonce=holder, registration=registration)


def reading(
    bench: Bench,
    holder: str | AcquireRequest,
    context: ProtocolContext | None = None,
    *,
    tries_once: bool = False,
    gives_up_at: float = math.inf,
) -> Session:
    request = reader(bench, holder) if isinstance(holder, str) else holder
    return bench.session(
        acquire(
            request,
            context or bench.context(),
            attempt=attempt_shared,
            gives_up_at=gives_up_at,
            tries_once=tries_once,
        )
    )


def read_by(bench: Bench, holder: str, context: ProtocolContext | None = None) -> Grant:
    """Acquire the lock as a reader."""
    grant = reading(bench, holder, context, tries_once=True).run()
    assert isinstance(grant, Grant)
    assert grant.joined is not None
    return grant


def informed(bench: Bench) -> ProtocolContext:
    """Return the context of a client that has just seen the group being renewed, so that its join moves no revision."""
    context = bench.context()
    seen = bench.store.perform(Read(APT))
    context.observe(APT, Reply(seen, bench.now, bench.now), seen)
    bench.now += 0.1
    bench.store.perform(Extend(APT, {}, seen.incarnation))
    return context


def state_of(bench: Bench, grant: Grant) -> LeaseState:
    return keeping.granted(grant, reader(bench, "unused"), bench.settings, 0.0)


def registration_of(grant: Grant) -> LeaseId:
    assert grant.joined is not None
    return grant.joined.registration


def renewal(bench: Bench, grant: Grant, context: ProtocolContext) -> Session:
    return bench.session(renew_member(grant.lease, registration_of(grant), {}, context, mode=SHARED))


def leaves(bench: Bench, grant: Grant) -> Session:
    """Release a reader's lease; its belief has ended before."""
    return bench.session(left_group(registration_of(grant), grant.lease, bench.context()))


def stepped(session: Session, kind: type[Any]) -> Any:
    """Commit commands until one of this kind is next, and return that one."""
    for _ in range(20):
        if isinstance(session.command, kind):
            return session.command
        session.commit()
    raise AssertionError(f"no {kind.__name__} in sight, but {session.command}")


def waits(session: Session) -> Session:
    """Run until the next pause."""
    while not isinstance(session.command, Pause):
        assert not session.is_over, session.outcome
        session.commit()
    return session


def second_look(session: Session) -> Session:
    """Let the first look of a waiting writer go by."""
    waits(session).wait(0.1)
    session.expect(Read)
    return session


def registrations(bench: Bench) -> list[Name]:
    return [name for name in bench.store.entries if name.space is Space.MEMBER]


def fields_of(bench: Bench) -> Mapping[str, str]:
    entry = bench.standing()
    assert entry is not None
    return entry.fields


def wanted(bench: Bench) -> str:
    return fields_of(bench).get("wanted", "")


def grants(*sessions: Session) -> list[Session]:
    return [one for one in sessions if isinstance(one.outcome, Grant)]


def lapse(bench: Bench, times: float = 1.0) -> None:
    """Let a ttl with its margins go by."""
    bench.now += times * (bench.settings.ttl * (1 + bench.settings.drift) + bench.traits.clock_skew_max) + 1.1


def late(session: Session) -> Any:
    """The next command stays on its way; its sender knows nothing of it."""
    return session.late(0.1)


# --- every interleaving with two switches ----------------------------------------------------------------------------


def with_switches(scene: Callable[[], tuple[Session, Session]]) -> list[str]:
    """Play all orders in which each of two sessions is interrupted once; return those in which both got the lock."""
    both = []
    for is_swapped in (False, True):
        for first_steps in range(12):
            for second_steps in range(12):
                pair = scene()
                one, other = reversed(pair) if is_swapped else pair
                _steps(one, first_steps)
                _steps(other, second_steps)
                one.run()
                other.run()
                if len(grants(one, other)) == 2:
                    both.append(f"{first_steps} {second_steps} {is_swapped}")
    return both


def _steps(session: Session, count: int) -> None:
    for _ in range(count):
        if session.is_over:
            return
        if isinstance(session.command, Pause):
            session.wait()
        else:
            session.commit()


@CLOCKS
@pytest.mark.parametrize("waits_first", [False, True])
@pytest.mark.parametrize("stands", ["nothing", "a group", "a marked group"])
def test_m01_reader_and_writer_never_both_get_in(traits: Traits, waits_first: bool, stands: str) -> None:
    def scene() -> tuple[Session, Session]:
        bench = Bench(traits, ttl=TTL)
        if stands != "nothing":
            gone = read_by(bench, "gone")
            if stands == "a marked group":
                bench.store.perform(Extend(APT, {"wanted": "w#0"}, gone.lease.incarnation))
            bench.store.perform(Remove(registration_of(gone).name, registration_of(gone).incarnation))
        context = bench.context() if stands == "nothing" else informed(bench)
        writer = bench.want("w")
        writer.has_waited = waits_first
        return reading(bench, "r", context, tries_once=True), bench.asking(writer, tries_once=True)

    assert with_switches(scene) == []


# --- S1: find or found the group -------------------------------------------------------------------------------------


@CLOCKS
def test_s01_the_founder_believes_nothing_before_its_registration(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    founder = reading(bench, "r", tries_once=True).commit()
    founder.expect(Create)
    founder.commit()
    writer = bench.asking("w", tries_once=True)
    assert isinstance(writer.run(), Grant)
    assert not isinstance(founder.run(), Grant)


@CLOCKS
def test_s01_a_founder_whose_answer_was_lost_joins_what_it_finds(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    founder = reading(bench, "r").commit()
    founder.expect(Create)
    founder.lose(after=0.5)
    grant = founder.run()
    assert isinstance(grant, Grant)
    assert bench.holder == "shared/r"
    assert len(registrations(bench)) == 1


@CLOCKS
def test_s01_readers_of_one_group_have_one_token(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    first, second = read_by(bench, "a"), read_by(bench, "b")
    assert first.lease.incarnation == second.lease.incarnation
    assert first.token == second.token
    assert len(registrations(bench)) == 2


@pytest.mark.parametrize("changes", [{"closing": "1"}, REVOKED, {"wanted": "w#1"}, {"mode": "seniors"}])
def test_s01_nobody_joins_a_group_that_ends(changes: Mapping[str, str]) -> None:
    bench = Bench(ttl=TTL)
    grant = read_by(bench, "a")
    bench.store.perform(Extend(APT, changes, grant.lease.incarnation))
    session = reading(bench, "b", tries_once=True)
    assert isinstance(session.run(), Contended)
    assert len(registrations(bench)) == 1


def test_s01_a_known_group_that_is_gone_is_looked_for() -> None:
    bench = Bench(ttl=TTL)
    context = bench.context()
    leaves(bench, read_by(bench, "a", context)).run()
    bench.store.erase(APT)
    session = reading(bench, "b", context, tries_once=True)
    session.expect(Create)
    grant = session.run()
    assert isinstance(grant, Grant)
    assert registrations(bench) == [registration_of(grant).name]


def test_m05_founder_killed_before_it_registers() -> None:
    bench = Bench(ttl=TTL)
    founder = reading(bench, "r").commit()
    founder.expect(Create)
    founder.commit()
    # an empty group: a writer gets in at once, even if it only tries
    assert isinstance(bench.asking("w", tries_once=True).run(), Grant)


# --- S2: the earlier of two deadlines counts -------------------------------------------------------------------------


@JUDGING
def test_s02_record_lapses(traits: Traits) -> None:
    """Only the registration is renewed; a client that knows no readers takes over the record (M8)."""
    bench = Bench(traits, ttl=TTL)
    grant = read_by(bench, "r")
    state = state_of(bench, grant)
    contender = waits(bench.asking("old"))
    bench.now += TTL / 2
    state.registered(bench.now + TTL * 0.99, bench.now)
    bench.store.perform(Extend(registration_of(grant).name, {}, registration_of(grant).incarnation))
    lapse(bench, 0.6 if traits.clock is not StoreClock.NONE else 1.0)
    assert not state.believes(bench.now)
    # neither marked nor listed: the record is over
    stepped(contender.wait(0.1), Replace)


@pytest.mark.parametrize("own_ttl", [TTL / 2, 3 * TTL])
def test_s02_a_reader_takes_the_ttl_of_the_group(own_ttl: float) -> None:
    """A writer judges the registration by the ttl that is in it, so the belief must not be longer."""
    bench = Bench(ONE_CLOCK, ttl=TTL)
    read_by(bench, "founder")
    other = Bench(ONE_CLOCK, ttl=own_ttl)
    sent_at = bench.now
    grant = reading(bench, reader(other, "r"), other.context(), tries_once=True).run()
    assert bench.store.entries[registration_of(grant).name].fields["ttl"] == "10"
    assert grant.lease.ttl == TTL
    assert grant.deadline == pytest.approx(sent_at + TTL * 0.99)


def test_s02_a_join_counts_from_the_earlier_of_its_two_deadlines() -> None:
    bench = Bench(NONE, ttl=TTL, renew_every=1, max_failures=2, abort_margin=1, request_timeout=0.5)
    first = read_by(bench, "a")
    context = bench.context()
    seen = bench.store.perform(Read(APT))
    context.observe(APT, Reply(seen, bench.now, bench.now), seen)
    bench.now += 2
    bench.store.perform(Extend(APT, {}, first.lease.incarnation))
    bench.now += 2
    # the record was renewed at some time since the first read, the registration is new
    grant = read_by(bench, "b", context)
    assert grant.joined is not None
    assert grant.deadline == grant.joined.record_deadline == pytest.approx(1000 + TTL * 0.99)
    assert state_of(bench, grant).deadline == grant.deadline
    # a slow answer: the record is extended long after the registration was sent
    slow = reading(bench, "c", tries_once=True)
    stepped(slow, Create)
    sent_at = bench.now
    slow.commit(after=1.0)
    late_grant = slow.run()
    assert late_grant.deadline == pytest.approx(sent_at + TTL * 0.99)
    assert state_of(bench, late_grant).deadline == late_grant.deadline


@CLOCKS
def test_s02_registration_lapses_while_siblings_renew(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    silent = read_by(bench, "silent")
    state = state_of(bench, silent)
    context, watcher = bench.context(), bench.context()
    sibling = read_by(bench, "sibling", context)
    while bench.now < 1000 + 2 * TTL:
        bench.now += TTL / 8
        assert isinstance(renewal(bench, sibling, context).run(), MemberRenewed)
        # the record is as young as ever
        state.renewed(bench.now, bench.now + TTL * 0.99, bench.now)
        assert isinstance(bench.asking("w", watcher, tries_once=True).run(), Contended)
    assert not state.believes(bench.now)
    leaves(bench, sibling).run()
    assert isinstance(bench.asking("w", watcher, tries_once=True).run(), Grant)


@CLOCKS
def test_m03_reader_dies_and_the_writer_gets_in_by_its_ttl(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    grant = read_by(bench, "r")
    state = state_of(bench, grant)
    writer = bench.asking("w")
    died_at = bench.now
    outcome = writer.run(2000)
    assert isinstance(outcome, Grant)
    assert not state.believes(bench.now)
    assert bench.now - died_at < 2 * (TTL * 1.01 + traits.clock_skew_max) + bench.settings.backoff_max


# --- S3: register, then read -----------------------------------------------------------------------------------------


@CLOCKS
def test_s03_mark_and_list_fall_between_registration_and_read(traits: Traits) -> None:
    """Mark and list before the registration, or mark before and list after it: one of the two sees the other (M1)."""
    bench = Bench(traits, ttl=TTL)
    read_by_and_gone(bench)
    context = bench.context()
    context.observations.note_group(APT, group_of(bench))
    session = reading(bench, "r", context, tries_once=True)
    session.expect(Create)
    writer = bench.asking(waiting(bench, "w"))
    stepped(writer, Extend)
    writer.commit().expect(List)
    writer.commit().expect(Replace)
    session.commit().expect(Read)
    # registered after the list: the read shows the mark
    assert isinstance(session.run(), Contended)
    assert isinstance(writer.run(), Grant)
    assert registrations(bench) == []


@CLOCKS
@pytest.mark.parametrize("is_repeated", [False, True])
def test_s03_a_reader_whose_join_had_no_answer_withdraws_when_a_writer_waits(traits: Traits, is_repeated: bool) -> None:
    bench = Bench(traits, ttl=TTL)
    founder = read_by(bench, "founder")
    session = reading(bench, "r")
    stepped(session, Create)
    session.commit().expect(Read)
    session.late(0.1)
    assert len(registrations(bench)) == 2
    bench.store.perform(Extend(APT, {"wanted": "w#1"}, founder.lease.incarnation))
    session.wait().commit()
    if is_repeated:
        session.unsent()
        waits(session).wait().commit()
    waits(session)
    assert registrations(bench) == [registration_of(founder).name]
    # it looks no more for what it has removed, and joins under another name
    session.wait().commit().expect(Pause)
    bench.store.perform(Extend(APT, {"wanted": ""}, founder.lease.incarnation))
    grant = session.run()
    assert isinstance(grant, Grant)
    assert registration_of(grant).name.part.endswith("r.1")


def waiting(bench: Bench, holder: str) -> AcquireRequest:
    request = bench.want(holder)
    request.has_waited = True
    return request


def group_of(bench: Bench) -> LeaseId:
    seen = bench.store.perform(Read(APT))
    return LeaseId(APT, seen.fields["identity"], seen.incarnation, TTL)


def read_by_and_gone(bench: Bench) -> LeaseId:
    """Leave an empty group behind."""
    grant = read_by(bench, "gone")
    leaves(bench, grant).run()
    assert registrations(bench) == []
    return grant.lease


@CLOCKS
def test_s03_a_group_that_was_replaced_is_not_joined(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    context = bench.context()
    context.observations.note_group(APT, read_by_and_gone(bench))
    assert isinstance(bench.asking("w", tries_once=True).run(), Grant)
    session = reading(bench, "r", context, tries_once=True)
    session.expect(Create)
    assert isinstance(session.run(), Contended)
    assert registrations(bench) == []


@CLOCKS
def test_s03_a_group_with_a_new_incarnation_is_another_group(traits: Traits) -> None:
    """The same founder's name in another life of the record: nobody lists the old registrations."""
    bench = Bench(traits, ttl=TTL)
    known = read_by_and_gone(bench)
    bench.store.erase(APT)
    bench.store.perform(Create(APT, encode(Record(known.holder, TTL, mode=SHARED)), TTL, min_retention=TTL))
    context = bench.context()
    context.observations.note_group(APT, known)
    grant = read_by(bench, "r", context)
    assert grant.lease.incarnation != known.incarnation
    assert isinstance(bench.asking("w", tries_once=True).run(), Contended)


@CLOCKS
def test_s03_withdrawal_in_flight_ends_the_belief(traits: Traits) -> None:
    """A withdrawal is late, and the reader registers again in the same group: it must not lose that registration."""
    bench = Bench(traits, ttl=TTL)
    sibling = read_by(bench, "sibling")
    context = bench.context()
    context.observations.note_group(APT, sibling.lease)
    session = reading(bench, "r", context)
    stepped(session, Read)
    bench.store.perform(Extend(APT, {"wanted": "w#1"}, sibling.lease.incarnation))
    session.commit().expect(Remove)
    withdrawals = []
    while isinstance(session.command, Remove):
        withdrawals.append(late(session))
        if isinstance(session.command, Pause):
            session.wait()
    waits(session)
    bench.store.perform(Extend(APT, {"wanted": ""}, sibling.lease.incarnation))
    grant = session.run()
    assert isinstance(grant, Grant)
    for command in withdrawals:
        bench.store.perform(command)
    leaves(bench, sibling).run()
    assert registration_of(grant).name in registrations(bench)
    assert isinstance(bench.asking(waiting(bench, "w"), tries_once=True).run(), Contended)


@CLOCKS
def test_s03_a_late_renewal_revives_no_reader(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    context = bench.context()
    grant = read_by(bench, "r", context)
    state = state_of(bench, grant)
    bench.now += TTL / 2
    session = renewal(bench, grant, context)
    session.commit().commit()
    lapse(bench)
    outcome = session.run() if not session.is_over else session.outcome
    if isinstance(outcome, MemberRenewed):
        state.registered(outcome.registration_deadline, bench.now)
        state.renewed(outcome.sent_at, outcome.record_deadline, bench.now)
    assert not state.believes(bench.now)
    assert state.reason is LossReason.EXPIRED or not isinstance(outcome, MemberRenewed)


# --- S4: mark --------------------------------------------------------------------------------------------------------


@CLOCKS
def test_s04_a_try_that_sees_a_reader_leaves_no_mark(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    read_by(bench, "r")
    request = bench.want("w")
    assert isinstance(bench.asking(request, tries_once=True).run(), Contended)
    assert (wanted(bench), request.signs) == ("", 0)


@CLOCKS
def test_s04_a_try_marks_and_takes_a_group_without_readers(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    read_by_and_gone(bench)
    session = bench.asking("w", tries_once=True)
    stepped(session, Extend)
    assert session.command.fields == {"wanted": "w#1"}
    stepped(session.commit(), List)
    assert isinstance(session.run(), Grant)


@pytest.mark.parametrize("ttl", [2.0, 10.0, 60.0])
def test_s04_a_writer_that_waits_is_never_taken_for_dead(ttl: float) -> None:
    """Even if each of its pauses is as long as can be."""
    bench = Bench(ttl=ttl)
    context = bench.context()
    grant = read_by(bench, "r", context)
    writer = second_look(bench.asking("w"))
    marks, ends_at = set(), bench.now + 10 * ttl
    while bench.now < ends_at:
        pause = waits(writer).expect(Pause).draw(lambda: 1.0)
        marks.add(wanted(bench))
        started_at = bench.now
        while bench.now + ttl / RENEWALS_PER_TTL < started_at + pause:
            bench.now += ttl / RENEWALS_PER_TTL
            assert isinstance(renewal(bench, grant, context).run(), MemberRenewed)
            marks.add(wanted(bench))
        writer.sent_at = started_at
        writer.answer(Paused(pause), started_at + pause - bench.now)
        assert isinstance(renewal(bench, grant, context).run(), MemberRenewed)
    assert "" not in marks
    assert len(marks) <= 10 * RENEWALS_PER_TTL + 1


def test_s04_one_of_two_writers_gives_signs_of_life() -> None:
    bench = Bench(ttl=TTL)
    context = bench.context()
    grant = read_by(bench, "r", context)
    writers = [second_look(bench.asking(name)) for name in ("w", "v")]
    names = set()
    for _ in range(60):
        for writer in writers:
            while not isinstance(writer.command, Pause):
                writer.commit()
        names.add(wanted(bench).partition("#")[0])
        for writer in writers:
            writer.wait(0.3)
        renewal(bench, grant, context).run()
    assert names == {"w"}
    leaves(bench, grant).run()
    assert isinstance(writers[1].run(), Grant)


# --- S5: list after an answer that shows the mark --------------------------------------------------------------------


@CLOCKS
def test_s05_list_before_the_mark(traits: Traits) -> None:
    """The reader joins after the first list and before the mark: a second list shows it."""
    bench = Bench(traits, ttl=TTL)
    read_by_and_gone(bench)
    context = informed(bench)
    writer = bench.asking("w", tries_once=True)
    stepped(writer, Extend)
    grant = read_by(bench, "r", context)
    assert isinstance(writer.run(), Contended)
    assert bench.now < grant.deadline


@CLOCKS
def test_s05_mark_without_an_answer(traits: Traits) -> None:
    """The mark is on its way when the writer would list: a reader may still join."""
    bench = Bench(traits, ttl=TTL)
    read_by_and_gone(bench)
    context = informed(bench)
    writer = bench.asking(waiting(bench, "w"))
    stepped(writer, Extend)
    late(writer)
    while not isinstance(writer.command, Pause | Replace):
        writer.commit()
    grant = read_by(bench, "r", context)
    waits(writer)
    assert bench.now < grant.deadline


@CLOCKS
def test_s05_a_live_reader_at_the_bound_keeps_the_group(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    context = bench.context()
    grant = read_by(bench, "r", context)
    writer = bench.asking("w", gives_up_at=bench.now + 5)
    while not writer.is_over:
        if isinstance(writer.command, Pause):
            writer.wait(1.0)
            renewal(bench, grant, context).run()
        else:
            writer.commit()
    assert isinstance(writer.outcome, Contended)
    assert bench.now < grant.deadline


@JUDGING
def test_s05_a_dead_reader_renews_as_it_is_removed(traits: Traits) -> None:
    """Judged dead by a list; its renewal lands before the removal (M3)."""
    bench = Bench(traits, ttl=TTL)
    grant = read_by(bench, "slow")
    sibling_context = bench.context()
    sibling = read_by(bench, "sibling", sibling_context)
    observer = bench.context()
    own = registration_of(grant)
    writer = bench.asking(waiting(bench, "w"), observer)
    while not (isinstance(writer.command, Remove) and writer.command.name == own.name):
        if isinstance(writer.command, Pause):
            writer.wait(0.5)
            renewal(bench, sibling, sibling_context).run()
        else:
            writer.commit()
    # the request of a reader that is slow, not dead: it reached the store in time
    bench.store.perform(Extend(own.name, {}, own.incarnation, lifetime=TTL))
    writer.commit()
    leaves(bench, sibling).run()
    while not isinstance(writer.command, Pause):
        assert not writer.is_over, "a reader that renewed was not seen"
        writer.commit()
    assert own.name in registrations(bench)


def test_m09_ten_thousand_dead_readers_are_forgotten_in_one_wait() -> None:
    bench = Bench(NONE, ttl=TTL)
    group = read_by(bench, "r").lease
    for number in range(MEMBERS_MAX - 1):
        fields = encode(Record(f"r{number}", TTL))
        bench.store.perform(Create(member_name(group, f"r{number}"), fields, TTL))
    context = bench.context()
    for _ in range(2):
        seen = bench.store.perform(Read(APT))
        context.observe(APT, Reply(seen, bench.now, bench.now), seen)
        listing = bench.store.perform(List(Space.MEMBER, "apt", f"{group.incarnation}/"))
        sifting = bench.session(sift(Reply(listing, bench.now, bench.now), context, "w"))
        removed = 0
        while not sifting.is_over:
            sifting.expect(Remove)
            sifting.commit()
            removed += 1
        lapse(bench)
    assert removed == MEMBERS_MAX


@pytest.mark.parametrize("dead", [3, 300])
def test_m09_one_draw_judges_all_dead_readers_of_a_list(dead: int) -> None:
    bench = Bench(DATED, ttl=TTL)
    group = read_by(bench, "r").lease
    for number in range(dead):
        fields = encode(Record(f"r{number}", TTL))
        bench.store.perform(Create(member_name(group, f"r{number}"), fields, TTL))
    lapse(bench)
    listing = bench.store.perform(List(Space.MEMBER, "apt", f"{group.incarnation}/"))
    sifting = bench.session(sift(Reply(listing, bench.now, bench.now), bench.context(), "w"))
    commands = []
    while not sifting.is_over:
        commands.append(sifting.command)
        sifting.commit()
    assert sum(command.name.space is Space.COMPANION for command in commands) <= 2
    assert sum(isinstance(command, Remove) for command in commands) == dead + 1


# --- S6: Replace by the revision that showed the mark ----------------------------------------------------------------


def between_list_and_replace(bench: Bench) -> Session:
    writer = bench.asking(waiting(bench, "w"), tries_once=True)
    stepped(writer, Replace)
    return writer


@CLOCKS
@pytest.mark.parametrize("is_doubled", [False, True])
def test_s06_mark_removed_and_reader_joined_between_list_and_replace(traits: Traits, is_doubled: bool) -> None:
    """The mark is removed by a late request (M2), or removed and set again."""
    bench = Bench(traits, ttl=TTL)
    group = read_by_and_gone(bench)
    context = informed(bench)
    writer = between_list_and_replace(bench)
    bench.store.perform(Extend(APT, {"wanted": ""}, group.incarnation))
    grant = read_by(bench, "r", context)
    if is_doubled:
        bench.store.perform(Extend(APT, {"wanted": "w#1"}, group.incarnation))
    assert not isinstance(writer.run(), Grant)
    assert bench.now < grant.deadline


@CLOCKS
def test_m02_a_late_removal_of_the_mark_by_a_reader_expects_its_revision(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    context = bench.context()
    grant = read_by(bench, "r", context)
    bench.store.perform(Extend(APT, {"wanted": "dead#1"}, grant.lease.incarnation))
    removal = removal_of_a_stale_mark(bench, grant, context)
    # another writer marks it meanwhile
    bench.store.perform(Extend(APT, {"wanted": "w#1"}, grant.lease.incarnation))
    assert isinstance(bench.store.perform(removal), Conflict)
    assert wanted(bench) == "w#1"


def removal_of_a_stale_mark(bench: Bench, grant: Grant, context: ProtocolContext) -> Extend:
    """Return the request by which a reader that renews removes the mark of a dead writer, which stays on its way."""
    for _ in range(40):
        session = renewal(bench, grant, context)
        while not session.is_over:
            command = session.command
            if isinstance(command, Extend) and "wanted" in command.fields:
                late(session)
                session.run()
                return command
            session.commit()
        bench.now += TTL / 8
    raise AssertionError("the mark of a dead writer stays")


# --- S7: the mark may be removed by anybody --------------------------------------------------------------------------


@CLOCKS
def test_s07_m04_dead_writers_mark_is_removed_by_who_reads(traits: Traits) -> None:
    """M4: readers join again within a ttl and a renewal."""
    bench = Bench(traits, ttl=TTL)
    context = bench.context()
    grant = read_by(bench, "r", context)
    writer = second_look(bench.asking("dead"))
    stepped(writer, Extend)
    writer.commit()
    died_at = bench.now
    assert isinstance(reading(bench, "b", tries_once=True).run(), Contended)
    while wanted(bench):
        bench.now += TTL / 8
        assert isinstance(renewal(bench, grant, context).run(), MemberRenewed)
        assert bench.now - died_at < TTL * 1.01 + 2 * TTL / 8 + 0.1
    assert bench.now - died_at > TTL
    assert isinstance(reading(bench, "b", tries_once=True).run(), Grant)


@CLOCKS
@pytest.mark.parametrize("then", ["ours", "of another", "none"])
def test_s07_a_writer_that_gives_up_removes_its_own_mark(traits: Traits, then: str) -> None:
    bench = Bench(traits, ttl=TTL)
    grant = read_by(bench, "r")
    writer = second_look(bench.asking("w", gives_up_at=bench.now + 3))
    assert isinstance(writer.run(), Contended)
    assert wanted(bench).startswith("w#")
    if then != "ours":
        text = "v#1" if then == "of another" else ""
        bench.store.perform(Extend(APT, {"wanted": text}, grant.lease.incarnation))
    assert bench.session(sweep(APT, "w", bench.context())).run() is False
    assert wanted(bench) == ("v#1" if then == "of another" else "")
    assert bench.holder == "shared/r"


# --- S8: the last reader ends a group that is wanted -----------------------------------------------------------------


@CLOCKS
def test_s08_the_last_reader_ends_a_group_that_is_wanted(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    first, second = read_by(bench, "a"), read_by(bench, "b")
    bench.store.perform(Extend(APT, {"wanted": "w#1"}, first.lease.incarnation))
    assert leaves(bench, first).run() is Outcome.REMOVED
    assert bench.holder == "shared/a"
    assert leaves(bench, second).run() is Outcome.REMOVED
    assert fields_of(bench).get("ended") == "1"


@CLOCKS
def test_s08_m10_the_key_is_left_to_the_writer_that_waited(traits: Traits) -> None:
    """Readers that come all the time do not found the next group before it looks; of a dead one they wait one pause."""
    bench = Bench(traits, ttl=TTL, backoff_max=2.0)
    first = read_by(bench, "a")
    bench.store.perform(Extend(APT, {"wanted": "w/1#1"}, first.lease.incarnation))
    leaves(bench, first).run()
    assert isinstance(reading(bench, "b", tries_once=True).run(), Contended)
    assert isinstance(bench.asking("other", tries_once=True).run(), Contended)
    late = bench.context()
    assert isinstance(reading(bench, "c", late, tries_once=True).run(), Contended)
    grant = bench.asking("w", tries_once=True).run()
    assert isinstance(grant, Grant)
    bench.store.perform(Remove(APT, grant.lease.incarnation))
    first = read_by(bench, "d")
    bench.store.perform(Extend(APT, {"wanted": "w/1#1"}, first.lease.incarnation))
    leaves(bench, first).run()
    assert isinstance(reading(bench, "c", late, tries_once=True).run(), Contended)
    bench.now += 2.1
    assert isinstance(reading(bench, "c", late, tries_once=True).run(), Grant)


@CLOCKS
def test_s08_a_group_that_nobody_wants_stays_for_the_next_reader(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    left = read_by_and_gone(bench)
    assert read_by(bench, "b").lease.incarnation == left.incarnation


@CLOCKS
@pytest.mark.parametrize("is_wanted", [False, True])
def test_s08_reader_joins_as_the_last_one_leaves(traits: Traits, is_wanted: bool) -> None:
    """Between the list and the removal by the last one, the mark is removed and a reader joins."""
    bench = Bench(traits, ttl=TTL)
    first = read_by(bench, "a")
    if is_wanted:
        bench.store.perform(Extend(APT, {"wanted": "w#1"}, first.lease.incarnation))
    context = informed(bench)
    leaving = leaves(bench, first)
    leaving.commit()
    while not leaving.is_over and not (isinstance(leaving.command, Remove | Extend)):
        leaving.commit()
    if is_wanted:
        leaving.expect(Extend)
        bench.store.perform(Extend(APT, {"wanted": ""}, first.lease.incarnation))
    grant = read_by(bench, "b", context)
    leaving.run()
    assert bench.holder == "shared/a"
    assert bench.now < grant.deadline


@CLOCKS
@pytest.mark.parametrize("steps", range(5))
def test_s08_two_last_readers_end_the_group_once(traits: Traits, steps: int) -> None:
    bench = Bench(traits, ttl=TTL)
    first, second = read_by(bench, "a"), read_by(bench, "b")
    bench.store.perform(Extend(APT, {"wanted": "w#1"}, first.lease.incarnation))
    one, other = leaves(bench, first), leaves(bench, second)
    _steps(one, steps)
    other.run()
    one.run()
    assert fields_of(bench).get("ended") == "1"
    assert isinstance(bench.asking("w", tries_once=True).run(), Grant)


# --- S9: a ticket passes the mark ------------------------------------------------------------------------------------


def attaching(bench: Bench, grant: Grant, nonce: str, context: ProtocolContext | None = None) -> Session:
    introduced_by = Introduction(registration_of(grant).holder, registration_of(grant).incarnation)
    fields = encode(Record(nonce, TTL, owner=nonce))
    script = attach(grant.lease, nonce, fields, context or bench.context(), mode=SHARED, introduced_by=introduced_by)
    return bench.session(script)


@CLOCKS
def test_s09_m11_ticket_passes_the_mark_while_its_issuer_reads(traits: Traits) -> None:
    """M11: otherwise the tasks of a group and the writer that waits for it would wait for each other."""
    bench = Bench(traits, ttl=TTL)
    issuer = read_by(bench, "issuer")
    bench.store.perform(Extend(APT, {"wanted": "w#1"}, issuer.lease.incarnation))
    joined = attaching(bench, issuer, "task").run()
    assert isinstance(joined, Attached)
    assert isinstance(reading(bench, "stranger", tries_once=True).run(), Contended)
    leaves(bench, issuer).run()
    assert isinstance(bench.asking(waiting(bench, "w"), tries_once=True).run(), Contended)
    bench.session(left_group(joined.registration, joined.lease, bench.context())).run()
    assert isinstance(bench.asking("w", tries_once=True).run(), Grant)


@CLOCKS
def test_s09_issuer_leaves_between_attach_and_list(traits: Traits) -> None:
    """Whenever the issuer leaves and the writer lists, one of task and writer sees the other."""
    for steps in range(8):
        for more in range(8):
            bench = Bench(traits, ttl=TTL)
            issuer = read_by(bench, "issuer")
            own = registration_of(issuer)
            bench.store.perform(Extend(APT, {"wanted": "w#1"}, issuer.lease.incarnation))
            session = attaching(bench, issuer, "task", informed(bench))
            writer = bench.asking(waiting(bench, "w"), tries_once=True)
            _steps(session, steps)
            # the issuer is killed after its withdrawal, so that it does not end the group
            bench.store.perform(Remove(own.name, own.incarnation))
            _steps(writer, more)
            joined = session.run()
            writer.run()
            assert not (isinstance(joined, Attached) and isinstance(writer.outcome, Grant)), (steps, more)


def test_s09_an_issuer_that_registered_anew_introduces_nobody() -> None:
    bench = Bench(ttl=TTL)
    issuer = read_by(bench, "issuer")
    own = registration_of(issuer)
    bench.store.erase(own.name)
    bench.store.perform(Create(own.name, encode(Record("issuer", TTL)), TTL))
    bench.store.perform(Extend(APT, {"wanted": "w#1"}, issuer.lease.incarnation))
    session = attaching(bench, issuer, "task")
    assert isinstance(session.run(), Over)


# --- S10: downgrade --------------------------------------------------------------------------------------------------


def downgrading(bench: Bench, holder: str = "a") -> tuple[LeaseState, Session]:
    """Register under an exclusive lease; return its state, and the session of the change of mode that follows."""
    grant = bench.granted(holder)
    state = bench.lease_state(grant)
    joined = bench.joined(grant.lease, holder)
    state.registration = joined.registration
    state.registered(joined.registration_deadline, bench.now)
    state.downgraded()
    return state, bench.session(renew(grant.lease, DOWNGRADED, bench.context()))


def given_back(bench: Bench, state: LeaseState) -> Session:
    state.leave()
    return bench.session(give_back(state, bench.context(), bound_at=math.inf))


@CLOCKS
def test_s10_nobody_gets_in_during_a_downgrade(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    state, session = downgrading(bench)
    incarnation, token = state.lease.incarnation, bench.store.entries[APT].token
    assert isinstance(bench.asking("w", tries_once=True).run(), Contended)
    session.run()
    # now it keeps writers out as a reader, and others read beside it
    assert isinstance(bench.asking("w", tries_once=True).run(), Contended)
    grant = read_by(bench, "r")
    assert (grant.lease.incarnation, bench.store.entries[APT].token) == (incarnation, token)
    assert given_back(bench, state).run() is Outcome.REMOVED
    assert isinstance(bench.asking("w", tries_once=True).run(), Contended)
    leaves(bench, grant).run()
    assert isinstance(bench.asking("w", tries_once=True).run(), Grant)


@CLOCKS
def test_s10_a_downgrade_that_never_took_effect_is_released(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    state, _never_sent = downgrading(bench)
    given_back(bench, state).run()
    assert (bench.standing(), registrations(bench)) == (None, [])


@CLOCKS
def test_s10_downgrade_lands_after_the_release(traits: Traits) -> None:
    """Just before the release removes the record it becomes a group, and a reader joins."""
    bench = Bench(traits, ttl=TTL)
    state, session = downgrading(bench)
    command = session.command
    leaving = given_back(bench, state)
    while not (isinstance(leaving.command, Remove) and leaving.command.name == APT):
        leaving.commit()
    bench.store.perform(command)
    grant = read_by(bench, "r")
    leaving.run()
    assert bench.holder == "a"
    assert bench.now < grant.deadline
    # and one that is later still changes nothing
    leaves(bench, grant).run()
    bench.store.erase(APT)
    bench.store.perform(command)
    assert bench.standing() is None


@CLOCKS
@pytest.mark.parametrize("is_clean", [True, False])
def test_s10_downgrade_lands_during_a_sweep(traits: Traits, is_clean: bool) -> None:
    """The release got no answer, so the record is swept; the downgrade lands between read and removal."""
    bench = Bench(traits, ttl=TTL)
    state, session = downgrading(bench)
    sweeping = bench.session(sweep(APT, "a", bench.context(), UsedLease(state.lease.incarnation, is_clean=is_clean)))
    sweeping.commit().expect(Remove if is_clean else Extend)
    bench.store.perform(session.command)
    grant = read_by(bench, "r")
    assert sweeping.run() is False
    assert "ended" not in fields_of(bench)
    assert bench.now < grant.deadline


@CLOCKS
def test_s10_a_renewal_repeats_a_downgrade_that_failed(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    state, _never_sent = downgrading(bench)
    assert state.registration is not None
    script = renew_member(state.lease, state.registration, {}, bench.context(), mode=SHARED)
    assert isinstance(bench.session(script).run(), MemberRenewed)
    assert isinstance(reading(bench, "r", tries_once=True).run(), Grant)


# --- S11: how the last exclusive lease ended -------------------------------------------------------------------------

CRASHED = PreviousLease(LeaseOutcome.EXPIRED, "crashed", "crashed")


@JUDGING
@pytest.mark.parametrize("ends_by", ["time", "the last reader", "a break"])
def test_s11_m13_expired_travels_through_readers_to_the_next_writer(traits: Traits, ends_by: str) -> None:
    """M13: an unclean writer, readers, another group of readers, a writer."""
    bench = Bench(traits, ttl=TTL)
    bench.granted("crashed")
    context = bench.context()
    waits(reading(bench, "a", context))
    lapse(bench)
    first = read_by(bench, "a", context)
    assert first.previous_lease == CRASHED
    if ends_by == "the last reader":
        bench.store.perform(Extend(APT, {"wanted": "gone/1#1"}, first.lease.incarnation))
        leaves(bench, first).run()
        assert isinstance(reading(bench, "b", context, tries_once=True).run(), Contended)
        bench.now += bench.settings.backoff_max + 0.1
    elif ends_by == "a break":
        revocation = Revocation(by="me", reason="repair")
        breaking = break_lease(APT, revocation, context, now=True, incarnation=None, salt="me")
        assert bench.session(breaking).run() is not None
    else:
        seen = bench.store.perform(Read(APT))
        context.observe(APT, Reply(seen, bench.now, bench.now), seen)
        lapse(bench)
        context.observations.groups.clear()
    second = read_by(bench, "b", context)
    assert second.lease.incarnation != first.lease.incarnation
    assert second.previous_lease == CRASHED
    leaves(bench, second).run()
    writer = bench.asking("w", tries_once=True).run()
    assert isinstance(writer, Grant)
    assert writer.previous_lease == CRASHED


@JUDGING
def test_s11_a_group_that_lapsed_is_a_clean_end(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    context = bench.context()
    read_by(bench, "a")
    waits(bench.asking("w", context))
    lapse(bench)
    grant = bench.asking("w", context, tries_once=True).run()
    assert isinstance(grant, Grant)
    assert grant.previous_lease.ending is LeaseOutcome.CLEAN


# --- S12: lock-delay -------------------------------------------------------------------------------------------------


def test_s12_readers_wait_for_a_dead_writers_lock_delay() -> None:
    bench = Bench(ttl=TTL, lock_delay=20)
    bench.granted("w")
    lapse(bench)
    assert isinstance(reading(bench, "r", tries_once=True).run(), Contended)
    bench.now += 20
    assert isinstance(reading(bench, "r", tries_once=True).run(), Grant)


def test_s12_a_registration_has_no_lock_delay() -> None:
    engine = Engine(MemoryStore())
    try:
        request = engine.new_request(APT, Settings.make(ttl=TTL, lock_delay=20, mode=SHARED), reclaim=False)
        assert request.registration["identity"] == request.holder
        assert not {"lock_delay"} & {*request.registration, *request.fields}
        exclusive = engine.new_request(APT, Settings.make(ttl=TTL, lock_delay=20), reclaim=False)
        assert exclusive.fields["lock_delay"] == "20"
    finally:
        engine.close()


# --- others: old clients, breaks, reclaims, unknown modes ------------------------------------------------------------


@CLOCKS
def test_m06_nobody_reclaims_a_group_or_adopts_it(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    grant = read_by(bench, "a")
    assert isinstance(bench.asking(bench.want("a2", owner="a", reclaim=True), tries_once=True).run(), Contended)
    # not even if it has our name
    assert isinstance(bench.asking(bench.want("shared/a"), tries_once=True).run(), Contended)
    assert "closing" not in fields_of(bench)
    assert bench.now < grant.deadline


@CLOCKS
def test_m06_a_broken_group_ends_with_the_next_renewal_of_each_reader(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    grants_ = [read_by(bench, "a"), read_by(bench, "b")]
    revocation = Revocation(by="me", reason="repair")
    breaking = break_lease(APT, revocation, bench.context(), now=False, incarnation=None, salt="me")
    assert bench.session(breaking).run().revoked
    assert isinstance(bench.asking("w", tries_once=True).run(), Contended)
    for grant in grants_:
        over = renewal(bench, grant, bench.context()).run()
        assert over == Over(LossReason.REVOKED, "by me: repair")
        state = state_of(bench, grant)
        state.lose(over.reason)
        assert may_remove_after_loss(state, bench.now)
        bench.session(give_back(state, bench.context(), bound_at=math.inf)).run()
    # the last one frees it: readers need not wait for its ttl
    assert bench.standing() is None
    assert isinstance(reading(bench, "c", tries_once=True).run(), Grant)


@CLOCKS
@pytest.mark.parametrize("now", [True, False])
def test_m06_a_registration_that_was_broken_before_its_answer_is_not_adopted(traits: Traits, now: bool) -> None:
    bench = Bench(traits, ttl=TTL)
    read_by(bench, "b")
    request = reader(bench, "a")
    session = reading(bench, request)
    while not (isinstance(session.command, Create) and session.command.name.space is Space.MEMBER):
        session.commit()
    first = session.command.name
    session.lose()
    broken = break_lease(first, Revocation("me", "repair"), bench.context(), now=now, incarnation=None, salt="me")
    assert bench.session(broken).run() is not None
    grant = session.run()
    assert isinstance(grant, Grant)
    assert registration_of(grant).name != first
    assert first not in bench.store.entries
    assert isinstance(bench.asking("w", tries_once=True).run(), Contended)


@CLOCKS
def test_m06_a_break_of_one_reader_spares_the_others(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    one, other = read_by(bench, "a"), read_by(bench, "b")
    own = registration_of(one)
    revocation = Revocation(by="me", reason="repair")
    breaking = break_lease(own.name, revocation, bench.context(), now=False, incarnation=own.incarnation, salt="me")
    assert bench.session(breaking).run().revoked
    assert renewal(bench, one, bench.context()).run() == Over(LossReason.REVOKED, "by me: repair")
    assert isinstance(renewal(bench, other, bench.context()).run(), MemberRenewed)
    leaves(bench, other).run()
    # revoked is not over: it may believe until its next renewal
    assert isinstance(bench.asking("w", tries_once=True).run(), Contended)
    leaves(bench, one).run()
    assert isinstance(bench.asking("w", tries_once=True).run(), Grant)


@JUDGING
def test_m07_a_record_of_an_unknown_mode_is_held_until_its_time_is_up(traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    fields = encode(Record("x/1", TTL, owner="x", mode="seniors"))
    seen = bench.store.perform(Create(APT, fields, TTL))
    context = bench.context()
    lease = LeaseId(APT, "x/1", seen.incarnation, TTL)
    assert isinstance(reading(bench, "r", context, tries_once=True).run(), Contended)
    assert isinstance(bench.asking("w", context, tries_once=True).run(), Contended)
    assert isinstance(
        bench.asking(bench.want("x/2", owner="x", reclaim=True), context, tries_once=True).run(), Contended
    )
    assert isinstance(bench.asking(bench.want("x/1"), context, tries_once=True).run(), Contended)
    assert isinstance(bench.attaching(lease, "m").run(), Over)
    assert registrations(bench) == []
    assert bench.store.perform(Read(APT)).revision == seen.revision
    lapse(bench)
    assert isinstance(bench.asking("w", context, tries_once=True).run(), Grant)


def test_m08_readers_lose_a_group_whose_record_cannot_be_renewed() -> None:
    bench = Bench(NONE, ttl=TTL)
    context = bench.context()
    grant = read_by(bench, "r", context)
    state = state_of(bench, grant)
    while bench.now < 1000 + TTL * 0.99:
        bench.now += 1
        session = renewal(bench, grant, context)
        session.commit().commit()
        # the registration was renewed, the record is not
        if session.is_over:
            assert session.outcome.record_deadline <= state.record_deadline
        else:
            assert session.command == Extend(APT, {}, grant.lease.incarnation, lifetime=TTL)
        state.registered(bench.now + TTL * 0.99, bench.now)
        if bench.now >= state.notify_at:
            assert state.next_action(bench.now) is Action.NOTIFY_LOSS
            break
    assert state.reason is LossReason.EXPIRED
    assert not state.believes(bench.now)


# --- order -----------------------------------------------------------------------------------------------------------


def test_m10_a_steady_stream_of_readers_lets_a_writer_in() -> None:
    bench = Bench(ttl=TTL)
    inside = [read_by(bench, "r0")]
    writer = second_look(bench.asking("w"))
    stepped(writer, Extend)
    writer.commit()
    for number in range(1, 20):
        session = reading(bench, f"r{number}", tries_once=True)
        if isinstance(session.run(), Grant):
            inside.append(session.outcome)
    assert len(inside) == 1
    leaves(bench, inside[0]).run()
    assert isinstance(writer.run(), Grant)


@CLOCKS
def test_m10_an_earlier_reader_in_the_queue_and_a_writer_behind_it_both_get_in(traits: Traits) -> None:
    """The writer's mark keeps the reader out, and the reader's place the writer: the empty group must go."""
    bench = Bench(traits, ttl=TTL)
    read_by_and_gone(bench)
    queue = bench.store.queue
    place = ("process", 1)
    for waiter in ("r", "w"):
        queue.join(APT, waiter, place)
    asks, writes = reader(bench, "r"), waiting(bench, "w")
    asks.has_waited = True
    context = bench.context()
    writer = bench.asking(writes, context)
    waits(writer)
    session = reading(bench, asks, tries_once=True)
    grant = session.run()
    assert isinstance(grant, Grant)
    queue.leave(APT, "r")
    leaves(bench, grant).run()
    assert isinstance(writer.run(), Grant)


def test_m10_a_reader_that_joined_gives_up_its_place_in_the_queue() -> None:
    bench = Bench(ttl=TTL)
    request = reader(bench, "r")
    assert not request.may_keep_place
    request.has_waited = True
    assert request.may_keep_place
