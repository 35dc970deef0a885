"""The environment of `make bench-prefect`: a Prefect server, stores, and processes that run flows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.servers.base import dies_with_us
from tests.servers.postgres import USER, PostgresServer
from tests.servers.prefect import PrefectServer, told
from tests.servers.redis import RedisServer

AS_IT_COMES: Final = {"PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "60"}
"""What the tests hasten, as `prefect server start` has it."""

STARTED_WITHIN: Final = 600.0


class Process:
    """A process that runs flows; see tests/benchmarks/prefect_runs.py for what it can be told."""

    def __init__(self, directory: Path, url: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*dies_with_us(), sys.executable, "-m", "tests.benchmarks.prefect_runs"],
                env={**os.environ, **told(directory / "home", url)},
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._log = directory / "log"

    def order(self, what: str, **words: Any) -> None:
        """Have something done."""
        self.say(json.dumps({"do": what, **words}))

    def say(self, line: str) -> None:
        """Say one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self, word: str) -> Any:
        """Wait until it says this; what it says of it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and word in (said := json.loads(line)):
                return said[word]
        tail = self._log.read_text("utf-8", errors="replace")[-3000:]
        raise RuntimeError(f"a process ended with {self._process.wait()} before it said {word!r}\n{tail}")

    def kill(self) -> None:
        """End it at once (SIGKILL); idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Site:
    """A Prefect server, a Redis and a folder for SQLite, with the processes that run flows there."""

    def __init__(self, directory: Path, server: PrefectServer, redis: RedisServer, stack: ExitStack) -> None:
        self.server = server
        self.redis = redis
        self._directory = directory
        self._stack = stack
        self._number = 0

    def process(self) -> Process:
        """Start one more; it is not there before it says `started`."""
        self._number += 1
        process = Process(self._directory / f"process-{self._number}", self.server.url)
        self._stack.callback(process.kill)
        return process

    def place(self, kind: str, name: str) -> str:
        """Return an unused section: a new limit, or the URL of a lock."""
        if kind == "Redis":
            return f"redis://{self.redis.address}/0#{name}"
        if kind == "SQLite":
            return f"sqlite:///{self._directory}/locks.db#{name}"
        asked = httpx.post(
            f"{self.server.url}/v2/concurrency_limits/", json={"name": name, "limit": 1}, timeout=60, trust_env=False
        )
        asked.raise_for_status()
        return name

    def notes(self, kind: str, name: str) -> Path:
        """Name the file in which those who stay there note it."""
        return self._directory / f"{kind}-{name}.notes"

    def restart(self) -> None:
        """Kill the servers and start them on the data that they had."""
        self.server.kill()
        self.redis.kill()
        self.redis.start()
        _start(self.server)


@contextmanager
def site(database: str, directory: Path) -> Iterator[Site]:
    """Run all of it. The Redis writes each command to disk before it answers."""
    with ExitStack() as stack:
        settings: Mapping[str, str] = AS_IT_COMES
        if database == "PostgreSQL":
            postgres = PostgresServer()
            stack.callback(postgres.remove)
            where = f"postgresql+asyncpg://{USER}@{postgres.start().address}/postgres"
            settings = {**AS_IT_COMES, "PREFECT_API_DATABASE_CONNECTION_URL": where}
        durable = ("--appendonly", "yes", "--appendfsync", "always")
        redis = stack.enter_context(RedisServer(directory / "redis", None, *durable))
        server = PrefectServer(directory / "server", settings)
        stack.callback(server.stop)
        _start(server)
        yield Site(directory, server, redis, stack)


def _start(server: PrefectServer) -> None:
    """Start it, however busy the machine is."""
    server.launch()
    server.until(server.is_ready, "it did not come up", STARTED_WITHIN)
