"""Which guarded block is interrupted: decided without a thread or a store."""

from __future__ import annotations

import gc
import itertools

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


def test_a_block_is_interrupted_only_once() -> None:
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


def test_a_block_after_an_interrupt_can_be_interrupted() -> None:
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


def test_leaving_a_block_ends_inner_blocks_and_no_outer_ones() -> None:
    nest, (outer, middle, inner) = nested(3)
    assert nest.leave(middle) is False
    assert [block.is_over for block in (outer, middle, inner)] == [False, True, True]
    assert list(nest) == [outer]
    assert nest.leave(outer) is True
    assert list(nest) == []


def test_a_raised_interrupt_is_forgotten_with_the_last_block() -> None:
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
