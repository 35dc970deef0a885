"""How a script is driven: the limits of its requests, the times it gets, and the errors thrown into it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstead.errors import LocksteadError, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Create, OutOfTime, Pause, Paused, Read, Reply, Script, ask
from lockstead.runtime import context
from lockstead.runtime.drive import run
from lockstead.runtime.run import OVERTIME, Limits, run_many, unknown
from lockstead.values import Name
from tests.runtime.faulty import Faulty, SetClock
from tests.runtime.keeping import asked

APT = Name("apt")


class Bells:
    """A bell that rings or not, and notes for how long it was waited for."""

    def __init__(self, *, rings: bool = False) -> None:
        self.rings = rings
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.rings

    def take(self) -> bool:
        return self.rings

    def ring(self) -> None:
        self.rings = True


def driven(store: Any, *commands: Any, limits: Limits | None = None, bell: Bells | None = None) -> list[Any]:
    return run(asked(*commands), store, SetClock(), limits or Limits(5.0), bell or Bells())


def test_a_requests_limit_is_its_own_or_the_rest_of_the_wait() -> None:
    assert Limits(5.0).of(1e9) == 5.0
    bounded = Limits(5.0, gives_up_at=100.0)
    assert (bounded.of(90.0), bounded.of(98.0)) == (5.0, pytest.approx(2 + OVERTIME))
    assert bounded.of(100.0) == pytest.approx(OVERTIME), "its last try"
    for now in (bounded.ends(), 200.0):
        with pytest.raises(OutOfTime):
            bounded.of(now)
    assert (Limits(5.0).ends(), OVERTIME < 1) == (math.inf, True), "a wait ends within a second of its time"
    assert bounded.resumed(90.0).gives_up_at == 100.0
    refused: list[str] = []
    resumed = replace(bounded, refuse_if_closed=lambda: refused.append("closed")).resumed(200.0)
    assert resumed.gives_up_at == 200.0
    assert Limits(5.0).resumed(200.0).gives_up_at == math.inf
    resumed.refuse_if_closed()
    assert refused == ["closed"]


def test_a_wait_ends_after_its_pause_if_the_client_is_closed() -> None:
    def refuse() -> None:
        raise StoreRefused("closed")

    store = Faulty()
    (error, _reply) = driven(store, Pause(APT, 0.0, 0.0), Read(APT), limits=Limits(5.0, refuse_if_closed=refuse))
    assert str(error) == "closed"


def test_a_pause_ends_with_the_wait_at_the_latest() -> None:
    pause = Pause(APT, 3.0, 3.0)
    assert Limits(5.0).pause(pause, 0.0) == 3.0
    bounded = Limits(5.0, gives_up_at=100.0)
    assert [bounded.pause(pause, now) for now in (90.0, 98.0, 100.0, 101.0)] == [3.0, 2.0, 0.0, 0.0]


def test_a_waiter_stopped_beyond_its_end_has_its_last_try() -> None:
    store, clock = Faulty(), SetClock()
    limits: list[float] = []
    perform = store.perform

    def performing(command: Any, limit: float) -> Any:
        limits.append(limit)
        return perform(command, limit)

    store.perform = performing  # type: ignore[method-assign]

    class Stopped(Bells):
        def wait(self, seconds: float) -> bool:
            clock.at += 300
            return super().wait(seconds)

    commands = (Read(APT), Pause(APT, 3.0, 3.0), Read(APT))
    replies = run(asked(*commands), store, clock, Limits(5.0, gives_up_at=clock.at + 10), Stopped())
    assert isinstance(replies[2], Reply)
    assert limits == [5.0, pytest.approx(OVERTIME)]
    # a pause that ends at once takes no time, though the wait is over
    late = Limits(5.0, gives_up_at=clock.at - OVERTIME)
    assert isinstance(run(asked(*commands[1:]), store, clock, late, Bells())[1], OutOfTime)


def test_a_reply_bears_the_instants_of_its_request() -> None:
    store, clock = Faulty(), SetClock()

    def takes_long(_command: object) -> None:
        clock.at += 2

    store.before = takes_long
    first, second = run(asked(Read(APT), Read(APT)), store, clock, Limits(5.0), Bells())
    assert (first.sent_at, first.received_at) == (1000.0, 1002.0)
    assert (second.sent_at, second.received_at) == (1002.0, 1004.0)
    assert isinstance(first.answer, Absent)


def test_what_is_written_is_stamped_with_the_wall_clock() -> None:
    store = Faulty()
    driven(store, Create(APT, {"v": "1"}, lifetime=10.0))
    (created,) = store.seen
    assert isinstance(created, Create)
    assert float(created.fields["acquired_at"]) == SetClock().wall()


def test_unexpected_store_errors_become_unknown_outcomes() -> None:
    store = Faulty()

    def raising(error: Exception) -> Callable[[object], None]:
        def fail(_command: object) -> None:
            raise error

        return fail

    down = StoreUnavailable("down")
    store.before = raising(down)
    assert driven(store, Read(APT)) == [down]
    store.before = raising(KeyError("odd"))
    (doubt,) = driven(store, Read(APT))
    assert isinstance(doubt, OutcomeUnknown)
    assert isinstance(doubt.__cause__, KeyError)
    assert "KeyError: 'odd'" in str(unknown(KeyError("odd")))
    fault = LocksteadError("of our own")
    store.before = raising(fault)
    script = ask(Read(APT))
    with pytest.raises(LocksteadError) as raised:
        run(script, store, SetClock(), Limits(5.0), Bells())
    assert raised.value is fault
    assert inspect.getgeneratorstate(script) == inspect.GEN_CLOSED


def test_without_time_nothing_is_sent_and_the_script_is_closed() -> None:
    store = Faulty()
    (error,) = driven(store, Read(APT), limits=Limits(5.0, gives_up_at=0.0))
    assert isinstance(error, OutOfTime)
    assert store.seen == []
    closed: list[str] = []

    def failing() -> Script[None]:
        try:
            yield from ask(Read(APT))
            raise LocksteadError("over")
        finally:
            closed.append("closed")

    with pytest.raises(LocksteadError, match="over"):
        run(failing(), store, SetClock(), Limits(5.0), Bells())
    assert closed == ["closed"]


@pytest.mark.parametrize("rings", [False, True])
def test_a_pause_waits_for_the_bell_and_says_whether_it_was_rung(rings: bool) -> None:
    bell = Bells(rings=rings)
    (reply,) = driven(Faulty(), Pause(APT, 3.0, 3.0), bell=bell)
    assert isinstance(reply, Reply)
    assert reply.answer == Paused(3.0, rings, False)
    assert bell.waits == [3.0]


def test_no_waiter_sleeps_past_the_earliest_expiry() -> None:
    drawn = [Limits(1.0).pause(Pause(APT, 5.0, 9.0, over_in=2.0, spread=0.1), 0.0) for _ in range(100)]
    assert all(2.0 <= one <= 2.1 for one in drawn)
    assert len(set(drawn)) > 1
    assert Limits(1.0, gives_up_at=0.5).pause(Pause(APT, 5.0, 9.0, over_in=2.0), 0.0) == 0.5


class Together(Faulty):
    """A store that is called in batches; answers or raises what it is told to."""

    def __init__(self, said: Any) -> None:
        super().__init__()
        self.said = said

    def perform_many(self, commands: Any, limit: float) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def test_each_script_gets_the_error_of_its_own_request() -> None:
    down = StoreUnavailable("down")

    def many(said: Any) -> list[Any]:
        scripts = [asked(Read(APT)), asked(Read(APT))]
        results = dict(run_many(scripts, Together(said), SetClock(), 5.0))
        return [results[0][0], results[1][0]]

    first, second = many([Absent(), down])
    assert (first.answer, second) == (Absent(), down)
    assert many(down) == [down, down]
    for doubt in many(KeyError("odd")):
        assert isinstance(doubt, OutcomeUnknown)
        assert isinstance(doubt.__cause__, KeyError)
    assert all(isinstance(doubt, OutcomeUnknown) for doubt in many([Absent()]))
    ((_number, (pause,)),) = run_many([asked(Pause(APT, 3.0, 3.0))], Together([]), SetClock(), 5.0)
    assert pause.answer == Paused(0.0)


class Leased:
    pass


def test_the_current_lease_is_the_innermost_entered_one() -> None:
    outer, inner = Leased(), Leased()
    assert context.current() is None
    context.enter(outer)
    context.enter(inner)
    assert context.current() is inner
    context.leave(inner)
    assert context.current() is outer
    context.enter(inner)
    context.leave(outer)
    assert context.current() is None, "what was entered since is left with it"
    context.leave(inner)
    context.enter(outer)
    context.leave(Leased())
    assert context.current() is outer, "who never entered ends nothing"
    context.enter(inner)
    del inner
    assert context.current() is outer, "and one that nobody has any more is not kept alive"
    context.enter(again := Leased())
    assert context.current() is again
    context.leave(again)
    context.leave(outer)
    assert context.current() is None


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_a_wait_that_ended_in_a_stopped_process_tries_once_more(late: float) -> None:
    store, clock = Faulty(), SetClock()
    limits = Limits(5.0, clock.at + 1)
    back_by = limits.back_by(clock.at + 1)

    class Stopped(Bells):
        def wait(self, seconds: float) -> bool:
            clock.at = back_by + late
            return super().wait(seconds)

    _pause, answer = run(asked(Pause(APT, 3.0, 3.0), Read(APT)), store, clock, limits, Stopped())
    assert isinstance(answer, Reply)
