"""What the demo of four shows fits 100 columns, and says as plain lines all that the tables say."""

from __future__ import annotations

import io

from rich.console import Console

from examples.publishing.demo.board import PlainBoard, Rows
from examples.publishing.demo.locks_board import Both, LocksBoard, bar, locks_board_for
from examples.publishing.demo.orchestrated import Course
from examples.publishing.events import Event, EventKind

TOKEN = 1795415613315
"""As long as those on Cloud Storage are."""

COURSE = (
    Event("prefect", "apt", EventKind.STAGING, at=1.0),
    Event("prefect", "apt", EventKind.WAITING, at=2.0),
    Event("prefect", "apt", EventKind.HOLDS, number=TOKEN, at=3.0),
    Event("prefect", "apt", EventKind.PHASE, "fence", at=4.0),
    Event("airflow", "apt", EventKind.WAITING, at=4.5),
    Event("dagster", "yum", EventKind.HOLDS, number=TOKEN + 7, at=5.0),
    Event("dagster", "yum", EventKind.PHASE, "metadata", at=6.0),
    Event("dagster", "yum", EventKind.KILLED, text="process 4711, the run worker of dagster", at=7.0),
    Event("prefect", "apt", EventKind.PHASE, "seal", at=8.0),
    Event("prefect", "apt", EventKind.PAUSED, text="process 4712, the flow run", at=9.0),
    Event("airflow", "apt", EventKind.HOLDS, number=TOKEN + 1, at=10.0),
    Event("shell", "apt", EventKind.WAITING, at=10.5),
    Event("prefect", "apt", EventKind.RESUMED, text="process 4712, the flow run", at=11.0),
    Event(
        "prefect", "apt", EventKind.REFUSED, text=f"the lease of 'prefect:a/b' on 'apt', token {TOKEN} is lost", at=12.0
    ),
    Event("airflow", "apt", EventKind.PUBLISHED, number=2, pruned=(1,), text="airflow", at=13.0),
)


def shown(upto: int = len(COURSE), height: int = 40) -> list[str]:
    """Return the content of a terminal of 100 columns after this many events."""
    console = Console(file=io.StringIO(), width=100, height=height, force_terminal=True, color_system=None, record=True)
    board, course = LocksBoard(console), Course()
    board.act("Act 1")
    for event in COURSE[:upto]:
        for one in course.add(event):
            board.event(one)
    for number in range(30):
        board.note(f"note {number}")
    console.print(board._draw())
    return console.export_text().splitlines()


def line(lines: list[str], *words: str) -> str:
    """Return the line of a table that begins with these words."""
    return next(one for one in lines if tuple(one.split()[: len(words)]) == words)


def test_nothing_is_wider_than_the_terminal_and_no_token_is_cut() -> None:
    for upto in range(len(COURSE) + 1):
        lines = shown(upto)
        assert max(map(len, lines)) <= 100
    assert str(TOKEN + 1) in "\n".join(lines)
    assert str(TOKEN + 7) in "\n".join(lines)


def test_it_fits_a_low_terminal_with_the_newest_notes() -> None:
    lines = shown(height=24)
    assert len(lines) <= 24
    assert "note 29" in lines[-1]


def test_each_lock_shows_its_holder_and_who_waits() -> None:
    apt = line(shown(5), "apt")
    assert apt.split() == ["apt", "prefect", str(TOKEN), "airflow"]
    # who is killed or paused holds on
    assert line(shown(10), "apt").split()[:2] == ["apt", "prefect"]
    assert line(shown(10), "yum").split()[:2] == ["yum", "dagster"]
    assert line(shown(12), "apt").split() == ["apt", "airflow", str(TOKEN + 1), "shell"]
    assert line(shown(), "apt").split() == ["apt", "free", "shell"]


def test_each_run_shows_for_whom_it_waits_and_then_for_whom_else() -> None:
    assert "waiting for prefect, " in line(shown(10), "airflow", "apt")
    assert "waiting for airflow, " in line(shown(12), "shell", "apt")


def test_each_run_shows_what_became_of_it() -> None:
    lines = shown()
    assert "killed: process 4711" in line(lines, "dagster", "yum")
    assert "refused: the lease of" in line(lines, "prefect", "apt")
    assert "version 2: airflow, cleared away 1" in line(lines, "airflow", "apt")


def test_the_progress_bar_is_full_when_published() -> None:
    rows = Rows()
    drawn = [bar(rows.take(event)).plain for event in COURSE if event.run == "prefect"]
    assert drawn[:4] == ["········"] * 3 + ["▶·······"]
    assert drawn[4:6] == ["■■■■■▶··"] * 2
    published = Event("prefect", "apt", EventKind.PUBLISHED, number=3)
    assert bar(rows.take(published)).plain == "■" * 8


def plain(course: Course, console: Console) -> str:
    board = PlainBoard(console)
    board.act("Act 1")
    for event in COURSE:
        for one in course.add(event):
            board.event(one)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_show_holders_waiters_and_events() -> None:
    said = plain(Course(), Console(file=io.StringIO(), width=100))
    for words in (
        f"prefect   apt  holds, token {TOKEN}",
        "airflow   apt  waiting for prefect",
        "dagster   yum  killed: process 4711, the run worker of dagster",
        "prefect   apt  paused: process 4712, the flow run",
        f"airflow   apt  holds, token {TOKEN + 1}",
        "shell     apt  waiting for airflow",
        "prefect   apt  resumed: process 4712, the flow run",
        "prefect   apt  refused: the lease of 'prefect:a/b' on 'apt'",
        "airflow   apt  version 2: airflow, cleared away 1",
    ):
        assert f"  {words}" in said, said


def test_a_record_has_the_same_as_plain_lines() -> None:
    console, record = Console(file=io.StringIO(), width=100), Console(file=io.StringIO(), width=100)
    board = locks_board_for(console, record)
    assert isinstance(board, Both)
    with board:
        board.act("Act 1")
        board.note("a note")
        board.event(COURSE[2])
    assert isinstance(console.file, io.StringIO)
    assert isinstance(record.file, io.StringIO)
    assert record.file.getvalue() == console.file.getvalue() != ""
