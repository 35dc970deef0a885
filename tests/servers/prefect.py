"""How a test works with a real Prefect: a server, process workers, and programs that run flows against it.

Must not know locks, and imports no Prefect: that of the environment that this runs in is started (`make prefect`), or
that of another, whose Python is named. Nothing is reached but loopback, telemetry is off, and everything lies in a
folder of the test.
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
    """Return the settings of every process of these tests; url None: each program starts a server of its own."""
    ours = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONPATH": str(ROOT),
        # the pages are served from a copy that would be made at every start
        "PREFECT_UI_ENABLED": "false",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        # a run that nobody reports of is looked for soon
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
    }
    return ours | ({"PREFECT_API_URL": url} if url else {})


READY_WITHIN: Final = 400.0
"""Seconds: it makes its database first, and imports much; 20 on a quiet machine."""


class PrefectServer(Server):
    """One server on SQLite, with its services. `settings` stand in its environment besides ours.

    python: the interpreter of the environment that it is installed in; by default this one.
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
            # as its own command does, which refuses a port for a minute after its last server was killed
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
    """One process worker of a pool, with the flow runs that it starts in its process group. python: as the server's."""

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
    """Start a program of this environment's Python that runs flows: `-m`, `-c` or a file; its output is one pipe.

    It ends with the block, whatever the test finds there.
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
