"""The engine's bookkeeping and messages, with a clock that does not advance and without worker threads."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from lockstead.errors import LossReason, NotAcquired, StoreRefused, StoreUnavailable
from lockstead.events import Acquired, EngineWarning, HolderChanged, Waiting
from lockstead.protocol.acquire import Contended, Grant
from lockstead.protocol.commands import Read
from lockstead.protocol.context import LeaseId
from lockstead.protocol.members import Attached
from lockstead.protocol.record import Record, encode, encoded_unbounded
from lockstead.protocol.release import sweep_pauses
from lockstead.runtime import engine as engines
from lockstead.runtime import fork
from lockstead.runtime.drive import wait_in_line
from lockstead.runtime.engine import (
    LEAVE_AGAIN_MAX,
    LESS,
    OWNER_NOTES_MIN,
    default_owner,
    duration_text,
    seconds_text,
)
from lockstead.runtime.local_queue import RECHECK_INTERVAL, ThreadWaker
from lockstead.settings import Settings
from lockstead.values import LeaseOutcome, Name, PreviousLease, Space
from tests.runtime import keeping
from tests.runtime.faulty import Faulty, SetClock
from tests.runtime.keeping import APT, SETTINGS, Alone


class Queueing(Faulty):
    """A store that keeps a queue, in which no place can be given up."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[Name, str, float]] = []
        self.fails = False

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        self.left.append((name, waiter_id, limit))
        if self.fails:
            raise StoreUnavailable("silent")

    def enqueue(self, *_: object) -> None:
        """Raise an error: there are no waiters here."""

    def subscribe(self, *_: object) -> None:
        """Raise an error: there are no waiters here."""


def test_a_duration_is_said_as_a_person_would() -> None:
    assert [seconds_text(one) for one in (0.0, 0.94, 0.95, 300.2)] == [LESS, LESS, "1 s", "300 s"]
    said = {
        0.99: LESS,
        1.0: "1 second",
        59.9: "59 seconds",
        60.0: "1 minute",
        3599.0: "59 minutes",
        3600.0: "1 hour",
        7200.0: "2 hours",
        86399.0: "23 hours",
        86400.0: "1 day",
        180000.0: "2 days",
    }
    assert {duration: duration_text(duration) for duration in said} == said


def test_an_abandoned_acquisition_is_swept_with_backoff() -> None:
    assert list(sweep_pauses(10.0)) == [0.0, 10.0, 10.0, 20.0, 40.0, 80.0]


@pytest.mark.parametrize("has_waited", [False, True])
def test_the_error_that_ends_a_wait_says_who_holds_it_and_since_when(alone: Alone, has_waited: bool) -> None:
    def error(contended: Contended) -> NotAcquired:
        return alone.engine.not_acquired(APT, contended, 12.0, has_waited=has_waited)

    after = "; waited 12 s" if has_waited else ""
    assert str(error(Contended(None, is_queued=True))) == f"'apt' is queued: earlier waiters go first{after}"
    assert str(error(Contended(None))) == f"'apt' kept changing hands{after}"
    for one in (error(Contended(None, is_queued=True)), error(Contended(None))):
        assert (one.key, one.waited, one.holder) == ("apt", 12.0, None)
    record = Record("ci/1", 300.0, owner="ci", purpose="publish", acquired_at=alone.clock.wall() - 120)
    known = error(Contended(record, is_queued=True))
    assert str(known) == f"'apt' is held by 'ci' for 2 minutes (purpose: publish){after}"
    assert (known.key, known.holder, known.purpose, known.held_for, known.waited) == ("apt", "ci", "publish", 120, 12.0)
    assert str(error(Contended(Record("ci/1", 300.0)))) == f"'apt' is held by 'ci/1'{after}"
    assert str(error(Contended(Record("", None)))) == f"'apt' is held by 'an unknown holder'{after}"
    ahead = error(Contended(replace(record, acquired_at=alone.clock.wall() + 60)))
    assert ahead.held_for == 0.0


def test_a_wait_is_told_with_whom_it_is_for(alone: Alone) -> None:
    known, unknown = Record("ci/1", 300.0, owner="ci", purpose="publish"), Record("ci/1", 300.0)
    alone.engine.emit_waiting("apt", "me", replace(unknown, acquired_at=alone.clock.wall() - 5), Waiting)
    alone.engine.emit_waiting("apt", "me", known, HolderChanged)
    assert alone.events == [Waiting("apt", "me", "ci/1", None, 5.0), HolderChanged("apt", "me", "ci", "publish", None)]


def test_unwise_settings_are_warned_of_once(alone: Alone) -> None:
    alone.engine.traits = replace(alone.engine.traits, ttl_recommended=60.0)
    alone.engine.warn_once("apt", Settings.make(ttl=60))
    assert alone.events == []
    for _ in range(2):
        alone.engine.warn_once("apt", Settings.make(ttl=48, renew_every=8))
    assert alone.events == [
        EngineWarning("apt", "ttl is 48 s; at least 60 s is recommended on this store"),
        EngineWarning("apt", "renew_every is 8 s, above 1/8 of the ttl"),
    ]


def test_a_wish_has_a_holder_of_its_own_and_says_who_asks(alone: Alone) -> None:
    first, second = alone.want(), alone.want()
    assert first.holder != second.holder
    assert first.holder.startswith(f"{default_owner()}/")
    assert first.fields["identity"] == first.holder
    assert first.fields["where"].startswith(f"{keeping.__file__}:")
    assert "backtrace" not in first.fields
    assert len(first.holder.rpartition("/")[2]) == 16
    assert first.keeps == alone.engine.keeps
    assert alone.engine in fork._INHERITED
    told = alone.engine.new_request(APT, Settings.make(ttl=300, owner="ci", backtrace=True), reclaim=True)
    assert (told.owner, told.reclaim, told.fields["owner"]) == ("ci", True, "ci")
    assert "test_engine.py" in told.fields["backtrace"]
    with pytest.raises(ValueError, match="reclaim needs an explicit owner"):
        alone.engine.new_request(APT, SETTINGS, reclaim=True)


def test_common_fields_are_cached_for_settings_and_owner(alone: Alone) -> None:
    alerts, expects = Settings.make(ttl=300, alert_after=60, expected=600), Settings.make(ttl=300, expected=600)
    plain = alone.engine._draft(SETTINGS, "a")
    assert alone.engine._draft(SETTINGS, "a") is plain
    assert alone.engine._draft(SETTINGS, "b")["owner"] == "b"
    assert alone.engine._draft(Settings.make(ttl=300), "b") is not alone.engine._draft(SETTINGS, "b")
    assert "alert_at" not in plain
    settings = Settings.make(
        ttl=300, purpose="publish", expected=600, auto_unlock_after=900, lock_delay=5, labels={"of": "team"}
    )
    record = Record(
        "",
        300.0,
        owner="a",
        purpose="publish",
        expected=600.0,
        alert_at=600.0,
        auto_unlock_at=900.0,
        lock_delay=5.0,
        host=engines.HOST,
        pid=os.getpid(),
        labels={"of": "team"},
    )
    assert alone.engine._draft(settings, "a") == encoded_unbounded(record)
    for owner in ("ci", None):
        member = Settings.make(ttl=300, owner=owner, labels={"of": "team"})
        fields = alone.engine.registration_fields("m", 300.0, member)
        line = sys._getframe().f_lineno - 1
        expected = Record(
            "m",
            300.0,
            owner=owner or default_owner(),
            host=engines.HOST,
            pid=os.getpid(),
            where=f"{__file__}:{line}",
            labels={"of": "team"},
        )
        assert fields == encode(expected)
    said = [float(alone.engine._draft(settings, "a")["alert_at"]) for settings in (alerts, expects)]
    assert said == [60.0, 600.0]


def test_what_calls_others_is_not_named_as_who_asks(alone: Alone) -> None:
    made: dict[str, Any] = {"__name__": "airflow.models", "want": alone.engine.new_request}
    exec("def call(*words): return want(*words, reclaim=False)", made)
    assert "where" not in made["call"](APT, SETTINGS).fields


def test_a_grant_is_kept_as_it_was_granted_and_told(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.random, "random", lambda: 0.25)
    want = alone.want(unsettled=True)
    kept = alone.granted(want)
    lease_state = kept.lease_state
    assert (lease_state.deadline, lease_state.renewed_at, lease_state.token) == (
        alone.clock.at + 296,
        alone.clock.at - 1,
        7,
    )
    assert (lease_state.unsettled, lease_state.is_owner, lease_state.previous_lease) == (
        True,
        True,
        PreviousLease(LeaseOutcome.CLEAN),
    )
    assert lease_state.jitter == 0.25
    assert alone.events == [Acquired("apt", want.holder, 7, 3.0)]
    assert alone.engine.keeps(want.holder)
    assert not alone.engine.keeps("somebody")
    alone.engine.pending_holders["somebody"] = want
    assert alone.engine.keeps("somebody")


def test_a_membership_is_kept_until_the_earlier_of_its_deadlines(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.random, "random", lambda: 0.25)
    lease = LeaseId(APT, "o", "1", 300.0)
    registration = LeaseId(Name("apt", Space.MEMBER, "1/m"), "m", "2", 300.0)
    for record_until, registered_until in ((1200.0, 1290.0), (1290.0, 1200.0)):
        joined = Attached(lease, registration, registered_until, record_until, 999.0)
        kept = alone.engine.attached(joined, SETTINGS)
        lease_state = kept.lease_state
        assert alone.engine.keeps("o")
        assert (lease_state.jitter, lease_state.settings) == (0.25, SETTINGS)
        assert (lease_state.deadline, lease_state.record_deadline, lease_state.registration_deadline) == (
            1200.0,
            record_until,
            registered_until,
        )
        assert (lease_state.is_owner, lease_state.shared, lease_state.registration, lease_state.renewed_at) == (
            False,
            True,
            registration,
            999.0,
        )


def test_an_abandoned_acquisition_is_swept_if_it_may_have_written(alone: Alone) -> None:
    for want, error, is_swept in (
        (alone.want(), None, False),
        (alone.want(), StoreUnavailable("silent"), False),
        (alone.want(), KeyboardInterrupt(), True),
        (alone.want(unsettled=True), None, True),
        (alone.want(reclaim=True), None, True),
    ):
        alone.engine.clean_up_abandoned(want, SETTINGS, error)
        assert alone.tasks() == [0.0] * is_swept


def test_looks_follow_each_other_and_one_after_an_answer_is_alone(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(alone.engine, "sweep_once", lambda _name, holder, *_: looked.append(holder))
    alone.engine.sweep(APT, "a", SETTINGS)
    assert [alone.next_chore() for _ in range(6)] == list(sweep_pauses(SETTINGS.request_timeout))
    assert (looked, alone.tasks()) == (["a"] * 6, [])
    alone.engine.sweep_soon(APT, "b", SETTINGS)
    assert (alone.next_chore(), alone.tasks(), looked[6:]) == (0.0, [], ["b"])


def test_removing_a_queue_place_is_retried_with_backoff() -> None:
    alone = Alone(Queueing())
    store = cast(Queueing, alone.store)
    store.fails = True
    alone.engine.leave_queue(APT, "a", 9.0)
    assert [alone.next_chore() for _ in range(8)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, LEAVE_AGAIN_MAX, LEAVE_AGAIN_MAX]
    store.fails = False
    assert (alone.next_chore(), alone.tasks()) == (LEAVE_AGAIN_MAX, [])
    assert store.left == [(APT, "a", 9.0)] * 9
    store.fails = True
    alone.engine.leave_queue(APT, "a", 9.0)
    alone.engine._finalizer.detach()
    assert (alone.next_chore(), alone.tasks()) == (0.0, []), "a client that was closed asks once"


@pytest.mark.parametrize(
    ("said", "leaves"),
    [
        ({}, False),
        ({"has_waited": True}, False),
        ({"doubts": 1}, False),
        ({"has_waited": True, "doubts": 1}, True),
        ({"has_waited": True, "reclaim": True}, True),
    ],
)
def test_who_got_the_key_past_its_place_in_the_queue_gives_that_up(said: dict[str, Any], leaves: bool) -> None:
    alone = Alone(Queueing())
    alone.granted(alone.want(**said))
    assert alone.tasks() == [0.0] * leaves
    for has_waited in (False, True):
        alone.engine.clean_up_abandoned(alone.want(has_waited=has_waited), SETTINGS)
        assert alone.tasks() == [0.0] * has_waited


def test_a_store_without_a_queue_is_asked_for_no_place(alone: Alone) -> None:
    alone.engine.leave_queue(APT, "a", 9.0)
    assert alone.tasks() == []


def test_a_look_asks_the_store_in_this_thread(alone: Alone) -> None:
    alone.engine.sweep_once(APT, "a", SETTINGS)
    assert [type(command) for command in alone.store.seen] == [Read]


def test_a_keys_holder_is_known_while_its_lease_is_referenced(alone: Alone) -> None:
    kept = alone.granted(alone.want())
    taker = alone.engine.note_acquired(kept)
    with pytest.raises(NotAcquired, match="by this thread") as caught:
        alone.engine.refuse_self_wait(APT)
    assert (caught.value.key, caught.value.holder) == ("apt", default_owner())
    alone.engine.refuse_self_wait(Name("deb"))
    others: list[bool] = []

    def elsewhere() -> None:
        alone.engine.refuse_self_wait(APT)  # a wait for somebody else is none for itself
        others.append(taker.holds(threading.current_thread(), alone.clock.at))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert others == [False]
    assert not taker.holds(threading.current_thread(), kept.lease_state.deadline)
    second = alone.engine.note_acquired(alone.granted(alone.want()))
    assert alone.engine._owner_notes["apt"][0] is second
    second.lease_state.leave()
    with pytest.raises(NotAcquired):
        alone.engine.refuse_self_wait(APT)
    bell = ThreadWaker()
    alone.engine.local_queue.enter("apt", bell)
    alone.engine.note_released(second)
    assert bell.take(), "who waits for the key in this process is woken"
    assert alone.engine._owner_notes == {"apt": [taker]}
    alone.engine.note_released(taker)
    alone.engine.note_released(taker)
    assert alone.engine._owner_notes == {}
    alone.engine.note_acquired(kept)
    kept.lease_state.leave()
    held = alone.granted(alone.want())
    assert len(alone.engine._owner_notes["apt"]) == 1
    last = alone.engine.note_acquired(held)
    assert alone.engine._owner_notes["apt"] == [last], "who has left is forgotten with the next"


def test_leases_that_were_dropped_are_looked_for_once_there_are_many(alone: Alone) -> None:
    def take(number: int) -> Any:
        lease = LeaseId(Name(f"apt-{number}"), "a", "1", 300.0)
        before = PreviousLease(LeaseOutcome.CLEAN)
        grant = Grant(lease, alone.clock.at, alone.clock.at + 297, None, before)
        kept = alone.engine.granted(grant, alone.want(), alone.engine.context(SETTINGS), 0.0)
        alone.engine.note_acquired(kept)
        return kept

    held = [take(number) for number in range(2)]
    for number in range(2, OWNER_NOTES_MIN):
        take(number)
    assert len(alone.engine._owner_notes) == OWNER_NOTES_MIN
    held.append(take(OWNER_NOTES_MIN))
    assert sorted(alone.engine._owner_notes) == ["apt-0", "apt-1", f"apt-{OWNER_NOTES_MIN}"]
    assert alone.engine._owner_notes_max == OWNER_NOTES_MIN
    held += [take(number) for number in range(100, 100 + OWNER_NOTES_MIN)]
    assert alone.engine._owner_notes_max == 2 * (OWNER_NOTES_MIN + 1)


class Waited:
    """A bell that notes for how long it was waited for, and lets so much time go by."""

    def __init__(self, clock: SetClock) -> None:
        self.clock = clock
        self.waits: list[float] = []
        self.taken = 0
        self.is_over = self.is_gone = self.is_stopped = False

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.clock.at += seconds
        return False

    def take(self) -> bool:
        self.taken += 1
        return False

    def ring(self) -> None:
        """Do nothing."""


def test_a_queued_waiter_checks_until_first_or_out_of_time(alone: Alone) -> None:
    ahead, bell = ThreadWaker(), Waited(alone.clock)
    alone.engine.local_queue.enter("apt", ahead)
    alone.engine.local_queue.enter("apt", bell)
    waits = cast(ThreadWaker, bell)
    assert not wait_in_line(alone.engine, "apt", waits, alone.clock.at + 12)
    assert (bell.waits, bell.taken) == ([RECHECK_INTERVAL, RECHECK_INTERVAL, 2.0], 3)
    assert not wait_in_line(alone.engine, "apt", waits, alone.clock.at)
    alone.engine.local_queue.leave("apt", ahead)
    assert wait_in_line(alone.engine, "apt", waits, alone.clock.at + 0.1)
    assert wait_in_line(alone.engine, "apt", waits, math.inf)
    assert len(bell.waits) == 3
    assert not wait_in_line(alone.engine, "apt", waits, alone.clock.at), "its time is over, first or not"


def test_without_a_timeout_it_polls_until_the_client_closes(alone: Alone) -> None:
    ahead, bell = ThreadWaker(), Waited(alone.clock)
    alone.engine.local_queue.enter("apt", ahead)
    alone.engine.local_queue.enter("apt", bell)
    as_ever = bell.wait

    def wait(seconds: float) -> bool:
        if len(bell.waits) == 3:
            alone.engine.close()
        return as_ever(seconds)

    bell.wait = wait  # type: ignore[method-assign] # the client is closed meanwhile
    assert wait_in_line(alone.engine, "apt", cast(ThreadWaker, bell), math.inf)
    assert bell.waits == [RECHECK_INTERVAL] * 4


def test_a_grant_that_no_thread_can_renew_is_given_back(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_kept: object) -> None:
        raise StoreUnavailable("no thread")

    monkeypatch.setattr(alone.engine.keeper, "keep", refused)
    want = alone.want()
    with pytest.raises(StoreUnavailable):
        alone.granted(want)
    assert want.unsettled
    assert alone.events == []


def test_closing_a_client_wakes_waiters_and_closes_everything() -> None:
    alone = Alone()
    alone.engine.refuse_if_closed()
    bells = [ThreadWaker(), ThreadWaker()]
    for bell in bells:
        alone.engine.local_queue.enter("apt", bell)
    assert not alone.engine.is_closed
    alone.engine.close()
    assert alone.engine.is_closed
    assert all(bell.take() for bell in bells)
    with pytest.raises(StoreRefused, match="the client was closed"):
        alone.engine.refuse_if_closed()
    assert (alone.store.is_closed, alone.engine.keeper._closed) == (True, True)
    assert alone.engine.calls._closed


def test_a_forked_childs_copies_of_leases_are_lost(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(alone.store, "after_fork", lambda: called.append("store"))
    kept = alone.granted(alone.want())
    alone.engine.note_acquired(kept)
    keeper, observations = alone.engine.keeper, alone.engine.observations
    alone.engine.after_fork()
    assert kept.lease_state.reason is LossReason.FORKED
    assert alone.engine.keeper is not keeper
    assert alone.engine.observations is not observations
    assert (alone.engine._owner_notes, len(alone.engine.keeper), called) == ({}, 0, ["store"])
    assert alone.engine._closing["keeper"] is alone.engine.keeper


def test_the_task_that_asks_is_told_from_the_thread_it_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:

    async def ask() -> bool:
        return engines._caller() is asyncio.current_task()

    assert asyncio.run(ask())
    assert engines._caller() is threading.current_thread()
    monkeypatch.delitem(sys.modules, "asyncio")
    assert engines._caller() is threading.current_thread()
