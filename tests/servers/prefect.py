"""A real Prefect for tests: a server, process workers, and programs that run flows against it.

Must not know locks, and does not import Prefect: it starts the Prefect of this environment (`make prefect`), or that of
another, whose Python is given. Only loopback is used, telemetry is off, and everything is in a folder of the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import httpx

from tests.servers.base import Server, dies_with_us

ROOT = Path(__file__).parents[2]


def told(home: Path, url: str | None) -> dict[str, str]:
    """Return the settings of every process of these tests; url None: each program starts its own server."""
    ours = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONPATH": str(ROOT),
        # with the UI, every start would first copy its files
        "PREFECT_UI_ENABLED": "false",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        # late runs are detected soon
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
    }
    return ours | ({"PREFECT_API_URL": url} if url else {})


READY_WITHIN: Final = 400.0
"""Seconds until a start fails: it first creates its database, and imports much; 20 s on an idle machine."""


class PrefectServer(Server):
    """One server on SQLite, with its services. settings: additional environment variables.

    python: the interpreter of the environment in which it is installed; by default this one.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, python: Path | None = None) -> None:
        super().__init__(directory)
        self.url = f"http://{self.address}/api"
        self._python = python or Path(sys.executable)
        self._settings = dict(settings or {})

    def start(self) -> Self:
        self.launch()
        self.until(self.is_ready, "it did not come up", READY_WITHIN)
        return self

    def command(self) -> Sequence[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        if any(self._python.parents[1].glob("lib/python3*/site-packages/prefect-3.1.*.dist-info")):
            # what its own command runs, but that refuses a port for a minute after the last server on it was killed
            return [str(self._python), "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", *where]
        return [program(self._python), "server", "start", *where]

    def environment(self) -> Mapping[str, str]:
        return told(self.directory / "home", None) | self._settings

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


class Worker(Server):
    """One process worker of a pool, with its flow runs in its process group. python: as for `PrefectServer`."""

    def __init__(
        self,
        directory: Path,
        server: PrefectServer,
        pool: str,
        *,
        limit: int | None = None,
        settings: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        super().__init__(directory)
        self._server = server
        self._python = python or Path(sys.executable)
        self._settings = dict(settings or {})
        self._words = ["--pool", pool, *(["--limit", str(limit)] if limit else [])]

    def command(self) -> Sequence[str]:
        return [program(self._python), "worker", "start", "--type", "process", *self._words]

    def environment(self) -> Mapping[str, str]:
        return told(self.directory / "home", self._server.url) | {
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_WORKER_PREFETCH_SECONDS": "5",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            **self._settings,
        }

    def is_ready(self) -> bool:
        return "started!" in (self.directory / "log").read_text(errors="replace")


def program(python: Path) -> str:
    """Return the `prefect` command of an interpreter's environment."""
    return str(python.with_name("prefect"))


@contextmanager
def started(
    words: Sequence[str], home: Path, server: PrefectServer | None, settings: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start this environment's Python with a program that runs flows: `-m`, `-c` or a file; its output is one pipe.

    It is killed at the end of the block.
    """
    home.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [*dies_with_us(), sys.executable, *words],
        env={**os.environ, **told(home, server.url if server else None), **(settings or {})},
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
