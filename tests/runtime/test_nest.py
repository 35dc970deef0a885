"""Which guarded block is interrupted, and which waiter of a process sends requests: without a thread or a store."""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any

from lockstead.runtime.local_queue import LocalQueue, ThreadWaker
from lockstead.runtime.nest import Block, Nest


def nested(number: int, nest: Nest | None = None) -> tuple[Nest, list[Block]]:
    """Return so many blocks, each within the one before."""
    nest = Nest() if nest is None else nest
    blocks = [Block() for _ in range(number)]
    for block in blocks:
        nest.enter(block)
    return nest, blocks


def test_the_outermost_lost_block_is_due_and_no_other() -> None:
    nest, (outer, middle, inner) = nested(3)
    assert nest.due() is None
    inner.is_lost = True
    assert nest.due() is inner
    middle.is_lost = True
    assert [block.is_due for block in (outer, middle, inner)] == [False, True, False]
    assert not Block().is_due


def test_what_was_raised_for_a_block_is_not_raised_again_nor_for_those_that_were_open_then() -> None:
    nest, (outer, inner) = nested(2)
    outer.is_lost = inner.is_lost = True
    nest.raised.append(outer.number)
    assert nest.due() is None
    within, (outer, inner) = nested(2)
    inner.is_lost = True
    within.raised.append(inner.number)
    outer.is_lost = True
    assert within.due() is None, "the block around waits until the inner one is left"
    assert within.leave(inner) is False
    assert within.due() is outer


def test_a_block_that_begins_after_an_interrupt_is_interrupted_as_ever() -> None:
    nest, (outer,) = nested(1)
    outer.is_lost = True
    nest.raised.append(outer.number)
    _, (late,) = nested(1, nest)
    assert late.began_after == 1
    late.is_lost = True
    assert nest.due() is late
    nest.raised.append(late.number)
    assert nest.due() is None


def test_what_reached_nobody_is_due_again_and_nothing_else_is() -> None:
    nest, (outer, inner) = nested(2)
    outer.is_lost = inner.is_lost = True
    nest.raised.append(inner.number)
    nest.raised.append(outer.number)
    nest.was_swallowed(outer.number)
    assert nest.raised == [inner.number, None]
    assert nest.due() is None, "the inner block is still being left"
    nest.leave(inner)
    assert nest.due() is outer


def test_a_block_that_is_left_takes_with_it_those_within_it_and_none_around_it() -> None:
    nest, (outer, middle, inner) = nested(3)
    assert nest.leave(middle) is False
    assert [block.is_over for block in (outer, middle, inner)] == [False, True, True]
    assert list(nest) == [outer]
    assert nest.leave(outer) is True
    assert list(nest) == []


def test_what_was_raised_is_forgotten_with_the_last_block_and_not_before() -> None:
    nest, (outer,) = nested(1)
    nest.raised.append(outer.number)
    nested(1, nest)
    assert nest.raised == [outer.number]
    nest.leave(outer)
    _, (new,) = nested(1, nest)
    assert (nest.raised, new.began_after) == ([], 0)


def test_a_block_that_nobody_refers_to_is_forgotten() -> None:
    nest, blocks = nested(2)
    blocks[0].is_lost = True
    nest.raised.append(blocks[0].number)
    del blocks[0]
    gc.collect()
    assert list(nest) == blocks
    blocks[0].is_lost = True
    assert nest.due() is blocks[0]
    blocks.clear()
    gc.collect()
    _, (new,) = nested(1, nest)
    assert (nest.raised, new.began_after) == ([], 0)


def test_blocks_are_numbered_in_the_order_in_which_they_begin() -> None:
    numbers = [Block().number for _ in range(3)]
    assert numbers == list(itertools.islice(itertools.count(numbers[0]), 3))


# --- bells and lines -------------------------------------------------------------------------------------------------


def rung(bell: ThreadWaker) -> bool:
    """Return whether it was rung, and silence it."""
    return bell.take()


def in_line(number: int) -> tuple[LocalQueue, list[ThreadWaker]]:
    lines, waiters = LocalQueue(), [ThreadWaker() for _ in range(number)]
    assert [lines.enter("apt", waiter) for waiter in waiters] == [place == 0 for place in range(number)]
    return lines, waiters


def test_a_bell_that_was_rung_is_heard_at_once_and_twice_is_as_once() -> None:
    bell = ThreadWaker()
    assert not bell.take()
    began_at = time.monotonic()
    assert not any(bell.wait(-1.0) for _ in range(5)), "no time is not forever"
    assert time.monotonic() - began_at < 4
    assert not bell.wait(0.001)
    bell.ring()
    bell.ring()
    assert bell.wait(60.0)
    assert bell.wait(1e18), "it goes on ringing until it is silenced, and no time is too long"
    assert bell.take()
    assert not bell.take()


def test_the_first_in_line_asks_and_hands_on_to_the_next_who_still_waits() -> None:
    lines, (first, second, third) = in_line(3)
    assert [lines.is_first("apt", one) for one in (first, second, third)] == [True, False, False]
    second.is_over = True
    lines.leave("apt", first)
    assert (first.is_over, rung(first), rung(second), rung(third)) == (True, False, False, True)
    assert lines.is_first("apt", third)
    lines.leave("apt", third)
    assert lines._turns._queues == {}


def test_who_leaves_from_within_the_line_wakes_nobody() -> None:
    lines, (first, second, third) = in_line(3)
    lines.leave("apt", second)
    lines.leave("deb", ThreadWaker())
    assert not any(map(rung, (first, second, third)))
    lines.leave("apt", first)
    assert rung(third)


def test_who_is_over_before_it_asks_is_passed_over() -> None:
    lines, (first, second) = in_line(2)
    first.is_over = True
    assert lines.is_first("apt", second)
    assert not lines.is_followed("apt")
    second.is_over = True
    assert lines.enter("apt", late := ThreadWaker())
    assert lines.is_first("apt", late)


def test_a_line_is_followed_while_somebody_stands_behind_the_first() -> None:
    lines, (_first, second) = in_line(2)
    assert lines.is_followed("apt")
    lines.leave("apt", second)
    assert not lines.is_followed("apt")
    assert not lines.is_followed("deb")


def test_what_the_first_saw_is_kept_until_the_key_moves_or_the_line_ends() -> None:
    lines, (first, second) = in_line(2)
    seen: Any = object()
    lines.note("apt", seen)
    lines.note("deb", seen)
    assert (lines.noted("apt"), lines.noted("deb")) == (seen, None)
    lines.leave("apt", first)
    assert lines.noted("apt") is seen
    lines.wake_first("apt")
    assert lines.noted("apt") is None
    lines.note("apt", seen)
    lines.leave("apt", second)
    assert lines.noted("apt") is None


def test_a_ring_wakes_the_first_alone_and_one_for_all_wakes_everybody() -> None:
    lines, (first, second) = in_line(2)
    lines.enter("deb", other := ThreadWaker())
    lines.wake_first("apt")
    lines.wake_first("rpm")
    assert (rung(first), rung(second), rung(other)) == (True, False, False)
    lines.wake_all()
    assert (rung(first), rung(second), rung(other)) == (True, True, True)
