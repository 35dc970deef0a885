"""Which of the guarded blocks of one thread or task is interrupted, and when. Does not know how.

One rule: an interrupt stands for every block that was open when it was raised, until the block that it is for is left.
So the outermost block that lost its lease is interrupted, for its interrupt unwinds all others; a block around one that
is being interrupted waits until that one is left; and the loss of one lease is raised once, however many guards it has.
A block that begins later, as in a clean-up, is interrupted as ever.

The blocks are referred to weakly: one whose exit was never reached, because an exception fell on its first line, is
forgotten with its guard, and nobody is interrupted for it any more.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Final

_NUMBERS: Final = itertools.count()


class Block:
    """One guarded block: lost or not, interrupted or not, over or not."""

    def __init__(self) -> None:
        self.number = next(_NUMBERS)
        self.nest: Nest | None = None
        self.began_after = 0
        self.is_lost = False
        self.is_over = False

    @property
    def is_due(self) -> bool:
        """Whether it is the one to be interrupted now."""
        return self.nest is not None and self.nest.due() is self


class Nest:
    """The guarded blocks of one thread or task, the outermost first, and for which of them an interrupt was raised."""

    def __init__(self) -> None:
        self._blocks: list[weakref.ref[Block]] = []
        self.raised: list[int | None] = []
        """The numbers of the blocks whose interrupts were raised, in that order; None for one that reached nobody."""

    def enter(self, block: Block) -> None:
        """A block begins."""
        self._blocks = [one for one in self._blocks if _is_open(one)]
        if not self._blocks:
            self.raised.clear()
        block.nest, block.began_after = self, len(self.raised)
        self._blocks.append(weakref.ref(block))

    def leave(self, block: Block) -> bool:
        """A block is left, and with it those in it whose exit was not reached. True if no other is left."""
        block.is_over = True
        opened = list(self)
        for one in opened:
            if one.number > block.number:
                one.is_over = True
        self._blocks = [one for one in self._blocks if _is_open(one)]
        return not self._blocks

    def __iter__(self) -> Iterator[Block]:
        """Return the blocks that are open, the outermost first."""
        for ref in list(self._blocks):
            block = ref()
            if block is not None and not block.is_over:
                yield block

    def due(self) -> Block | None:
        """Return the block that is to be interrupted now, if any."""
        opened = list(self)
        numbers = {one.number for one in opened}
        for one in opened:
            is_pending = one.is_lost and one.number not in self.raised
            if is_pending and numbers.isdisjoint(self.raised[one.began_after :]):
                return one
        return None

    def was_swallowed(self, number: int) -> None:
        """Note that an interrupt was raised and swallowed by who calls finalizers, so it has to be raised again."""
        self.raised[:] = [None if one == number else one for one in self.raised]


def _is_open(ref: weakref.ref[Block]) -> bool:
    block = ref()
    return block is not None and not block.is_over
