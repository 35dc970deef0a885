"""Faults of pruning: what is removed though it is alive, changed since, or still needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lockstead.protocol import pruning
from lockstead.protocol.commands import Remove, TokenSource
from lockstead.protocol.context import seems_over
from lockstead.protocol.record import Record
from tests.protocol import test_pruning
from tests.simulation.mutants.patching import Patch, mutant
from tests.simulation.plan import Scenario
from tests.simulation.store import DATED, NONE
from tests.simulation.store import SHARED as ONE_CLOCK

while_pruned = partial(mutant, scenario=Scenario.PRUNED)


def _judging_by(is_over: Callable[[Any, Any, Record], bool]) -> list[Patch]:
    """Let something else than a contender's judgement decide that a record is over."""

    def over(self: Any, look: Any, kind: Callable[[Record], Any]) -> Any:
        try:
            record = self.context.decode(look.name, look.seen)
        except pruning.StoreRefused:
            return pruning.Kept.UNREADABLE
        yield from ()
        is_ours = not record.is_foreign and (record.ended or is_over(self, look, record))
        return kind(record) if is_ours and self._age(look) >= self.request.older_than else None

    return [(pruning._Pruning, "_over", over)]


@while_pruned(
    "pruning goes by age alone",
    "a long lease is removed while its holder works",
    test_pruning.test_h36_a_live_registration_stays_and_so_does_its_lease,
    traits=NONE,
)
def prunes_the_living() -> list[Patch]:
    return _judging_by(lambda _self, _look, _record: True)


@while_pruned(
    "pruning takes the wall clocks of pruner and writer for the store's",
    "a machine whose clock is a day ahead removes live registrations",
    test_pruning.test_h36_a_live_registration_stays_and_so_does_its_lease,
    traits=ONE_CLOCK,
)
def prunes_by_the_wall_clock() -> list[Patch]:
    return _judging_by(
        lambda self, _look, record: record.expires_at is not None and record.expires_at < self.request.wall_now
    )


@while_pruned(
    "pruning takes Cloud Storage's `Date` for the clock that stamped the record",
    "a server whose `Date` is ahead has live registrations removed",
    test_pruning.test_h36_a_date_that_is_ahead_decides_nothing,
)
def prunes_by_the_date() -> list[Patch]:
    return _judging_by(
        lambda self, look, record: seems_over(look.name, record, look.listed, look.seen, self.context) is not False
    )


@while_pruned(
    "pruning removes by incarnation alone",
    "a member that renewed since the listing is cut off",
    test_pruning.test_h36_a_record_that_changed_since_it_was_listed_is_left_alone,
    traits=ONE_CLOCK,
)
def prunes_without_revision() -> list[Patch]:
    return [(pruning, "Remove", lambda name, incarnation, *_: Remove(name, incarnation))]


@while_pruned(
    "pruning removes the news of an unclean end",
    "the next holder does not repair what the last one left half done",
    test_pruning.test_h36_a_record_of_an_unclean_end_stays_for_the_next_holder,
    traits=ONE_CLOCK,
)
def prunes_the_news() -> list[Patch]:
    return [(pruning, "is_written", lambda *_: False)]


@while_pruned(
    "a counter of tokens that begins again is pruned",
    "a later holder's token is lower, and the resource lets an earlier one write",
    test_pruning.test_h36_a_counter_that_would_begin_again_is_never_removed,
)
def prunes_a_counter_that_begins_again() -> list[Patch]:
    true = pruning._Pruning._of_companions

    def of_companions(self: Any, look: Any) -> Any:
        assert self.context.traits.tokens is TokenSource.DRAWN
        return true(pruning._Pruning(self.request, type(self.context)(DATED, *_rest(self.context))), look)

    rules = {**pruning._RULES, pruning.Space.COMPANION: of_companions}
    return [(pruning, "_RULES", rules)]


def _rest(context: Any) -> tuple[Any, ...]:
    return context.settings, context.observations


@while_pruned(
    "pruning writes into the history after it has removed the record",
    "it is killed in between, and nobody learns that a lease was lost",
    test_pruning.test_h36_the_history_has_an_unclean_end_before_its_record_is_gone,
)
def forgets_before_it_tells() -> list[Patch]:
    def forgotten(self: Any, look: Any, found: Any) -> Any:
        yield from ()
        return pruning.Leftover.LOCK if found is pruning.Kept.UNCLEAN and self.request.forgets else found

    return [(pruning._Pruning, "_forgotten", forgotten)]
