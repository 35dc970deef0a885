"""Follows the flow runs of a Prefect: their output in their worker's log, and their states in Prefect's API.

Independent of what follows from a line or a state.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from examples.publishing.demo.tail import Tail
from examples.publishing.events import Event

LINE = re.compile(r"\| (?:Flow|Task) run '(?P<run>[^']+)' - (?P<text>.*)$")
OF_THE_LOCK = re.compile(r"waiting for '|acquired .* s$|the lease of .* is lost")
"""The owner that a run waits for, the end of the wait, and a lost lease."""

BUSY_WITHIN = 60.0
ENDED = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a run: either an event of the pipeline, or a text about the lock."""

    run: str
    event: Event | None
    text: str


class WorkerLog:
    """The output of a process worker and its flow runs; each line is returned once."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)

    def news(self) -> Iterator[Said]:
        """Return the lines since the last call."""
        for line in self._tail.news():
            found = LINE.search(line)
            if found is None:
                continue
            try:
                yield Said(found["run"], Event.from_line(found["text"]), "")
            except ValueError:
                if OF_THE_LOCK.match(found["text"]):
                    yield Said(found["run"], None, found["text"])


@dataclass(frozen=True, slots=True)
class FlowRun:
    """A flow run in Prefect's API. deployment: its id, "" for a child; pid: its process, if known."""

    id: str
    name: str
    state: str
    state_type: str
    message: str
    deployment: str
    pid: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Parse the API's response."""
        state, pid = row["state"] or {}, row["infrastructure_pid"]
        return cls(
            row["id"],
            row["name"],
            state.get("name", ""),
            state.get("type", ""),
            state.get("message") or "",
            row["deployment_id"] or "",
            int(pid) if pid else None,
        )

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended, as far as Prefect knows."""
        return self.state_type in ENDED


class Api:
    """A client of the part of Prefect's REST API that the demo uses."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=30.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def start(self, deployment: str, name: str, parameters: Mapping[str, Any]) -> FlowRun:
        """Start a run of a deployment ("flow/name")."""
        found = self._asked("GET", f"/deployments/name/{deployment}")
        row = self._asked(
            "POST", f"/deployments/{found['id']}/create_flow_run", {"name": name, "parameters": parameters}
        )
        return FlowRun.of(row)

    def runs(self) -> dict[str, FlowRun]:
        """Return all flow runs by name."""
        rows = self._asked("POST", "/flow_runs/filter", {"sort": "START_TIME_ASC"})
        return {one.name: one for one in map(FlowRun.of, rows)}

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        ends_at = time.monotonic() + BUSY_WITHIN
        while True:
            answer = self._client.request(method, path, json=body)
            # its database is busy: nothing was done
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > ends_at:
                return answer.raise_for_status().json()
            time.sleep(0.5)
