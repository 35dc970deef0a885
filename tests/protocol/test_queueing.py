"""Waiting in a store that keeps a queue: when it is worth a write, and what an answer out of turn means."""

from __future__ import annotations

from lockstead.protocol.acquire import Contended, Grant
from lockstead.protocol.commands import Conflict, Create, Pause, Paused, Read, Remove
from tests.protocol.bench import APT, Bench


def test_the_next_in_the_queue_writes_at_once_without_a_read() -> None:
    bench = Bench()
    held = bench.granted("holder")
    waiter = bench.asking("waiter").commit()
    waiter.expect(Read)
    waiter.commit()
    assert waiter.expect(Pause).waiter_id == "waiter"
    bench.store.perform(Remove(APT, held.lease.incarnation))
    waiter.answer(Paused(1.0, changed=True, is_turn=True), 1.0)
    assert waiter.expect(Create).waiter_id == "waiter"
    assert isinstance(waiter.commit().outcome, Grant)


def test_who_is_woken_without_a_turn_reads_first() -> None:
    bench = Bench()
    bench.granted("holder")
    waiter = bench.asking("waiter").commit().commit()
    waiter.answer(Paused(1.0, changed=True), 1.0)
    waiter.expect(Read)


def test_a_queued_key_is_waited_for_without_repeated_reads() -> None:
    bench = Bench()
    waiter = bench.asking("waiter")
    waiter.expect(Create)
    waiter.answer(Conflict(is_queued=True))
    waiter.expect(Pause)


def test_a_try_out_of_turn_ends_at_once_and_is_contended() -> None:
    bench = Bench()
    once = bench.asking("once", tries_once=True)
    once.expect(Create)
    once.answer(Conflict(is_queued=True))
    assert isinstance(once.outcome, Contended)
