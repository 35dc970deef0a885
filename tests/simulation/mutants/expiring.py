"""Faults where the server itself drops what is not renewed: what a deadline counts from, and who judges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstead.protocol import context, members
from lockstead.protocol.commands import StoreClock
from lockstead.protocol.context import ProtocolContext
from tests.protocol import test_expiring
from tests.simulation.mutants.patching import Patch, everywhere, mutant


@mutant(
    "deadline counts from the acquire, not from the renewal of the underlying lease",
    "one etcd lease for many locks: the server drops it early",
    test_expiring.test_rule_06_a_create_on_a_renewed_lease_counts_from_that,
)
def deadline_from_the_take() -> list[Patch]:
    return [(ProtocolContext, "renewed_at", lambda self, reply: reply.sent_at)]


@mutant(
    "records on an expiring server are observed",
    "keep-alives change no record: a live holder seems to stand still",
    test_expiring.test_what_stands_there_is_alive_however_long_it_stands_still,
)
def enforced_judged_by_observation() -> list[Patch]:
    true = context.seems_over

    def seems_over(name: Any, record: Any, reply: Any, seen: Any, held: Any) -> Any:
        if held.traits.clock is StoreClock.SERVER_EXPIRES:
            held = replace(held, traits=replace(held.traits, clock=StoreClock.NONE))
        return true(name, record, reply, seen, held)

    return everywhere(true, seems_over)


@mutant(
    "a shorter granted ttl is ignored",
    "a ZooKeeper session or a policy caps the lease",
    test_expiring.test_rule_15_what_the_server_grants_less_is_believed_less,
)
def less_granted_is_ignored() -> list[Patch]:
    def deadline_by(self: Any, reply: Any, ttl: float, lock_delay: float = 0.0) -> float:
        return float(self.deadline(self.renewed_at(reply), ttl))

    return [(ProtocolContext, "deadline_by", deadline_by)]


@mutant(
    "a member counts from changes that renew nothing",
    "a field was written, but nobody kept the lease alive",
    test_expiring.test_rule_15_two_different_reads_are_not_always_a_renewal,
)
def members_count_from_changes_that_renew_nothing() -> list[Patch]:
    true = members._join

    def join(lease: Any, held: Any, *how: Any) -> Any:
        if held.traits.clock is StoreClock.SERVER_EXPIRES:
            held = replace(held, traits=replace(held.traits, clock=StoreClock.NONE))
        return (yield from true(lease, held, *how))

    return [(members, "_join", join)]
