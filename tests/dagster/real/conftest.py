"""What the tests on a live Dagster share: one instance for each process of pytest, and a folder for notes."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from lockstead import Lock
from tests.servers.base import until
from tests.servers.dagster import PATIENCE, Dagster
from tests.servers.marked import carriers
from tests.servers.redis import RedisServer

HERE = Path(__file__).parent

NAME: Final = "test/name"
BODY: Final = "LOCKSTEAD_TEST_BODY"


@dataclass(frozen=True, slots=True)
class Live:
    """A running Dagster, the store that its runs lock in, and the folder in which their bodies note what they do."""

    dagster: Dagster
    store: str
    notes: Path

    def launch(self, op: str, name: str, *, in_process: bool = False, **tags: str) -> str:
        """Start a run of one op under the lock of that name, in the run worker or in a process of its own; its id."""
        executor: dict[str, object] = {"in_process" if in_process else "multiprocess": {}}
        named = {NAME: name, **{f"test/{tag}": value for tag, value in tags.items()}}
        return self.dagster.launch(f"{op}_job", config={"execution": {"config": executor}}, tags=named)

    def launch_leased(self, op: str, name: str, where: str) -> str:
        """Start a run that holds one lease for its steps, `here` in the run worker or `apart`; its id."""
        return self.dagster.launch(f"{op}_leased_{where}_job", tags={NAME: name})

    def lock(self, key: str, **settings: Any) -> Lock:
        """Return a lock of the store."""
        return Lock(f"{self.store}#{key}", **settings)

    def noted(self, name: str, what: str = "", run: str = "") -> list[dict[str, Any]]:
        """Return what bodies noted under a name: all of it, or of one kind or one run."""
        path = self.notes / name
        text = path.read_text("utf-8") if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [one for one in lines if what in ("", one["what"]) and run in ("", one.get("run"))]

    def enters(self, name: str, run: str = "", times: int = 1) -> dict[str, Any]:
        """Wait until a body is in the section, and give what it noted."""
        entered: list[dict[str, Any]] = self.dagster.until(
            lambda: (found := self.noted(name, "enters", run))[times - 1 :] and found,
            lambda: f"nobody enters: {self.dagster.story(run) if run else self.noted(name)}",
        )
        return entered[times - 1]

    def processes(self, name: str) -> list[int]:
        """Return the living processes that bodies started under a name."""
        return carriers(f"{BODY}={name}")

    def spans(self, run: str, *kinds: str) -> list[int]:
        """Return how often a run told each of these."""
        told = [event.kind for event in self.dagster.events(run)]
        return [told.count(kind) for kind in kinds]

    def waits(self, run: str) -> None:
        """Wait until a run says that it waits for its lock."""
        self.dagster.tells(run, "waiting:")


class Guarded(RedisServer):
    """A Redis that wants a password."""

    def is_ready(self) -> bool:
        """Return whether it refuses who names none."""
        return self.says("PING").startswith(b"-NOAUTH")


def soon(condition: Callable[[], Any], otherwise: Callable[[], str]) -> None:
    """Wait for a condition of this machine, looking often: what comes next sees the very moment."""
    until(condition, PATIENCE, otherwise, pause=0.01, pause_max=0.01)


def see_all_freed(live: Live, runs: Mapping[str, str]) -> None:
    """Wait until the locks of some runs are free, and see that at that very moment nothing works under each."""
    locks = {name: live.lock(name) for name in runs}

    def are_free() -> bool:
        for name, lock in list(locks.items()):
            if lock.inspect() is None:
                assert live.processes(name) == []
                assert len(live.noted(name, "cleans up", runs[name])) == 1
                del locks[name]
        return not locks

    soon(are_free, lambda: "\n\n".join(live.dagster.story(runs[name]) for name in locks))


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return a running Dagster with the definitions of `locked_jobs`."""
    directory = tmp_path_factory.mktemp("dagster")
    notes = directory / "notes"
    notes.mkdir()
    store = f"sqlite:///{directory / 'locks.db'}"
    password = uuid.uuid4().hex
    redis = Guarded(directory / "redis", None, "--requirepass", password)
    told = {
        "LOCKSTEAD_TEST_STORE": store,
        "LOCKSTEAD_TEST_NOTES": str(notes),
        "LOCKSTEAD_TEST_REDIS": f"redis://{redis.address}/0",
        "LOCKSTEAD_TEST_PASSWORD": password,
        "LOCKSTEAD_TEST_WRONG": uuid.uuid4().hex,
    }
    with redis, Dagster(directory / "instance", "tests.dagster.locked_jobs", environment=told) as dagster:
        yield Live(dagster, store, notes)


@pytest.fixture
def name() -> str:
    """Return a name that no other test has: of a lock, and of a file of notes."""
    return f"lock-{os.getpid()}-{uuid.uuid4().hex[:8]}"
