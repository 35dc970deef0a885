"""Faults of fencing: tokens that are drawn, published and shared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstead import operations
from lockstead.protocol import fence
from lockstead.protocol.commands import Absent, Extend, Read, Snapshot, TokenSource, ask
from lockstead.protocol.context import draw, loss
from lockstead.protocol.observations import ObservationCache
from lockstead.values import Sequencer
from tests.protocol import test_hazards, test_rules, test_set_clock
from tests.runtime import test_leaving
from tests.simulation.mutants.patching import Patch, everywhere, mutant
from tests.simulation.store import SHARED


def _publishing(incarnation: bool) -> Any:
    def loose(name: Any, fields: Any, expected: Any, revision: Any = None, lifetime: float = 0.0) -> Any:
        return Extend(name, fields, expected if incarnation else None, None, lifetime)

    return loose


@mutant(
    "token published without expecting incarnation and revision",
    "a superseded holder writes its token into its successor's record",
    test_rules.test_rule_10_a_holder_superseded_while_drawing_gets_no_token,
)
def token_drawn_without_proof() -> list[Patch]:
    return [(fence, "Extend", _publishing(False)), (fence, "loss", lambda lease, answer, context: None)]


@mutant(
    "token published without expecting the revision",
    "a late publication overwrites the token in use",
    test_rules.test_rule_10_a_late_publication_is_the_leases_one_token,
)
def token_published_without_the_revision() -> list[Patch]:
    return [(fence, "Extend", _publishing(True))]


@mutant(
    "token drawn, never published",
    "'still before my deadline' proves nothing against a break or a deletion",
    test_rules.test_rule_10_a_token_counts_only_once_it_is_published,
)
def token_drawn_but_not_published() -> list[Patch]:
    def draw_token(lease: Any, context: Any, *, salt: str) -> Any:
        reply = yield from ask(Read(lease.name))
        if isinstance(reply.answer, Absent) or loss(lease, reply.answer, context) is not None:
            return None
        if reply.answer.token is not None:
            return reply.answer.token
        drawn = yield from draw(lease.name.key, salt, context)
        return drawn.token

    return everywhere(fence.draw_token, draw_token)


@mutant(
    "siblings do not share a token",
    "the resource refuses all tasks but the last",
    test_rules.test_rule_10_siblings_that_draw_at_once_share_one_token,
)
def token_not_shared_between_siblings() -> list[Patch]:
    true = fence.draw_token

    def draw_token(lease: Any, context: Any, *, salt: str) -> Any:
        if context.traits.tokens is not TokenSource.DRAWN:
            return (yield from true(lease, context, salt=salt))
        while True:
            reply = yield from ask(Read(lease.name))
            if loss(lease, reply.answer, context) is not None:
                return None
            drawn = yield from draw(lease.name.key, salt, context)
            fields = {"token": str(drawn.token)}
            published = yield from ask(Extend(lease.name, fields, lease.incarnation, reply.answer.revision))
            if isinstance(published.answer, Snapshot):
                return drawn.token

    return everywhere(true, draw_token)


@mutant(
    "native token without checking the holder",
    "a superseded, paused process gets its successor's token",
    test_hazards.test_h06_h17_a_process_superseded_while_paused_gets_no_token,
)
def native_token_without_a_look() -> list[Patch]:
    return [(fence, "loss", lambda lease, answer, context: None)]


@mutant(
    "`verify()` does not remember record and server clock",
    "the clock is set forward between two checks: a live holder's token is refused",
    test_set_clock.test_h31_the_token_of_a_live_holder_survives_a_set_clock,
    seconds=3600.0,
    traits=SHARED,
)
def tokens_checked_without_a_note() -> list[Patch]:
    true = fence.verify

    def verify(sequencer: Any, context: Any) -> Any:
        return (yield from true(sequencer, replace(context, observations=ObservationCache())))

    return everywhere(true, verify)


@mutant(
    "token drawn past the deadline is returned",
    "the draw took a whole lease; the next holder's token may be lower",
    test_leaving.test_h06_h17_a_token_drawn_after_the_deadline_is_discarded,
)
def token_drawn_past_the_deadline() -> list[Patch]:
    true = operations.sequencer

    def sequencer(lease: Any) -> Any:
        lease.check()
        if lease._lease_state.token is None:
            lease._lease_state.token = yield from fence.draw_token(
                lease._lease_state.lease, lease._kept.context, salt="s"
            )
        return Sequencer(lease.key, lease._lease_state.token)

    return everywhere(true, sequencer)
