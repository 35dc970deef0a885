"""Follows the logs of an Airflow's tasks: the events of the pipeline, and the lines of the lock's own tasks.

Independent of what follows from a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.publishing.demo.tail import Tail
from examples.publishing.events import Event

OF_THE_LOCK = re.compile(r"waiting for |acquired .* s$|lease lost: ")
"""The owner that a task waits for, the end of the wait, and the failure of a task with a lost lease."""


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a task: either an event of the pipeline, or a text about the lock."""

    run: str
    task: str
    attempt: int
    event: Event | None
    text: str


class TaskLogs:
    """The logs below a folder (`logs` in AIRFLOW_HOME); each line is returned once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[Path, Tail] = {}

    def news(self) -> list[Said]:
        """Return the lines since the last call, events in the order in which they happened."""
        said = [
            one for path in self._folder.glob("dag_id=*/run_id=*/task_id=*/attempt=*.log*") for one in self._of(path)
        ]
        return sorted(said, key=lambda one: one.event.at if one.event else 0.0)

    def _of(self, path: Path) -> Iterator[Said]:
        run, task = (path.parts[at].partition("=")[2] for at in (-3, -2))
        attempt = int(path.name.partition("=")[2].split(".")[0])
        for line in self._tails.setdefault(path, Tail(path)).news():
            try:
                text = _text(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            try:
                yield Said(run, task, attempt, Event.from_line(text), "")
            except ValueError:
                if OF_THE_LOCK.match(text):
                    yield Said(run, task, attempt, None, text)


def _text(line: Any) -> str:
    """Return the text of a line of a log; for a task's failure, the message of its error."""
    failures = line.get("error_detail") or ()
    return str(failures[0]["exc_value"] if failures else line["event"])
