"""Faults of what a holder is told of the lease before its own."""

from __future__ import annotations

from typing import Any

from lockstead.protocol import acquire, previous_lease, release
from lockstead.protocol.commands import Remove
from lockstead.testing.simulation.store import SHARED
from tests.protocol import test_predecessor
from tests.simulation.mutants.patching import Patch, everywhere, mutant


@mutant(
    "what was taken over and given up is swept as if it had been free",
    "a task is cancelled right after it took over from a dead one, and the next is told that all ended well",
    test_predecessor.test_h32_a_take_over_whose_answer_was_lost_passes_it_on_when_it_is_swept,
    traits=SHARED,
)
def sweep_forgets_the_one_before() -> list[Patch]:
    def unused(name: Any, incarnation: str, before: Any, terms: Any) -> Remove:
        return Remove(name, incarnation)

    return everywhere(previous_lease.unused, unused)


@mutant(
    "a lease that nobody worked under is given back like any other",
    "of two locks one is not to be had: the other one, whose holder had died, is given back as if put right",
    test_predecessor.test_h32_a_lease_that_nobody_worked_under_passes_on_how_the_one_before_ended,
    traits=SHARED,
    shared=False,
)
def unused_is_given_back_as_clean() -> list[Patch]:
    return [(release, "is_written", lambda _before, _terms: False)]


@mutant(
    "who takes over does not write down whom",
    "nobody but its own process knows it: what is swept after that has ended says nothing",
    test_predecessor.test_h32_a_take_over_whose_answer_was_lost_is_adopted_with_what_it_was_told,
    traits=SHARED,
)
def take_over_writes_nothing_down() -> list[Patch]:
    return [(acquire, "written", lambda fields, _before: dict(fields))]
