"""Waiting until a key is free without asking for it: what counts as free, and that nothing is ever written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, OutOfTime, Pause, Paused, Read, Reply, Snapshot, StoreClock, Traits
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.expiry import FOREIGN_ALLOWANCE
from lockstead.protocol.release import RecordStatus
from lockstead.protocol.waiting import Found, until_free
from lockstead.settings import Settings
from lockstead.stores.gcs.store import TRAITS as DATED
from lockstead.stores.memory.store import TRAITS as SHARED
from lockstead.values import Name

APT = Name("apt")
OURS = {"v": "1", "identity": "ci/7/0", "owner": "ci/7", "ttl": "60"}
NO_CLOCK = replace(SHARED, clock=StoreClock.NONE)


def seen(
    fields: dict[str, str] | None = None, *, age: float | None = 0.0, now: float = 1000.0, **more: object
) -> Snapshot:
    """Return a record as a store shows it, last changed `age` seconds ago."""
    updated_at = None if age is None else now - age
    made = Snapshot(fields or OURS, "7", "1", updated_at, None if age is None else now)
    return replace(made, **more)


class Talk:
    """Drives one wait by hand, in virtual time: each read takes no time, each pause is the longest it may be."""

    def __init__(self, *, traits: Traits = SHARED, limit: float = math.inf, **settings: object) -> None:
        self.now = 0.0
        self.commands: list[object] = []
        self.told: list[RecordStatus] = []
        self.script = until_free(
            APT,
            ProtocolContext(traits, Settings.make(**settings)),  # type: ignore[arg-type] # handed on
            gives_up_at=limit,
            tries_once=limit == 0,
            on_wait=self.told.append,
        )

    def run(self, answer: Callable[[float], Snapshot | Absent | StoreError], *, turns: int = 200) -> Found:
        """Answer every read by the time it is; give how the wait ends."""
        try:
            command = next(self.script)
            for _ in range(turns):
                self.commands.append(command)
                sent_at = self.now
                if isinstance(command, Pause):
                    self.now += (seconds := command.draw(lambda: 1.0))
                    command = self.script.send(Reply(Paused(seconds), sent_at, self.now))
                    continue
                said = answer(self.now)
                if isinstance(said, StoreError):
                    command = self.script.throw(said)
                else:
                    command = self.script.send(Reply(said, sent_at, self.now))
        except StopIteration as stop:
            found: Found = stop.value
            return found
        finally:
            assert {type(command) for command in self.commands} <= {Read, Pause}
        raise AssertionError("it goes on")


def test_a_key_without_a_record_is_free_at_once() -> None:
    talk = Talk()
    assert talk.run(lambda _now: Absent()) == Found(None, is_free=True)
    assert (len(talk.commands), talk.told) == (1, [])


def test_a_holder_is_told_once_and_waited_for() -> None:
    talk = Talk()
    assert talk.run(lambda now: seen() if now < 30 else Absent()).is_free
    assert [status.record.owner for status in talk.told] == ["ci/7"]
    assert 30 <= talk.now <= 35


def test_pauses_grow_from_the_shortest_to_the_longest_backoff() -> None:
    talk = Talk(backoff_min=0.1, backoff_max=5)
    talk.run(lambda now: seen() if now < 60 else Absent())  # it is renewed all the time
    pauses = [command for command in talk.commands if isinstance(command, Pause)]
    assert {pause.at_least for pause in pauses} == {0.1}
    assert [pause.at_most for pause in pauses[:5]] == pytest.approx([0.1, 0.3, 0.9, 2.7, 5.0])
    assert max(pause.at_most for pause in pauses) == 5.0


@pytest.mark.parametrize("traits", [SHARED, DATED], ids=["one clock", "two clocks"])
def test_h01_a_record_expired_by_the_stores_clock_is_free(traits: Traits) -> None:
    over = 60 * 1.01 + traits.clock_skew_max
    assert not Talk(traits=traits, limit=0).run(lambda _now: seen(age=over - 0.001)).is_free
    found = Talk(traits=traits, limit=0).run(lambda _now: seen(age=over + 0.001))
    assert found.is_free
    assert found.status is not None


def test_h01_without_a_store_clock_an_unchanged_record_expires() -> None:
    talk = Talk(traits=NO_CLOCK)
    assert talk.run(lambda _now: seen(age=None)).is_free
    assert 60 * 1.01 < talk.now <= 60 * 1.01 + 0.2
    # and not while it is renewed
    talk = Talk(traits=NO_CLOCK, limit=300)
    assert not talk.run(lambda now: seen(age=None, revision=str(now // 20))).is_free


@pytest.mark.parametrize("traits", [SHARED, DATED], ids=["one clock", "two clocks"])
def test_h01_a_waiter_reads_when_the_record_can_be_over(traits: Traits) -> None:
    for renewed_last_at in (0.0, 3.3, 40.1):
        talk = Talk(traits=traits)

        def answer(now: float, until: float = renewed_last_at) -> Snapshot:
            return seen(age=max(0.0, now - until), now=1000 + now, revision=str(min(now, until)))

        assert talk.run(answer).is_free
        # two clocks err by the granularity, unless the waiter saw the last renewal itself
        over = 60 * 1.01 + traits.clock_skew_max
        assert 60 * 1.01 < talk.now - renewed_last_at <= over + max(0.1, traits.pace)


def test_h01_a_waiter_reads_when_the_foreign_allowance_is_over() -> None:
    until = 90 + FOREIGN_ALLOWANCE
    foreign = {"identity": "gem/1", "expires_at": str(1000 + 90)}
    talk = Talk(traits=DATED)
    assert talk.run(lambda now: seen(foreign, age=now, now=1000 + now)).is_free
    assert until < talk.now <= until + DATED.pace


def test_h01_a_waiter_reads_when_an_assumed_ttl_is_over() -> None:
    over = 60 * 1.01 + DATED.clock_skew_max
    for found_at in (0.0, 7.0):
        talk = Talk(traits=DATED, foreign_ttl=60)
        until = over - found_at

        def answer(now: float, age: float = found_at) -> Snapshot:
            return seen({"identity": "gcslock"}, age=age + now, now=1000 + now)

        assert talk.run(answer).is_free
        assert until - DATED.clock_skew_max < talk.now <= until + DATED.pace


def test_h01_waiters_of_one_record_do_not_read_in_one_instant() -> None:
    context = ProtocolContext(DATED, Settings.make(backoff_min=0.1))
    pause = context.waiting_pause(APT, "", 5.0, wake_on_change=True, over_in=2.0)
    assert pause.draw(lambda: 0.0) == 0.1
    assert pause.draw(iter([0.3, 0.9]).__next__) == pytest.approx(0.1 + 4.9 * 0.3)
    assert pause.draw(iter([0.9, 0.5]).__next__) == pytest.approx(2.0 + DATED.pace / 2)
    # and a look that was too early by a hair is not followed by many
    assert context.waiting_pause(APT, "", 5.0, wake_on_change=True, over_in=0.0001).draw(lambda: 1.0) == pytest.approx(
        0.1 + DATED.pace
    )


def test_a_record_whose_writer_is_known_to_be_dead_is_free() -> None:
    assert Talk(limit=0).run(lambda _now: seen(age=None, dead=True)).is_free


def test_a_lock_delay_lengthens_the_wait() -> None:
    delayed = {**OURS, "lock_delay": "30"}
    assert not Talk(limit=0).run(lambda _now: seen(delayed, age=90.5)).is_free
    assert Talk(limit=0).run(lambda _now: seen(delayed, age=90.7)).is_free


def test_a_foreign_lock_is_free_an_allowance_after_expires_at() -> None:
    foreign = {"identity": "gem/1", "expires_at": "1000"}
    at = 1000 + FOREIGN_ALLOWANCE
    assert not Talk(traits=DATED, limit=0).run(lambda _now: seen(foreign, age=900, now=at - 1)).is_free
    assert Talk(traits=DATED, limit=0).run(lambda _now: seen(foreign, age=900, now=at + 1)).is_free
    endless = {"identity": "gcslock"}
    assert not Talk(traits=DATED, limit=0).run(lambda _now: seen(endless, age=9000)).is_free
    assert Talk(traits=DATED, limit=0, foreign_ttl=60).run(lambda _now: seen(endless, age=9000)).is_free


def test_a_revoked_or_closing_lease_is_held_until_it_is_gone() -> None:
    for more in ({"closing": "1"}, {"revoked": '{"by": "anna", "reason": "stuck"}'}):
        assert not Talk(limit=0).run(lambda _now, more=more: seen({**OURS, **more})).is_free  # type: ignore[misc]


def test_a_wait_ends_at_its_timeout_and_names_the_holder() -> None:
    talk = Talk(limit=20)
    found = talk.run(lambda _now: seen())
    assert not found.is_free
    assert found.status is not None
    assert found.status.record.owner == "ci/7"
    assert 20 <= talk.now <= 25
    assert isinstance(talk.commands[-1], Read)


@pytest.mark.parametrize("error", [StoreUnavailable("down"), OutcomeUnknown("silent")])
def test_an_unavailable_store_is_raised_only_at_the_timeout(error: StoreError) -> None:
    assert Talk().run(lambda now: error if now < 30 else Absent()).is_free
    # what was seen before it went down says nothing about now
    with pytest.raises(type(error)):
        Talk(limit=20).run(lambda now: seen() if now < 10 else error)
    with pytest.raises(type(error)):
        Talk(limit=0).run(lambda _now: error)


def test_h24_a_record_that_cannot_be_read_is_never_free() -> None:
    with pytest.raises(StoreRefused, match="has version 2"):
        Talk().run(lambda _now: seen({**OURS, "v": "2"}, age=9000))


def test_a_last_read_without_time_keeps_what_was_seen_before() -> None:
    found = Talk(limit=20).run(lambda now: seen() if now < 20 else OutOfTime("no time"))
    assert found.status is not None
    assert not found.is_free


def test_a_wait_that_ends_with_a_pause_reads_once_more() -> None:
    talk = Talk(limit=0.125, backoff_min=0.125)
    talk.run(lambda _now: seen())
    assert [type(command) for command in talk.commands] == [Read, Pause, Read]


def test_a_waiter_wakes_on_changes_while_held_not_while_down() -> None:
    talk = Talk()
    talk.run(lambda now: seen() if now < 1 else StoreUnavailable("down") if now < 20 else Absent())
    pauses = [command for command in talk.commands if isinstance(command, Pause)]
    assert (pauses[0].wake_on_change, pauses[-1].wake_on_change) == (True, False)


def test_pauses_grow_anew_after_a_change() -> None:
    script = until_free(
        APT, ProtocolContext(NO_CLOCK, Settings.make()), gives_up_at=math.inf, tries_once=False, on_wait=lambda _: None
    )
    next(script)
    longest, now = [], 0.0
    for changed in (False, False, True, False):
        pause = script.send(Reply(seen(age=None), now, now))
        assert isinstance(pause, Pause)
        longest.append(pause.at_most)
        now += pause.at_most
        script.send(Reply(Paused(pause.at_most, changed), now, now))
    assert longest[0] == longest[3] < longest[1] < longest[2]


def test_a_record_ended_by_its_holder_shows_a_free_key() -> None:
    assert Talk().run(lambda _now: seen({**OURS, "ended": "1"})) == Found(None, is_free=True)
