"""Whose turn it is among the waiters of one process, and which of them is woken."""

from __future__ import annotations

from dataclasses import dataclass

from lockstead.protocol.turns import Turns


@dataclass(slots=True, eq=False)
class Waiter:
    """A waiter as a test moves it."""

    name: str
    is_over: bool = False
    is_gone: bool = False
    is_stopped: bool = False


def queued(*names: str) -> tuple[Turns[Waiter], list[Waiter]]:
    turns, waiters = Turns[Waiter](), [Waiter(name) for name in names]
    assert [turns.enter("apt", one) for one in waiters] == [True, *(False for _ in names[1:])]
    return turns, waiters


def test_one_asks_and_the_others_follow_in_the_order_they_came() -> None:
    turns, (first, second, third) = queued("a", "b", "c")
    assert turns.first("apt") is first
    assert turns.leave("apt", second) is None
    assert (second.is_over, [*turns]) == (True, [first, third])
    assert turns.leave("apt", first) is third
    assert turns.first("apt") is third
    assert turns.leave("apt", third) is None
    assert turns.leave("apt", third) is None, "to leave again is nothing"
    assert (len(turns), [*turns], turns.first("apt")) == (0, [], None)


def test_keys_have_queues_of_their_own() -> None:
    turns, (first,) = queued("a")
    other = Waiter("b")
    assert turns.enter("rpm", other)
    assert [*turns] == [first, other]
    assert turns.leave("apt", first) is None
    assert turns.first("rpm") is other


def test_a_waiter_that_was_interrupted_is_passed_over() -> None:
    turns, (first, second, third) = queued("a", "b", "c")
    first.is_over = second.is_over = True
    assert turns.first("apt") is third
    assert turns.leave("apt", first) is third, "it was forgotten meanwhile, and woke nobody"


def test_a_waiter_whose_loop_is_closed_is_forgotten_and_one_whose_loop_stands_keeps_its_place() -> None:
    turns, (first, second, third) = queued("a", "b", "c")
    first.is_gone = second.is_stopped = True
    assert turns.first("apt") is third
    second.is_stopped = False
    assert turns.first("apt") is second
    third.is_stopped = second.is_stopped = True
    assert turns.first("apt") is second, "if none can ask it is the first one's turn"


def test_the_first_is_woken_when_the_key_may_be_free() -> None:
    turns, (first, _second) = queued("a", "b")
    assert turns.freed("apt") is first
    assert turns.freed("rpm") is None


def test_what_the_first_saw_is_kept_until_the_key_is_freed_or_the_queue_ends() -> None:
    turns, (first, second) = queued("a", "b")
    assert (turns.is_followed("apt"), turns.is_followed("rpm"), turns.noted("apt")) == (True, False, None)
    turns.note("apt", "held")
    turns.note("rpm", "held")
    assert (turns.noted("apt"), turns.noted("rpm")) == ("held", None)
    turns.freed("apt")
    assert turns.noted("apt") is None
    turns.note("apt", "held")
    turns.leave("apt", first)
    assert (turns.noted("apt"), turns.is_followed("apt")) == ("held", False)
    turns.leave("apt", second)
    assert turns.noted("apt") is None
