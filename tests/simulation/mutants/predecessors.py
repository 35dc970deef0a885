"""Faults of what a holder is told of the lease before its own."""

from __future__ import annotations

from typing import Any

from lockstead.protocol import acquire, previous_lease, release
from lockstead.protocol.commands import Remove
from tests.protocol import test_predecessor
from tests.simulation.mutants.patching import Patch, everywhere, mutant
from tests.simulation.store import SHARED


@mutant(
    "a swept takeover is removed as if the lock had been free",
    "a task is cancelled after taking over; the next holder is told of a clean end",
    test_predecessor.test_h32_a_swept_takeover_without_a_reply_passes_it_on,
    traits=SHARED,
)
def sweep_forgets_the_one_before() -> list[Patch]:
    def unused(name: Any, incarnation: str, before: Any, context: Any) -> Remove:
        return Remove(name, incarnation)

    return everywhere(previous_lease.unused, unused)


@mutant(
    "an unused lease is released as clean",
    "one of two locks is not free; the other, of a dead holder, looks repaired",
    test_predecessor.test_h32_an_unused_lease_passes_on_its_predecessors_end,
    traits=SHARED,
    shared=False,
)
def unused_is_given_back_as_clean() -> list[Patch]:
    return [(release, "is_written", lambda _before, _context: False)]


@mutant(
    "a takeover does not record its predecessor",
    "once its process has ended, a sweep cannot report it",
    test_predecessor.test_h32_a_takeover_without_a_reply_is_adopted_informed,
    traits=SHARED,
)
def take_over_writes_nothing_down() -> list[Patch]:
    return [(acquire, "written", lambda fields, _before: dict(fields))]
