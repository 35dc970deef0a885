"""What several masters answer together: counting, and the arithmetic of how long a holder may believe."""

from __future__ import annotations

from itertools import product

import pytest

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Removed, Snapshot
from lockstead.protocol.expiry import holder_deadline, record_lifetime
from lockstead.stores.redlock.scripts import Keys, Seen, inner_name, milliseconds, outer_name
from lockstead.stores.redlock.url import MASTER_LIMIT, RESTART_DELAY
from lockstead.stores.redlock.votes import (
    Vote,
    Votes,
    by_extend,
    by_read,
    by_remove,
    by_vote,
    quorum_of,
    rival,
)
from lockstead.values import Name, Space


def record(incarnation: str, count: int = 1, total: str = "0", *, done: bool = True, vote: str = "") -> Seen:
    raw = {b"i": incarnation.encode(), b"n": str(count).encode(), b"x": total.encode(), b".n": str(count).encode()}
    return Seen(done, incarnation, count, total, vote, raw)


NOTHING = Seen(True)
REFUSED = Seen(False)


def votes(*seen: Seen | StoreError | None, young: tuple[int, ...] = ()) -> Votes:
    """Return a votes of masters in order: what it showed, None for silence, an error for what was surely not done."""
    made = Votes(len(seen), young=set(young))
    for place, one in enumerate(seen):
        match one:
            case Seen():
                made.seen[place] = one
            case None:
                made.silent.add(place)
            case _:
                made.failed[place] = one
    return made


DOWN = StoreUnavailable("down")


def test_any_two_quorums_have_a_master_in_common_and_no_fewer_would() -> None:
    for masters in range(3, 12):
        assert 2 * quorum_of(masters) > masters
        assert 2 * (quorum_of(masters) - 1) <= masters


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        ((record("a"), record("a"), None), Snapshot),
        ((record("a"), None, record("a")), Snapshot),
        ((NOTHING, NOTHING, None), Absent),
        ((record("a"), NOTHING, NOTHING), Absent),
        # votes of three who all failed: nobody holds it, now or later
        ((record("a"), record("b"), NOTHING), Absent),
        ((record("a"), record("b"), record("c")), Absent),
        # the third could make it a quorum
        ((record("a"), NOTHING, None), None),
        ((record("a"), NOTHING, DOWN), None),
        ((record("a"), record("b"), None), None),
        ((NOTHING, DOWN, DOWN), None),
    ],
)
def test_a_read_returns_the_quorums_record_or_absent(seen: tuple[Seen | None], answer: object) -> None:
    found = by_read(votes(*seen), True)
    assert found is None if answer is None else isinstance(found, answer)  # type: ignore[arg-type]  # a class


def test_what_a_young_master_does_not_have_proves_nothing() -> None:
    assert by_read(votes(NOTHING, NOTHING, NOTHING), True) == Absent()
    assert by_read(votes(record("a"), NOTHING, NOTHING, young=(1, 2)), True) is None
    assert by_extend(votes(record("a"), REFUSED, REFUSED), True) == Absent()
    assert by_extend(votes(record("a"), REFUSED, REFUSED, young=(1, 2)), True) is None


def test_a_vote_does_not_depend_on_the_order_of_masters() -> None:
    kinds = (record("a"), record("b"), NOTHING, None, DOWN)
    for one, two, three in product(kinds, repeat=3):
        found = {
            type(by_read(votes(*order), True))
            for order in ((one, two, three), (two, three, one), (three, one, two), (three, two, one))
        }
        assert len(found) == 1


def test_one_state_of_the_masters_has_one_incarnation() -> None:
    # whichever masters answer: two readers of the same moment never see two holders, nor a holder and nobody
    for state in product((record("a"), record("b"), NOTHING), repeat=5):
        seen = set()
        for heard in product((True, False), repeat=5):
            answer = by_read(
                votes(*(one if is_heard else None for one, is_heard in zip(state, heard, strict=True))), True
            )
            if answer is not None:
                seen.add(answer.incarnation if isinstance(answer, Snapshot) else None)
        assert len(seen) <= 1, state


def test_the_revision_is_what_a_quorum_agrees_on_and_else_marked() -> None:
    agreed = by_read(votes(record("a", 2, "7"), record("a", 1, "3"), record("a", 2, "7")), True)
    assert isinstance(agreed, Snapshot)
    assert agreed.revision == "2.7"
    pictures = (record("a", 3, "9"), record("a", 2, "7"), None)
    assert by_read(votes(*pictures), False) is None, "the third may agree with one of them"
    marked = by_read(votes(*pictures), True)
    assert isinstance(marked, Snapshot)
    assert marked.revision.startswith("3.9~")
    assert marked.fields == {"n": "3"}


def test_disagreeing_masters_are_merged_by_the_most_applied() -> None:
    one, two = record("a", 3, "9"), record("a", 2, "7")
    raw = {**two.raw, b".revoked": b"by somebody"}
    seen = by_read(votes(one, Seen(True, "a", 2, "7", "", raw), None), True)
    assert isinstance(seen, Snapshot)
    assert seen.fields == {"n": "3", "revoked": "by somebody"}


def test_an_extend_succeeds_by_quorum_and_is_refused_without() -> None:
    other = record("b", done=False)
    assert isinstance(by_extend(votes(record("a"), record("a"), other), True), Snapshot)
    assert by_extend(votes(record("a"), other, other), True) == Conflict()
    assert by_extend(votes(record("a"), other, REFUSED), True) == Conflict()
    assert by_extend(votes(record("a"), REFUSED, REFUSED), True) == Absent()
    assert by_extend(votes(record("a"), REFUSED, None), True) is None
    assert by_extend(votes(record("a"), DOWN, DOWN), True) is None


def test_a_remove_succeeds_by_quorum_and_is_unknown_by_less() -> None:
    done = Seen(True)
    assert by_remove(votes(done, done, None), True) == Removed()
    assert by_remove(votes(REFUSED, REFUSED, None), True) == Absent()
    assert by_remove(votes(REFUSED, record("b", done=False), None), True) == Conflict()
    assert by_remove(votes(done, REFUSED, REFUSED), True) is None
    assert by_remove(votes(done, REFUSED, None), True) is None


def test_a_vote_is_won_by_a_quorum_and_a_rival_is_who_has_one() -> None:
    yes, a, b = Seen(True), record("a", done=False), record("b", done=False)
    assert by_vote(votes(yes, yes, None), False) is Vote.WON
    assert by_vote(votes(a, a, None), False) is Vote.LOST
    assert by_vote(votes(yes, a, None), False) is None
    assert by_vote(votes(yes, a, None), True) is Vote.LOST
    assert rival(votes(a, yes, a)) == Conflict()
    assert rival(votes(REFUSED, REFUSED, yes)) == Absent()
    assert rival(votes(a, b, yes)) is None, "nobody has it, so nobody is in the way for good"
    assert rival(votes(a, None, yes)) is None


def test_what_too_few_answered_is_of_the_class_that_is_certain() -> None:
    refused = StoreRefused("wrong password")
    where = "h{}".format
    cases: list[tuple[Votes, bool, type[StoreError]]] = [
        (votes(NOTHING, DOWN, DOWN), False, StoreUnavailable),
        (votes(NOTHING, None, DOWN), True, OutcomeUnknown),
        (votes(refused, refused, NOTHING), False, StoreRefused),
        (votes(refused, DOWN, NOTHING), False, StoreUnavailable),
    ]
    for counted, may_be_done, kind in cases:
        error = counted.shortage(where, may_be_done=may_be_done)
        assert type(error) is kind
        assert "1 of 3 masters answered, 2 are needed" in str(error)
        assert "h1: " in str(error)


def test_a_server_that_failed_in_an_unknown_way_may_have_done_it() -> None:
    counted = votes(Seen(True), OutcomeUnknown("what?"), DOWN, None, REFUSED)
    assert counted.doubtful == {0, 1, 3}


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [1.0, 5.0, 300.0, 3600.0])
@pytest.mark.parametrize("drift", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("elapsed", [0.0, MASTER_LIMIT, 2.0])
def test_no_master_drops_a_record_while_its_holder_believes(ttl: float, drift: float, elapsed: float) -> None:
    """validity = ttl - elapsed - drift: a quorum that has the record keeps it beyond the holder's deadline."""
    sent_at = 1000.0
    # the earliest that a master can have written it is the send; by its own clock, which may run faster by the drift
    lifetime = milliseconds(record_lifetime(ttl, 0.0, drift)) / 1000
    dropped_at = sent_at + lifetime / (1 + drift)
    assert dropped_at >= sent_at + ttl
    deadline = holder_deadline(sent_at, ttl, drift)
    assert deadline <= dropped_at
    believes_for = deadline - (sent_at + elapsed)
    assert believes_for == pytest.approx(ttl - elapsed - ttl * drift)


def test_a_restarted_master_abstains_longer_than_leases_live() -> None:
    assert record_lifetime(300.0, 60.0, 0.01) < RESTART_DELAY
    assert record_lifetime(300.0, 60.0, 0.05) < RESTART_DELAY


def test_a_records_lifetime_is_rounded_up_and_finite() -> None:
    assert milliseconds(0.0) > 80 * 86_400_000
    for min_retention in (0.0005, 1.0, 303.0, 303.0004):
        assert milliseconds(min_retention) >= min_retention * 1000


# --- names -----------------------------------------------------------------------------------------------------------


def test_h23_names_are_written_one_to_one_and_read_back() -> None:
    keys, seen = Keys("lock:s"), set()
    for key, part in product(("a", "a:b", "a%3Ab", "%", ":", "index", "old:lock"), ("", "1/x", "b:c", ":")):
        for space in Space:
            name = Name(key, space, part)
            assert outer_name(space, inner_name(name).encode()) == name
            seen |= set(keys.of(name)[:2])
    assert len(seen) == 7 * 4 * len(Space) * 2
    assert not seen & {keys.of(Name("a", space))[2] for space in Space}
