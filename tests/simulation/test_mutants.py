"""The suite tests the suite: every engine that is broken on purpose is caught by a seed or by a directed scenario.

Which one catches it is written down here, because random search alone misses what one interleaving shows at once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstead.testing.simulation import play
from tests.protocol import test_expiry, test_hazards, test_rules
from tests.simulation.mutants import MUTANTS, broken

SEEDS = 2500
"""How many seeds a mutant may survive. The seed that is written down is tried first."""

BY_SEED = {
    "no_drift_for_holders": 45,
    "late_success_revives": 2,
    "release_removes_whatever_is_there": 41,
    "renewal_without_the_incarnation": 23,
    "release_without_draining": 14,
    "members_read_without_age": 37,
    "token_drawn_but_not_published": 18,
    "observation_from_the_send": 45,
    "observation_ignores_the_revision": 2,
    "contenders_judge_by_their_own_ttl": 15,
    "nothing_is_swept": 0,
    "loss_is_never_told": 0,
    "released_lease_goes_on_believing": 0,
}

BY_SCENARIO: dict[str, Callable[[], None]] = {
    "no_drift_for_contenders": test_expiry.test_a_records_life_is_the_ttl_a_drift_longer_and_the_lock_delay,
    "deadline_from_the_answer": test_rules.test_rule_02_an_adopted_create_counts_from_the_extend_that_adopts_it,
    "incarnation_alone_on_takeover": test_hazards.test_h11_a_takeover_loses_against_a_holder_that_renews_just_in_time,
    "no_read_after_an_unknown_outcome": (
        test_hazards.test_h03_a_replace_whose_answer_was_lost_is_adopted_without_waiting
    ),
    "adopted_without_extending": test_rules.test_rule_02_an_adopted_create_counts_from_the_extend_that_adopts_it,
    "member_reads_before_registering": (
        test_rules.test_rule_04_a_member_reads_the_record_only_after_the_answer_that_proves_its_registration
    ),
    "member_ignores_closing": test_rules.test_rule_04_attach_that_registers_after_the_list_sees_closing_and_withdraws,
    "release_without_closing": test_rules.test_rule_04_nobody_lists_before_an_answer_shows_closing,
    "reclaim_without_draining": test_rules.test_rule_12_reclaim_closes_lists_waits_and_only_then_replaces,
    "removed_at_the_drains_bound": test_rules.test_rule_04_a_live_member_at_the_bound_leaves_the_record,
    "members_removed_by_incarnation_alone": (
        test_rules.test_rule_04_a_registration_judged_dead_is_removed_by_incarnation_and_revision
    ),
    "member_believes_the_record_alone": test_hazards.test_h27_a_member_believes_until_the_earlier_of_its_two_deadlines,
    "member_believes_its_registration_alone": (
        test_hazards.test_h27_a_member_believes_until_the_earlier_of_its_two_deadlines
    ),
    "members_trust_any_date": test_rules.test_rule_07_an_uncalibrated_member_extends_instead_of_counting_from_a_read,
    "token_published_without_the_revision": (
        test_rules.test_rule_10_a_publication_that_lands_late_is_the_one_token_of_the_lease
    ),
    "native_token_without_a_look": test_hazards.test_h06_h17_a_process_superseded_while_it_was_paused_gets_no_token,
    "sweep_takes_what_members_hold": test_rules.test_rule_04_a_sweep_spares_the_lease_that_members_still_work_under,
}


def test_every_mutant_is_to_be_caught_by_something() -> None:
    assert set(BY_SEED) | set(BY_SCENARIO) == set(MUTANTS)


@pytest.mark.parametrize("name", BY_SEED)
def test_a_seed_catches(name: str) -> None:
    with broken(name):
        assert any(play(seed).violation for seed in (BY_SEED[name], *range(SEEDS))), f"{name} survived {SEEDS} seeds"


@pytest.mark.parametrize("name", BY_SCENARIO)
def test_a_directed_scenario_catches(name: str) -> None:
    with broken(name), pytest.raises(AssertionError):
        BY_SCENARIO[name]()
