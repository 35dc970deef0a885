"""The course knows at each moment which run waits for which, in whatever order the events are read."""

from __future__ import annotations

from itertools import count

import pytest

from examples.publishing.demo.acts import Finding
from examples.publishing.demo.orchestrated import Course, apart
from examples.publishing.demo.party import awaits
from examples.publishing.events import Event, EventKind


def played(*steps: tuple[str, EventKind] | tuple[str, EventKind, int]) -> Course:
    """Return a course on one repository; one step a second: who, what, and the number."""
    course, seconds = Course(), count(1)
    for run, what, *number in steps:
        course.add(Event(run, "apt", what, "plan" if what is EventKind.PHASE else "", *number, at=float(next(seconds))))
    return course


def waits(course: Course) -> list[tuple[str, str, float]]:
    return [(one.run, one.text, one.at) for one in course.of(EventKind.WAITING, "apt")]


def test_who_waits_waits_for_the_holder_and_then_for_the_next_one() -> None:
    course = played(
        ("a", EventKind.WAITING), ("a", EventKind.HOLDS, 1), ("b", EventKind.WAITING), ("c", EventKind.WAITING),
        ("a", EventKind.PUBLISHED, 1), ("b", EventKind.HOLDS, 2),
    )  # fmt: skip
    assert waits(course) == [("a", "", 1.0), ("b", "a", 3.0), ("c", "a", 4.0), ("c", "b", 6.0)]


@pytest.mark.parametrize("harm", [EventKind.KILLED, EventKind.PAUSED])
def test_who_was_killed_or_paused_is_waited_for_until_another_holds(harm: EventKind) -> None:
    course = played(
        ("a", EventKind.HOLDS, 1),
        ("a", harm),
        ("b", EventKind.WAITING),
        ("c", EventKind.WAITING),
        ("b", EventKind.HOLDS, 2),
    )
    assert waits(course) == [("b", "a", 3.0), ("c", "a", 4.0), ("c", "b", 5.0)]


def test_nobody_is_waited_for_who_has_published() -> None:
    assert waits(played(("a", EventKind.HOLDS, 1), ("a", EventKind.PUBLISHED, 1), ("b", EventKind.WAITING))) == [
        ("b", "", 3.0)
    ]


def test_a_wait_that_is_told_twice_is_entered_once() -> None:
    assert len(waits(played(("a", EventKind.HOLDS, 1), ("b", EventKind.WAITING), ("b", EventKind.WAITING)))) == 1


def test_a_loss_that_is_told_twice_is_entered_once() -> None:
    again = ("a", EventKind.HOLDS, 2), ("a", EventKind.REFUSED)
    course = played(("a", EventKind.HOLDS, 1), ("a", EventKind.REFUSED), ("a", EventKind.REFUSED), *again)
    assert len(course.of(EventKind.REFUSED, "apt")) == 2


def test_a_late_wait_event_does_not_undo_the_acquisition() -> None:
    course = played(("a", EventKind.HOLDS, 1), ("a", EventKind.PHASE), ("a", EventKind.WAITING))
    assert waits(course) == []
    assert course.holder("apt") == "a"


def test_a_wait_begins_no_later_than_it_ends() -> None:
    course = Course()
    course.add(Event("a", "apt", EventKind.WAITING, at=9.0))
    course.add(Event("a", "apt", EventKind.HOLDS, number=1, at=5.0))
    assert waits(course) == [("a", "", 5.0)]


def test_the_first_that_was_killed_is_known() -> None:
    assert played(("a", EventKind.HOLDS, 1)).killed is None
    killed = played(("a", EventKind.HOLDS, 1), ("a", EventKind.KILLED), ("b", EventKind.KILLED)).killed
    assert killed is not None
    assert killed.run == "a"


# --- one after the other ---------------------------------------------------------------------------------------------


def judged(*steps: tuple[str, EventKind] | tuple[str, EventKind, int]) -> bool:
    course = played(*steps)
    found: Finding = apart(course, "apt", len(course.of(EventKind.HOLDS, "apt")))
    return found.is_good


A, B = ("a", EventKind.HOLDS, 1), ("b", EventKind.HOLDS, 2)
A_PUBLISHED, B_PUBLISHED = ("a", EventKind.PUBLISHED, 1), ("b", EventKind.PUBLISHED, 2)


def test_one_after_the_other_is_so() -> None:
    assert judged(A, A_PUBLISHED, B, B_PUBLISHED)
    assert judged(A, ("a", EventKind.KILLED), B, B_PUBLISHED)
    assert judged(A, ("a", EventKind.PAUSED), B, ("a", EventKind.RESUMED), ("a", EventKind.REFUSED), B_PUBLISHED)


def test_who_holds_while_another_does_is_found_out() -> None:
    assert not judged(A, B, A_PUBLISHED, B_PUBLISHED)
    assert not judged(A, B, B_PUBLISHED)


def test_who_publishes_after_it_was_overtaken_is_found_out() -> None:
    assert not judged(A, ("a", EventKind.PAUSED), B, ("a", EventKind.RESUMED), A_PUBLISHED, B_PUBLISHED)
    assert not judged(A, ("a", EventKind.KILLED), B, A_PUBLISHED, B_PUBLISHED)


def test_a_token_that_does_not_grow_is_found_out() -> None:
    assert not judged(B, B_PUBLISHED, A, A_PUBLISHED)
    assert not judged(A, A_PUBLISHED, ("b", EventKind.HOLDS, 1), B_PUBLISHED)


def test_a_holder_too_many_is_found_out() -> None:
    assert not apart(played(A, A_PUBLISHED, B, B_PUBLISHED), "apt", 1).is_good


# --- whose words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "owner"),
    [
        ("waiting for 'apt', held by 'airflow:publish_tools/airflow/apt/-1' since 12:00:00 UTC, token 3", "airflow"),
        ("waiting for 'apt', held by 'prefect:publish-under-lock/prefect-apt/0e1b' for 8 s", "prefect"),
        ("waiting: 'apt' is held by 'dagster:0c1f:apt.publish_apt:0' (purpose: publish apt packages)", "dagster"),
        ("waiting for 'apt', held by 'shell:host/12' for 8.02 s", "shell"),
        ("waiting for 'apt'", ""),
        ("waiting for members that have not ended: airflow:publish_tools/airflow/yum.build/-1/1", ""),
    ],
)
def test_the_words_of_each_say_for_whom_it_waits(said: str, owner: str) -> None:
    assert awaits(said) == owner
