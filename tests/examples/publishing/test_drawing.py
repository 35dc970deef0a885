"""EventKind a drawing of a demo shows, said by its events; and that it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.publishing.demo.diagram import draw, shortened
from examples.publishing.demo.drawing import Drawing, Kind, drawing_of
from examples.publishing.demo.orchestrated import Course
from examples.publishing.events import Event, EventKind


def told(*said: tuple[float, str, EventKind, int | None]) -> list[Event]:
    return [Event(run, "apt", what, number=number, at=100.0 + at) for at, run, what, number in said]


def shown(drawing: Drawing) -> Sequence[tuple[str, Kind, float, float, int | None]]:
    return [(one.run, one.kind, one.begin, one.end, one.token) for one in drawing.spans]


def test_a_run_waits_holds_and_publishes() -> None:
    drawing = drawing_of(
        told(
            (0, "flow", EventKind.STAGING, None),
            (1, "flow", EventKind.WAITING, None),
            (2, "flow", EventKind.WAITING, None),
            (3, "flow", EventKind.HOLDS, 7),
            (4, "flow", EventKind.PHASE, None),
            (6, "flow", EventKind.PUBLISHED, 2),
        )
    )
    assert shown(drawing) == [("flow", Kind.WAITS, 1, 3, None), ("flow", Kind.HOLDS, 3, 6, 7)]
    assert [(one.what, one.at, one.number) for one in drawing.marks] == [(EventKind.PUBLISHED, 6, 2)]
    assert drawing.length == 6


def test_a_killed_runs_lease_lasts_until_the_next_holder() -> None:
    drawing = drawing_of(
        told(
            (0, "job", EventKind.HOLDS, 1),
            (2, "job", EventKind.KILLED, None),
            (9, "shell", EventKind.HOLDS, 2),
            (10, "shell", EventKind.PUBLISHED, 1),
        )
    )
    assert shown(drawing) == [
        ("job", Kind.HOLDS, 0, 2, 1),
        ("job", Kind.IS_GONE, 2, 9, 1),
        ("shell", Kind.HOLDS, 9, 10, 2),
    ]


def test_a_task_that_is_tried_again_goes_on_under_the_same_lease() -> None:
    drawing = drawing_of(
        told(
            (0, "dag", EventKind.HOLDS, 1),
            (2, "dag", EventKind.KILLED, None),
            (5, "dag", EventKind.PHASE, None),
            (6, "dag", EventKind.PUBLISHED, 1),
        )
    )
    assert [(kind, begin, end) for _, kind, begin, end, _ in shown(drawing)] == [
        (Kind.HOLDS, 0, 2),
        (Kind.IS_GONE, 2, 5),
        (Kind.HOLDS, 5, 6),
    ]


def test_a_paused_run_holds_until_superseded_and_is_then_rejected() -> None:
    drawing = drawing_of(
        told(
            (0, "flow", EventKind.HOLDS, 1),
            (1, "flow", EventKind.PAUSED, None),
            (8, "shell", EventKind.HOLDS, 2),
            (9, "shell", EventKind.PUBLISHED, 1),
            (10, "flow", EventKind.RESUMED, None),
            (11, "flow", EventKind.REFUSED, None),
            (12, "flow", EventKind.PHASE, None),
        )
    )
    assert [one for one in shown(drawing) if one[0] == "flow"] == [
        ("flow", Kind.HOLDS, 0, 1, 1),
        ("flow", Kind.STANDS_STILL, 1, 8, 1),
        ("flow", Kind.IS_OVERTAKEN, 8, 10, 1),
    ]
    assert [one.what for one in drawing.marks] == [EventKind.PUBLISHED, EventKind.RESUMED, EventKind.REFUSED]


def test_a_paused_run_that_nobody_overtook_holds_on() -> None:
    events = told(
        (0, "flow", EventKind.HOLDS, 1), (1, "flow", EventKind.PAUSED, None), (3, "flow", EventKind.RESUMED, None)
    )
    assert [
        (kind, end) for _, kind, _, end, _ in shown(drawing_of([*events, *told((5, "flow", EventKind.PUBLISHED, 1))]))
    ] == [
        (Kind.HOLDS, 1),
        (Kind.STANDS_STILL, 3),
        (Kind.HOLDS, 5),
    ]


def test_what_has_not_ended_goes_on_to_the_edge() -> None:
    assert shown(
        drawing_of(
            told(
                (0, "flow", EventKind.HOLDS, 1), (4, "job", EventKind.WAITING, None), (6, "job", EventKind.FAILED, None)
            )
        )
    ) == [
        ("flow", Kind.HOLDS, 0, 6, 1),
        ("job", Kind.WAITS, 4, 6, None),
    ]


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        drawing_of([])


def test_the_same_course_is_the_same_drawing_with_words_in_it(tmp_path: Path) -> None:
    course = Course(
        events=told(
            (0, "flow", EventKind.WAITING, None),
            (1, "flow", EventKind.HOLDS, 7),
            (2, "flow", EventKind.KILLED, None),
            (4, "shell", EventKind.HOLDS, 8),
            (5, "shell", EventKind.PUBLISHED, 3),
        )
    )
    draw(course, tmp_path / "one.svg", "A title")
    draw(course, tmp_path / "other.svg", "A title")
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "other.svg").read_text()
    for words in ("A title", "the lock apt", "flow", "shell", "token 7", "token 8", "version 3", "killed"):
        assert words in text


def test_tokens_are_told_apart_and_seen_to_grow() -> None:
    assert shortened([7, 9, 10]) == {7: "7", 9: "9", 10: "10"}
    assert shortened([1795415613315, 1795415613317]) == {1795415613315: "…5", 1795415613317: "…7"}
    assert shortened([1795415613315, 1795415702591]) == {1795415613315: "…613315", 1795415702591: "…702591"}
    assert shortened([1795415613315]) == {1795415613315: "1795415613315"}
    assert shortened([999, 1795415613315]) == {999: "999", 1795415613315: "1795415613315"}
