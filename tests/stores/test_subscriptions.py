"""Subscriptions of one process: who is called, and how one ends where its thread may hold any lock."""

from __future__ import annotations

import sys
import threading

from lockstead.stores.subscriptions import Subscriptions, join
from lockstead.values import Name

APT, OTHER = Name("apt"), Name("other")


def test_all_subscribers_are_called_and_the_last_one_ends_it() -> None:
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
    subscriptions.changed(APT)
    assert (seen[2:], ended) == ([("second", False)], [])
    del second
    assert (len(subscriptions), APT in subscriptions, ended) == (0, False, [APT])


def test_no_python_code_runs_when_a_subscription_is_dropped() -> None:
    """What a signal handler raises in a finalizer is lost."""
    subscriptions = Subscriptions[Name]()
    subscription, _ = subscriptions.add(APT, lambda _is_free: None)
    lines: list[str] = []
    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _what: lines.append(frame.f_code.co_qualname))  # type: ignore[func-returns-value]
    del subscription
    sys.settrace(before)
    assert lines == []
    assert len(subscriptions) == 0


def test_a_collected_generator_waits_for_no_lock() -> None:
    subscriptions, seen = Subscriptions[Name](), list[bool]()
    subscription, _ = subscriptions.add(APT, seen.append)
    with subscriptions._lock:
        subscription.close()
        assert APT in subscriptions._entries
    assert subscriptions.names() == set(), "the next call removes it"
    assert seen == []


def test_a_thread_whose_start_was_interrupted_is_not_waited_for() -> None:
    join(None, 60.0)
    join(threading.current_thread(), 60.0)
    join(threading.Thread(), 60.0)
    ended = threading.Event()
    thread = threading.Thread(target=ended.set)
    thread.start()
    join(thread, 60.0)
    assert ended.is_set()
