"""Faults where the server itself drops what is not renewed: what a deadline counts from, and who judges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstead.protocol import members, terms
from lockstead.protocol.commands import StoreClock
from lockstead.protocol.terms import Terms
from tests.protocol import test_enforced
from tests.simulation.mutants.patching import Patch, everywhere, mutant


@mutant(
    "the deadline counts from the take, not from what renewed the lease that the record hangs on",
    "one lease of etcd for many locks: taking one of them renews nothing, and the server drops it early",
    test_enforced.test_rule_06_what_hangs_on_an_earlier_renewal_counts_from_that,
)
def deadline_from_the_take() -> list[Patch]:
    return [(Terms, "renewed_at", lambda self, reply: reply.sent_at)]


@mutant(
    "a server that drops records is watched as one without a clock",
    "keeping alive there changes no record, so a holder that renews all the time seems to stand still",
    test_enforced.test_what_stands_there_is_alive_however_long_it_stands_still,
)
def enforced_judged_by_observation() -> list[Patch]:
    true = terms.seems_over

    def seems_over(name: Any, record: Any, reply: Any, seen: Any, held: Any) -> Any:
        if held.traits.clock is StoreClock.SERVER_EXPIRES:
            held = replace(held, traits=replace(held.traits, clock=StoreClock.NONE))
        return true(name, record, reply, seen, held)

    return everywhere(true, seems_over)


@mutant(
    "what the server granted less than was asked is ignored",
    "a server that caps the time of its leases: the session of ZooKeeper, a policy",
    test_enforced.test_rule_15_what_the_server_grants_less_is_believed_less,
)
def less_granted_is_ignored() -> list[Patch]:
    def deadline_by(self: Any, reply: Any, ttl: float, lock_delay: float = 0.0) -> float:
        return float(self.deadline(self.renewed_at(reply), ttl))

    return [(Terms, "deadline_by", deadline_by)]


@mutant(
    "a member counts from two reads that differ where a change renews nothing",
    "a field written under a lease that nobody kept alive since",
    test_enforced.test_rule_15_a_member_never_counts_from_two_reads_that_differ_where_a_change_renews_nothing,
)
def members_count_from_changes_that_renew_nothing() -> list[Patch]:
    true = members._join

    def join(lease: Any, held: Any) -> Any:
        if held.traits.clock is StoreClock.SERVER_EXPIRES:
            held = replace(held, traits=replace(held.traits, clock=StoreClock.NONE))
        return (yield from true(lease, held))

    return [(members, "_join", join)]
