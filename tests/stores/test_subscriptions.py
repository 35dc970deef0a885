"""Subscriptions of one process: who is called, and how one ends where its thread may hold any lock."""

from __future__ import annotations

from lockstead.stores.subscriptions import Subscriptions
from lockstead.values import Name

APT, OTHER = Name("apt"), Name("other")


def test_all_who_subscribe_to_a_record_are_called_and_the_last_to_leave_is_noticed() -> None:
    ended: list[Name] = []
    subscriptions, seen = Subscriptions(ended.append), list[tuple[str, bool]]()
    first, is_first = subscriptions.add(APT, lambda is_free: seen.append(("first", is_free)))
    second, is_second = subscriptions.add(APT, lambda is_free: seen.append(("second", is_free)))
    assert (is_first, is_second, subscriptions.names(), APT in subscriptions) == (True, False, {APT}, True)
    subscriptions.changed(OTHER)
    subscriptions.changed(APT, is_free=True)
    assert seen == [("first", True), ("second", True)]
    first.close()
    first.close()
    subscriptions.changed_all()
    assert (seen[2:], ended) == ([("second", False)], [])
    del second
    assert (ended, len(subscriptions), APT in subscriptions) == ([APT], 0, False)


def test_one_that_is_closed_by_the_garbage_collector_in_the_middle_of_another_waits_for_no_lock() -> None:
    subscriptions, seen = Subscriptions(), list[bool]()
    subscription, _ = subscriptions.add(APT, seen.append)
    with subscriptions._lock:
        subscription.close()
        assert len(subscriptions) == 1
    assert subscriptions.names() == {APT}
    assert len(subscriptions) == 0, "whoever held the lock removes it afterwards"
    assert seen == []
