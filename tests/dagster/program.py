"""How a run is executed in a program of its own, which a test may kill; as a module it is that program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from tests.dagster.taking import LIMIT, Place, until
from tests.servers.base import dies_with_us

ROOT = Path(__file__).parents[2]


class Program:
    """One run of a job of `leased_jobs`, in a process of its own: the run worker."""

    def __init__(self, place: Place, home: Path, name: str, op: str, where: str, settings: str = "") -> None:
        self.name = name
        self._home = home
        self.place = place
        with (home / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*dies_with_us(), sys.executable, "-m", "tests.dagster.program", name, op, where, settings],
                cwd=ROOT,
                env={**os.environ, **place.environment, "DAGSTER_HOME": str(home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self, limit: float = LIMIT) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(limit)

    def log(self) -> str:
        """Return what it said."""
        return (self._home / f"{self.name}.log").read_text()

    def run(self, instance: dg.DagsterInstance) -> dg.DagsterRun:
        """Return its run, once there is one."""
        found: list[dg.DagsterRun] = []

        def look() -> bool:
            found[:] = instance.get_runs(filters=dg.RunsFilter(tags={"name": self.name}))
            return bool(found)

        until(look, "the run is there")
        return found[0]

    def terminate(self, instance: dg.DagsterInstance) -> None:
        """Do as the webserver does."""
        instance.report_run_canceling(self.run(instance))
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def program(*given: Any) -> Iterator[Program]:
    """Start one, and leave nothing of it behind."""
    one = Program(*given)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        for pid in one.place.sleepers():
            os.kill(pid, signal.SIGKILL)


def main(name: str, op: str, where: str, settings: str) -> int:
    """Run the job."""
    from dagster._core.definitions.reconstruct import build_reconstructable_job

    job = build_reconstructable_job(
        "tests.dagster.leased_jobs",
        "job_named",
        reconstructable_args=(op, where, settings),
        reconstructor_working_directory=str(ROOT),
    )
    with dg.DagsterInstance.get() as instance:
        result = dg.execute_job(job, instance=instance, tags={"name": name})
    return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
