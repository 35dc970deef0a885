"""Whose turn it is among the waiters of one process, and which of them is woken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstead.runtime.local_queue import LocalQueue


@dataclass(slots=True, eq=False)
class Waiter:
    """A waiter as a test moves it."""

    is_over: bool = False
    is_gone: bool = False
    is_stopped: bool = False
    is_rung: bool = False

    def ring(self) -> None:
        self.is_rung = True


def rung(waiter: Waiter) -> bool:
    """Return whether it was rung, and silence it."""
    was, waiter.is_rung = waiter.is_rung, False
    return was


def in_line(number: int) -> tuple[LocalQueue, list[Waiter]]:
    lines, waiters = LocalQueue(), [Waiter() for _ in range(number)]
    assert [lines.enter("apt", waiter) for waiter in waiters] == [place == 0 for place in range(number)]
    return lines, waiters


def test_the_first_waiter_sends_and_hands_over_to_the_next() -> None:
    lines, (first, second, third) = in_line(3)
    assert [lines.is_first("apt", one) for one in (first, second, third)] == [True, False, False]
    second.is_over = True
    lines.leave("apt", first)
    assert (first.is_over, rung(first), rung(second), rung(third)) == (True, False, False, True)
    assert lines.is_first("apt", third)
    lines.leave("apt", third)
    assert lines._queues == {}


def test_who_leaves_from_within_the_line_wakes_nobody() -> None:
    lines, (first, second, third) = in_line(3)
    lines.leave("apt", second)
    lines.leave("deb", Waiter())
    assert not any(map(rung, (first, second, third)))
    lines.leave("apt", first)
    assert rung(third)


def test_who_is_over_before_it_asks_is_passed_over() -> None:
    lines, (first, second) = in_line(2)
    first.is_over = True
    assert lines.is_first("apt", second)
    assert not lines.is_followed("apt")
    second.is_over = True
    assert lines.enter("apt", late := Waiter())
    assert lines.is_first("apt", late)


def test_a_line_is_followed_while_somebody_stands_behind_the_first() -> None:
    lines, (_first, second) = in_line(2)
    assert lines.is_followed("apt")
    lines.leave("apt", second)
    assert not lines.is_followed("apt")
    assert not lines.is_followed("deb")


def test_the_first_waiters_note_lasts_until_the_key_changes() -> None:
    lines, (first, second) = in_line(2)
    seen: Any = object()
    lines.note("apt", seen)
    lines.note("deb", seen)
    assert (lines.noted("apt"), lines.noted("deb")) == (seen, None)
    lines.leave("apt", first)
    assert lines.noted("apt") is seen
    lines.wake_first("apt")
    assert lines.noted("apt") is None
    lines.note("apt", seen)
    lines.leave("apt", second)
    assert lines.noted("apt") is None


def test_a_ring_wakes_the_first_alone_and_one_for_all_wakes_everybody() -> None:
    lines, (first, second) = in_line(2)
    lines.enter("deb", other := Waiter())
    lines.wake_first("apt")
    lines.wake_first("rpm")
    assert (rung(first), rung(second), rung(other)) == (True, False, False)
    lines.wake_all()
    assert (rung(first), rung(second), rung(other)) == (True, True, True)


def test_a_waiter_keeps_its_place_unless_its_loop_is_closed() -> None:
    lines, (first, second, third) = in_line(3)
    first.is_gone = second.is_stopped = True
    assert lines.is_first("apt", third)
    second.is_stopped = False
    assert lines.is_first("apt", second)
    third.is_stopped = second.is_stopped = True
    assert lines.is_first("apt", second), "if none can ask it is the first one's turn"
    second.is_stopped = False
    third.is_stopped = False
    lines.leave("apt", third)
    lines.leave("apt", second)
    lines.leave("apt", second)
    assert not any(map(rung, (first, second, third))), "to leave again is nothing"
