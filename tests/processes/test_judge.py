"""The judge of the kill runs finds each kind of fault, and none in a run that keeps the promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstead import LeaseLost
from lockstead.values import Sequencer
from tests.processes.counter import Counter, Write
from tests.processes.journal import Event, Journal
from tests.processes.judge import judge, kills


def holds(at: float, holder: str, until: float, token: int | None = None) -> Event:
    return Event(at, ord(holder), "holds", "k", holder, token, until)


def leaves(at: float, holder: str) -> Event:
    return Event(at, ord(holder), "leaves", "k", holder)


def looks(at: float, **shown: object) -> Event:
    return Event(at, 0, "looks", until=at + 0.1, shown=shown)


FINALLY = Event(99.0, 1, "finally", "k")

GOOD = [
    holds(1.0, "a", 3.0, 7),
    looks(1.2, k=["a", 7]),
    Event(1.5, ord("a"), "wrote", "k", "a", 7, value=1),
    leaves(2.0, "a"),
    Event(2.1, ord("a"), "removed", "k", "a"),
    looks(2.2),
    holds(2.5, "b", 4.0, 8),
    Event(2.6, ord("b"), "killed"),
    looks(3.0, k=["b", 8]),
    holds(4.1, "c", 6.0, 9),
    FINALLY,
]
COUNTED: list[Write] = [(7, None), (7, 1), (8, None), (8, 2)]


def test_a_run_that_keeps_the_promise_has_no_fault() -> None:
    assert judge(GOOD, {"k": COUNTED}) == []
    assert (kills(GOOD).all, kills(GOOD).holding, kills(GOOD).tokens) == (1, 1, 3)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ([holds(3.9, "d", 5.0)], "before b had to stop"),
        ([holds(1.8, "d", 1.9)], "before a had to stop"),
        ([holds(7.0, "d", 8.0, 9)], "has token 9 after c had 9"),
        ([looks(8.0, k=["e", 5])], "with token 5 after b with 8"),
        ([looks(8.0, k=["e", 8])], "with token 8 after b with 8"),
        ([looks(5.0)], "shows nobody while c may believe"),
        ([looks(5.0, k=["b", 8])], "shows b while c may believe"),
        ([looks(8.0, k=["a", 8])], "a stands in the store again"),
        ([Event(4.5, 1, "lost", "k", "c", word="TAKEN")], "c lost its lease (TAKEN)"),
        ([Event(1.6, 1, "wrote", "k", "a", 7, value=9)], "the increment to 9 of a is not in the counter"),
        ([Event(1.6, 1, "asks", "other")], "other: nobody got in"),
    ],
)
def test_each_kind_of_fault_is_found(more: list[Event], word: str) -> None:
    assert word in "\n".join(judge([*GOOD, *more], {"k": COUNTED}))


@pytest.mark.parametrize(
    ("history", "word"),
    [
        ([(7, None), (7, 1), (8, None), (8, 1)], "increment 2 wrote 1"),
        ([(7, None), (7, 1), (8, 3)], "increment 2 wrote 3"),
        ([(8, None), (7, 1)], "let a superseded token pass"),
    ],
)
def test_a_counter_that_lost_an_increment_is_found(history: list[Write], word: str) -> None:
    assert word in "\n".join(judge(GOOD, {"k": history}))


def test_a_line_whose_writer_was_killed_was_never_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.note("asks", "k")
        whole = path.read_bytes()
        for cut in range(len(whole)):
            path.write_bytes(whole[:cut])
            journal.note("left", "k")
            assert [event.what for event in journal.events()] == ["left"]


def test_the_counter_refuses_a_superseded_token_and_remembers_it(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    assert counter.read(Sequencer("k", 5)) == 0
    counter.write(Sequencer("k", 5), 1)
    assert counter.read(Sequencer("k", 6)) == 1
    with pytest.raises(LeaseLost):
        counter.write(Sequencer("k", 5), 2)
    with pytest.raises(LeaseLost):
        Counter(counter.path).read(Sequencer("k", 5))
