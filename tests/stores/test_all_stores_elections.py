"""What holds of elections on every store with a server: terms, values, heirs, observers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lockstead import Election, LeaseOutcome
from tests.runtime.faulty import until
from tests.servers.bench import ENOUGH, LONG_TTL, Bench, at, bench, in_background

__all__ = ["at", "bench"]


def candidate(bench: Bench, owner: str, **said: Any) -> Election:
    engine = bench.client()._engine
    settings: Any = {**LONG_TTL, "owner": owner, **said}
    return Election._at(engine, "scheduler", settings, value=f"http://{owner}", fenced=bench.has_tokens)


def test_terms_values_and_observers(bench: Bench) -> None:
    a, b = candidate(bench, "a"), candidate(bench, "b")
    seen: list[str | None] = []

    def observe() -> None:
        for found in b.observe():
            seen.append(None if found is None else found.value)

    observer = in_background(observe)
    until(lambda: seen == [None], ENOUGH)
    terms: list[int] = []
    for leading in (a, b, a):
        with leading.lead(timeout=ENOUGH) as term:
            owner = term.holder.partition("/")[0]
            found = b.leader()
            assert found is not None
            assert (found.owner, found.value, found.token) == (owner, f"http://{owner}", term.token)
            until(lambda owner=owner: seen[-1] == f"http://{owner}", ENOUGH)  # type: ignore[misc]
            term.advertise(f"http://{owner}:2")
            until(lambda owner=owner: seen[-1] == f"http://{owner}:2", ENOUGH)  # type: ignore[misc]
            term.renew()
            found = a.leader()
            assert found is not None
            assert found.value == f"http://{owner}:2"
            terms += [] if term.token is None else [term.token]
    assert terms == sorted(set(terms))
    until(lambda: seen[-1] is None, ENOUGH)
    b.close()
    observer.result()


def test_e05_the_heir_leads_next_though_another_candidate_waits_longer(bench: Bench) -> None:
    a = candidate(bench, "a")
    first, heir = candidate(bench, "b", backoff_max=10), candidate(bench, "c")
    order: list[str] = []

    def lead(election: Election) -> None:
        with election.lead(timeout=ENOUGH) as term:
            order.append(term.holder.partition("/")[0])
            assert term.previous_lease.ending in (LeaseOutcome.CLEAN, LeaseOutcome.UNKNOWN)

    with a.lead(timeout=ENOUGH) as term:
        waiters = [in_background(lambda: lead(first))]
        until(lambda: first._opened is not None and first._opened.local_queue._queues, ENOUGH)
        time.sleep(0.5)
        waiters.append(in_background(lambda: lead(heir)))
        time.sleep(0.5)
        term.resign(to="c")
    for waiter in waiters:
        waiter.result()
    assert order == ["c", "b"]
    assert first.leader() is None


@pytest.mark.slow
def test_m19_an_heir_that_does_not_come_delays_others_for_one_backoff(bench: Bench) -> None:
    a, b = candidate(bench, "a"), candidate(bench, "b", backoff_max=1.5)
    with a.lead(timeout=ENOUGH) as term:
        waiter = in_background(lambda: b.lead(timeout=ENOUGH).__enter__())
        time.sleep(0.5)
        term.resign(to="nobody")
    left_at = time.monotonic()
    leading = waiter.result()
    assert leading.is_held
    assert 1.0 < time.monotonic() - left_at < 15, "less than its ttl"
    leading.release()
