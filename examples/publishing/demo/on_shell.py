"""The fourth publisher of the demo: a shell script under `lockstead run`, without an orchestrator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from examples.publishing.demo.acts import Finding
from examples.publishing.demo.environments import ROOT
from examples.publishing.demo.orchestrated import enter, repositories
from examples.publishing.demo.party import WAITING, Scene, note_wait
from examples.publishing.demo.tail import Tail
from examples.publishing.events import Event
from tests.servers.base import dies_with_us

SCRIPT = Path(__file__).parents[1] / "publish.sh"
ENDS_WITHIN = 20.0
PREFIX = "lockstead: "


class ShellParty:
    """A run of the script, which publishes to one repository after the other."""

    name = "shell"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._process: subprocess.Popen[bytes] | None = None
        self._awaited: dict[str, str] = {}
        self._said = Tail(scene.home / "events")
        self._told = Tail(scene.home / "log")

    @property
    def python(self) -> Path:
        """Return the interpreter of the checkout."""
        return Path(sys.executable)

    @property
    def title(self) -> str:
        """Return the path of the script."""
        return f"{SCRIPT.relative_to(ROOT)}, below `lockstead run`"

    @property
    def awaited(self) -> str:
        """Return what `lockstead run` printed when it waited."""
        return self._awaited.get(self.name, "")

    def starting(self) -> Generator[None, None, None]:
        """Do nothing: there is nothing to start."""
        yield

    def stop(self) -> None:
        """End the script and everything that it started."""
        if self._process is not None:
            # `lockstead run` stops its command, and releases the lock
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(ENDS_WITHIN)

    def begin(self) -> None:
        """Start the script."""
        scene, theatre = self._scene, self._scene.theatre
        environment = {
            "PATH": os.pathsep.join((str(self.python.parent), os.environ.get("PATH", os.defpath))),
            "PYTHONPATH": str(ROOT),
            "PYTHON": str(self.python),
            "PUBLISHING_REPO": repositories(theatre),
            "PUBLISHING_LOCKS": theatre.lock_url,
            "PUBLISHING_KEY": str(theatre.folder / "key.asc"),
            "PUBLISHING_TTL": f"{theatre.ttl:g}",
            "PUBLISHING_PACE": f"{scene.job.pace.every:g}",
            "PUBLISHING_JSON": "1",
        }
        with (scene.home / "events").open("wb") as said, (scene.home / "log").open("wb") as told:
            self._process = subprocess.Popen(
                [*dies_with_us(), str(SCRIPT), *map(str, scene.job.files)],
                env={**os.environ, **environment, **scene.settings},
                cwd=scene.home,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=told,
                start_new_session=True,
            )

    def look(self) -> None:
        """Read new lines of its output."""
        for line in self._told.news():
            said = line.removeprefix(PREFIX)
            if said.startswith(WAITING):
                self._scene.theatre.board.note(f"{self.name}: {said}", "dim")
                note_wait(self._awaited, self.name, said)
        for line in self._said.news():
            enter(
                self._scene.theatre,
                self._scene.ledger,
                self._scene.course,
                self._scene.job,
                replace(Event.from_line(line), run=self.name),
            )

    def is_over(self) -> bool:
        """Return whether the script has ended."""
        return self._process is not None and self._process.poll() is not None

    def kill(self, repository: str) -> str:
        """Raise an error: no plan kills the script."""
        raise NotImplementedError(f"nobody kills the script, at {repository}")

    def pause(self, repository: str) -> str:
        """Raise an error: no plan pauses the script."""
        raise NotImplementedError(f"nobody pauses the script, at {repository}")

    def resume(self) -> None:
        """Do nothing: it was not paused."""

    def mend(self) -> str:
        """Do nothing: it was not paused."""
        return ""

    def state(self) -> object:
        """Return its exit status, None while it runs, and the end of its output."""
        log = self._scene.home / "log"
        said = log.read_text(errors="replace")[-1000:] if log.exists() else ""
        return (None if self._process is None else self._process.poll(), said)

    def findings(self) -> list[Finding]:
        """Judge its exit status."""
        status = None if self._process is None else self._process.poll()
        return [Finding(status == 0, f"the script ended with exit status {status}")]
