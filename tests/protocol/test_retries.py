"""A single request, such as the keeper's, is not ended by one answer that the store is busy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Pause, Read, Script
from lockstead.protocol.retries import ATTEMPTS_MAX, with_retries
from lockstead.values import Name
from tests.protocol.bench import APT, Bench, Session


def looks() -> Script[Any]:
    reply = yield Read(APT)
    return reply.answer


def waits(session: Session) -> Iterator[float]:
    while not session.is_over:
        session.unsent()
        pause = session.expect(Pause)
        assert not pause.wake_on_change
        yield pause.at_most
        session.wait(pause.at_most)


@pytest.mark.parametrize("error", [StoreUnavailable("503"), OutcomeUnknown("reset")])
def test_a_script_is_started_again_after_one_failure(error: Exception) -> None:
    bench = Bench()
    bench.granted("a")
    session = bench.session(with_retries(looks, APT, bench.context()))
    session.expect(Read)
    session.unsent(error=error).wait()
    session.expect(Read)
    assert session.commit().outcome.fields["identity"] == "a"


def test_pauses_grow_and_a_silent_store_is_reported_as_such() -> None:
    bench = Bench(backoff_min=0.1, backoff_max=1.0)
    session = bench.session(with_retries(looks, APT, bench.context()))
    longest: list[float] = []
    with pytest.raises(StoreUnavailable):
        for pause in waits(session):
            longest.append(pause)
    assert longest == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert len(longest) == ATTEMPTS_MAX - 1


def test_nobody_asks_on_once_it_is_of_no_use() -> None:
    bench = Bench()
    session = bench.session(with_retries(looks, Name("apt"), bench.context(), until=bench.now + 0.15))
    session.unsent().wait(0.1)
    session.unsent()
    with pytest.raises(StoreUnavailable):
        session.wait(0.1)


def test_what_will_never_be_is_not_asked_again() -> None:
    bench = Bench()
    session = bench.session(with_retries(looks, APT, bench.context()))
    with pytest.raises(StoreRefused):
        session.unsent(error=StoreRefused("no such bucket"))
