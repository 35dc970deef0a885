"""A Dagster started by `dagster dev`: webserver, daemon and code server, and the runs that they launch.

All its processes are found by its home in their environment, and are stopped with it. Independent of what the runs do.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

READY_WITHIN = 180.0
ENDS_WITHIN = 20.0
ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
WORKER = re.compile(r"Started process for run \(pid: (\d+)\)")

INSTANCE = """\
telemetry: {enabled: false}
nux: {enabled: false}
# a run whose worker died is launched anew, from where it failed; an op that failed is left to its own policy
run_retries: {enabled: true, max_retries: 2, retry_on_asset_or_op_failure: false}
"""

DEFINED = "{repositoriesOrError {... on RepositoryConnection {nodes {name location {name} jobs {name}}}}}"
LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {__typename ... on LaunchRunSuccess {run {runId}} ... on Error {message}}
}"""
RUNS = "{runsOrError {... on Runs {results {runId jobName status parentRunId}}}}"
AGAIN = """
mutation ($params: ReexecutionParams!) {
  launchRunReexecution(reexecutionParams: $params) {
    __typename ... on LaunchRunSuccess {run {runId}} ... on Error {message}
  }
}"""
EVENTS = """
query ($run: ID!, $after: String) {
  logsForRun(runId: $run, afterCursor: $after) {
    ... on EventConnection {cursor hasMore events {
      ... on MessageEvent {stepKey message}
      ... on DisplayableEvent {metadataEntries {label ... on TextMetadataEntry {text}}}
    }}
  }
}"""
MATERIALIZED = """
query ($key: AssetKeyInput!) {
  assetOrError(assetKey: $key) {
    ... on Asset {assetMaterializations {runId metadataEntries {label ... on IntMetadataEntry {intRepr}
      ... on TextMetadataEntry {text}}}}
  }
}"""


@dataclass(frozen=True, slots=True)
class DagsterRun:
    """A run in Dagster's API. parent: the id of the run that it repeats, "" for a first one."""

    id: str
    job: str
    status: str
    parent: str

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended, as far as Dagster knows."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class Told:
    """A line of a run's event log. step: "" for the run itself; pid: the process that it names, "" for none."""

    step: str
    message: str
    pid: str


class DagsterDev:
    """A Dagster that serves one module. `with` starts it, waits until it serves, and stops it with all its runs.

    python: the interpreter of the environment in which it is installed.
    """

    def __init__(self, home: Path, module: str, environment: Mapping[str, str], python: Path) -> None:
        self.home = home
        self._python = python
        self.port = free_port()
        self._module = module
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0, trust_env=False)
        self._repository = {"repositoryName": "", "repositoryLocationName": ""}
        self._read: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        """Start it."""
        try:
            for _ in self.starting():
                time.sleep(0.2)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def starting(self) -> Generator[None, None, None]:
        """Start it, and yield until it serves; closing the generator stops it.

        RuntimeError if it does not come up.
        """
        self._launch()
        ends_at = time.monotonic() + READY_WITHIN
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > ends_at:
                said = (self.home / "log").read_text("utf-8", errors="replace")[-3000:]
                raise RuntimeError(f"Dagster did not come up\n{said}")
            yield

    def launch(self, job: str, run_config: Mapping[str, Any]) -> str:
        """Launch a run of a job; its id."""
        params = {"selector": {**self._repository, "jobName": job}, "runConfigData": run_config}
        answer = self._asked(LAUNCH, params=params)["launchRun"]
        if "run" not in answer:
            raise RuntimeError(f"Dagster did not launch {job}: {answer.get('message', answer['__typename'])}")
        return str(answer["run"]["runId"])

    def execute_again(self, run: str) -> str:
        """Re-execute a run from failure, as the button does; return the id of the new run."""
        answer = self._asked(AGAIN, params={"parentRunId": run, "strategy": "FROM_FAILURE"})["launchRunReexecution"]
        if "run" not in answer:
            raise RuntimeError(f"Dagster did not execute {run} again: {answer.get('message', answer['__typename'])}")
        return str(answer["run"]["runId"])

    def runs(self) -> dict[str, DagsterRun]:
        """Return all runs by their ids."""
        rows = self._asked(RUNS)["runsOrError"]["results"]
        return {
            row["runId"]: DagsterRun(row["runId"], row["jobName"], row["status"], row["parentRunId"] or "")
            for row in rows
        }

    def news(self, run: str) -> Iterator[Told]:
        """Return the new lines of a run's event log since the last call."""
        while True:
            page = self._asked(EVENTS, run=run, after=self._read.get(run))["logsForRun"]
            self._read[run] = page["cursor"]
            for event in page["events"]:
                said = {one["label"]: one.get("text") or "" for one in event.get("metadataEntries", ())}
                yield Told(event.get("stepKey") or "", event.get("message") or "", said.get("pid", ""))
            if not page["hasMore"]:
                return

    def metadata(self, asset: str) -> list[tuple[str, dict[str, str]]]:
        """Return the run and the metadata of every materialization of an asset, newest first."""
        rows = self._asked(MATERIALIZED, key={"path": [asset]})["assetOrError"]["assetMaterializations"]
        return [
            (
                row["runId"],
                {one["label"]: str(one.get("intRepr") or one.get("text") or "") for one in row["metadataEntries"]},
            )
            for row in rows
        ]

    def stop(self) -> None:
        """Stop it with SIGINT, and kill what is left after a while. Bounded; idempotent."""
        self._client.close()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS_WITHIN)
        ends_at = time.monotonic() + ENDS_WITHIN
        # A run worker may start another process meanwhile: repeat until there is none.
        while (found := self._ours()) and time.monotonic() < ends_at:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        if self._process is not None:
            self._process.wait(ENDS_WITHIN)

    def _launch(self) -> None:
        (self.home / "dagster.yaml").write_text(INSTANCE)
        words = ["-m", "dagster", "dev", "-m", self._module, "-h", "127.0.0.1", "-p", str(self.port)]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*dies_with_us(), str(self._python), *words],
                env={
                    **os.environ,
                    "DAGSTER_HOME": str(self.home),
                    "DAGSTER_DISABLE_TELEMETRY": "1",
                    **self._environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the demo alone, which then stops this in order.
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        try:
            found = self._asked(DEFINED)["repositoriesOrError"].get("nodes", [])
        except (httpx.HTTPError, RuntimeError):
            return False
        for one in found:
            self._repository = {"repositoryName": one["name"], "repositoryLocationName": one["location"]["name"]}
        return bool(found)

    def _asked(self, query: str, **variables: Any) -> Any:
        answer = self._client.post("/graphql", json={"query": query, "variables": variables})
        said = answer.raise_for_status().json()
        if said.get("errors"):
            raise RuntimeError(f"Dagster answered: {said['errors'][0].get('message')}")
        return said["data"]

    def _ours(self) -> list[int]:
        """Return the processes that have our home in their environment."""
        mark = f"DAGSTER_HOME={self.home}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found


def dies_with_us() -> list[str]:
    """Return the prefix of a command that ends it together with this process, even after SIGKILL; empty if not
    available.

    The signal comes when the *thread* that started it ends, so only commands of the main thread have the prefix.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return ["setpriv", "--pdeathsig", "KILL"] if is_main and shutil.which("setpriv") else []


def free_port() -> int:
    """Return an unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
