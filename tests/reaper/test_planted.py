"""Planted faults in what revokes and audits, each found by a named test. Those of the rules are in `test_rules`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from lockstead import Client, operations
from lockstead.protocol import release
from lockstead.protocol.commands import Read
from lockstead.reaper import rules, watch
from lockstead.reaper.service import StoreReaper
from tests.protocol import test_breaking as protocol
from tests.reaper import test_service as service
from tests.runtime import test_breaking as runtime
from tests.runtime.faulty import Faulty, quiet

Patch = pytest.MonkeyPatch


def judges_nothing(patch: Patch) -> None:
    """Revoke whatever has the incarnation."""
    true = release.break_lease
    patch.setattr(release, "break_lease", lambda *given, **more: true(*given, **{**more, "judges": None}))


def expects_no_revision(patch: Patch) -> None:
    """Revoke a lease that changed since it was judged."""
    true = release.Extend

    def extend(name: Any, fields: Any, incarnation: Any, revision: Any = None, **more: Any) -> Any:
        return true(name, fields, incarnation, None if set(fields) == {"revoked"} else revision, **more)

    patch.setattr(release, "Extend", extend)


def expects_no_incarnation(patch: Patch) -> None:
    """Revoke whoever holds the key now."""
    true = operations.LockOperations.broken

    def broken(self: Any, **more: Any) -> Any:
        return true(self, **{**more, "incarnation": None, "judges": None})

    patch.setattr(operations.LockOperations, "broken", broken)


def audits_under_a_new_name(patch: Patch) -> None:
    """Give each entry a name of its own."""
    true, numbers = release.audit_entry, count()
    patch.setattr(release, "audit_entry", lambda *given: (f"{next(numbers):014d}-x", true(*given)[1]))


def acts_without_a_term(patch: Patch) -> None:
    """Go on after the term was lost."""
    patch.setattr(StoreReaper, "leads", property(lambda _self: True))


def completes_nothing(patch: Patch) -> None:
    """Leave the audit of a killed reaper as it is."""
    patch.setattr(
        watch, "decide", lambda *given: (act for act in rules.decide(*given) if act is not rules.Act.COMPLETE)
    )


def trusts_one_clock(patch: Patch) -> None:
    """Compare the holder's clock with this machine's."""
    patch.setattr(rules, "writer_now", lambda _lease: None)


def in_memory(test: Callable[..., None]) -> Callable[[], None]:
    """Call a test of two clients."""

    def run() -> None:
        store = Faulty()
        with Client(store, listener=quiet) as client, Client(store.beside(), listener=quiet) as other:
            test(client, other, store)

    return run


FOUND: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (judges_nothing, lambda: service.test_h37_progress_between_listing_and_revoking_saves_the_lock(Read)),
    (expects_no_revision, protocol.test_of_two_who_revoke_a_lease_one_does_and_the_other_learns_it),
    (expects_no_incarnation, service.test_h37_a_lock_that_changed_hands_between_listing_and_revoking_is_left_alone),
    (audits_under_a_new_name, in_memory(runtime.test_two_who_break_a_lease_at_once_revoke_and_audit_it_once)),
    (acts_without_a_term, service.test_a_reaper_that_lost_its_term_does_nothing_more),
    (completes_nothing, service.test_h37_a_reaper_that_was_killed_before_its_audit_entry_is_completed_by_the_next),
    (trusts_one_clock, lambda: service.test_h38_a_holder_whose_clock_is_a_day_behind_is_not_unlocked_early("lock")),
]


@pytest.mark.parametrize(("fault", "test"), FOUND, ids=[fault.__name__ for fault, _ in FOUND])
def test_a_planted_fault_is_found(
    fault: Callable[[Patch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    fault(monkeypatch)
    with pytest.raises(Exception) as found:
        test()
    assert not isinstance(found.value, TypeError | NameError | AttributeError), found.value
