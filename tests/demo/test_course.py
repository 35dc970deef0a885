"""The course of the runs says at each moment who waits for whom, in whatever order it is heard."""

from __future__ import annotations

from itertools import count

import pytest

from examples.publishing.demo.acts import Finding
from examples.publishing.demo.orchestrated import Course, apart
from examples.publishing.demo.party import awaits
from examples.publishing.events import Event, What


def played(*steps: tuple[str, What] | tuple[str, What, int]) -> Course:
    """Return a course on one repository; one step a second: who, what, and the number."""
    course, seconds = Course(), count(1)
    for run, what, *number in steps:
        course.add(Event(run, "apt", what, "plan" if what is What.PHASE else "", *number, at=float(next(seconds))))
    return course


def waits(course: Course) -> list[tuple[str, str, float]]:
    return [(one.run, one.text, one.at) for one in course.of(What.WAITING, "apt")]


def test_who_waits_waits_for_the_holder_and_then_for_the_next_one() -> None:
    course = played(
        ("a", What.WAITING), ("a", What.HOLDS, 1), ("b", What.WAITING), ("c", What.WAITING), ("a", What.PUBLISHED, 1),
        ("b", What.HOLDS, 2),
    )  # fmt: skip
    assert waits(course) == [("a", "", 1.0), ("b", "a", 3.0), ("c", "a", 4.0), ("c", "b", 6.0)]


@pytest.mark.parametrize("harm", [What.KILLED, What.PAUSED])
def test_who_was_killed_or_paused_is_waited_for_until_another_holds(harm: What) -> None:
    course = played(("a", What.HOLDS, 1), ("a", harm), ("b", What.WAITING), ("c", What.WAITING), ("b", What.HOLDS, 2))
    assert waits(course) == [("b", "a", 3.0), ("c", "a", 4.0), ("c", "b", 5.0)]


def test_nobody_is_waited_for_who_has_published() -> None:
    assert waits(played(("a", What.HOLDS, 1), ("a", What.PUBLISHED, 1), ("b", What.WAITING))) == [("b", "", 3.0)]


def test_a_wait_that_is_told_twice_is_entered_once() -> None:
    assert len(waits(played(("a", What.HOLDS, 1), ("b", What.WAITING), ("b", What.WAITING)))) == 1


def test_a_loss_that_is_told_twice_is_entered_once() -> None:
    again = ("a", What.HOLDS, 2), ("a", What.REFUSED)
    course = played(("a", What.HOLDS, 1), ("a", What.REFUSED), ("a", What.REFUSED), *again)
    assert len(course.of(What.REFUSED, "apt")) == 2


def test_a_wait_that_is_told_too_late_does_not_undo_that_the_lock_is_held() -> None:
    course = played(("a", What.HOLDS, 1), ("a", What.PHASE), ("a", What.WAITING))
    assert waits(course) == []
    assert course.holder("apt") == "a"


def test_a_wait_begins_no_later_than_it_ends() -> None:
    course = Course()
    course.add(Event("a", "apt", What.WAITING, at=9.0))
    course.add(Event("a", "apt", What.HOLDS, number=1, at=5.0))
    assert waits(course) == [("a", "", 5.0)]


def test_the_first_that_was_killed_is_known() -> None:
    assert played(("a", What.HOLDS, 1)).killed is None
    killed = played(("a", What.HOLDS, 1), ("a", What.KILLED), ("b", What.KILLED)).killed
    assert killed is not None
    assert killed.run == "a"


# --- one after the other ---------------------------------------------------------------------------------------------


def judged(*steps: tuple[str, What] | tuple[str, What, int]) -> bool:
    course = played(*steps)
    found: Finding = apart(course, "apt", len(course.of(What.HOLDS, "apt")))
    return found.is_good


A, B = ("a", What.HOLDS, 1), ("b", What.HOLDS, 2)
A_PUBLISHED, B_PUBLISHED = ("a", What.PUBLISHED, 1), ("b", What.PUBLISHED, 2)


def test_one_after_the_other_is_so() -> None:
    assert judged(A, A_PUBLISHED, B, B_PUBLISHED)
    assert judged(A, ("a", What.KILLED), B, B_PUBLISHED)
    assert judged(A, ("a", What.PAUSED), B, ("a", What.RESUMED), ("a", What.REFUSED), B_PUBLISHED)


def test_who_holds_while_another_does_is_found_out() -> None:
    assert not judged(A, B, A_PUBLISHED, B_PUBLISHED)
    assert not judged(A, B, B_PUBLISHED)


def test_who_publishes_after_it_was_overtaken_is_found_out() -> None:
    assert not judged(A, ("a", What.PAUSED), B, ("a", What.RESUMED), A_PUBLISHED, B_PUBLISHED)
    assert not judged(A, ("a", What.KILLED), B, A_PUBLISHED, B_PUBLISHED)


def test_a_token_that_does_not_grow_is_found_out() -> None:
    assert not judged(B, B_PUBLISHED, A, A_PUBLISHED)
    assert not judged(A, A_PUBLISHED, ("b", What.HOLDS, 1), B_PUBLISHED)


def test_a_holder_too_many_is_found_out() -> None:
    assert not apart(played(A, A_PUBLISHED, B, B_PUBLISHED), "apt", 1).is_good


# --- whose words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "owner"),
    [
        ("waiting for 'airflow:publish_tools/airflow/apt/-1', who holds 'apt' since 12:00:00 UTC, token 3", "airflow"),
        ("waiting for 'apt', held by 'prefect:publish-under-lock/prefect-apt/0e1b' for 8 s", "prefect"),
        ("waiting: 'apt' is held by 'dagster:0c1f:apt.publish_apt:0' (purpose: publish apt packages)", "dagster"),
        ("waiting for 'apt', held by 'shell:host/12' for 8.02 s", "shell"),
        ("waiting for 'apt'", ""),
        ("waiting for who works still, or was not seen to end: airflow:publish_tools/airflow/yum.build/-1/1", ""),
    ],
)
def test_the_words_of_each_say_for_whom_it_waits(said: str, owner: str) -> None:
    assert awaits(said) == owner
