"""The nested guarded blocks of one thread or task: which one is interrupted, and when.

One rule: an interrupt covers every block that was open when it was raised, until its own block is left. So the
outermost block that lost its lease is interrupted, because its interrupt unwinds all others; a block around one that is
being interrupted waits until that one is left; and the loss of one lease is raised once, however many guards it has. A
block that begins later, as in a clean-up, is interrupted as usual.

The references are weak: a block whose exit was never reached, because an exception arrived on its first line, is
dropped with its guard.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Final

_NUMBERS: Final = itertools.count()


class Block:
    """One guarded block."""

    def __init__(self) -> None:
        self.number = next(_NUMBERS)
        self.nest: Nest | None = None
        self.began_after = 0
        self.is_lost = False
        self.is_over = False

    @property
    def is_due(self) -> bool:
        """Whether this block is to be interrupted now."""
        return self.nest is not None and self.nest.due() is self


class Nest:
    """The guarded blocks of one thread or task, the outermost first, and the interrupts raised for them."""

    def __init__(self) -> None:
        self._blocks: list[weakref.ref[Block]] = []
        self.raised: list[int | None] = []
        """The numbers of the blocks whose interrupts were raised, in order; None for one that was swallowed."""

    def enter(self, block: Block) -> None:
        """Add a block."""
        self._blocks = [one for one in self._blocks if _is_open(one)]
        if not self._blocks:
            self.raised.clear()
        block.nest, block.began_after = self, len(self.raised)
        self._blocks.append(weakref.ref(block))

    def leave(self, block: Block) -> bool:
        """Remove a block, and inner blocks whose exit was not reached. True if no block is left."""
        block.is_over = True
        opened = list(self)
        for one in opened:
            if one.number > block.number:
                one.is_over = True
        self._blocks = [one for one in self._blocks if _is_open(one)]
        return not self._blocks

    def __iter__(self) -> Iterator[Block]:
        """Yield the open blocks, the outermost first."""
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
        """Record that the interpreter swallowed an interrupt, as in a finalizer, so that it is raised again."""
        self.raised[:] = [None if one == number else one for one in self.raised]


def _is_open(ref: weakref.ref[Block]) -> bool:
    block = ref()
    return block is not None and not block.is_over
