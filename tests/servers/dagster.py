"""A real Dagster for tests: a code server, a webserver and a daemon, controlled by GraphQL.

Must not know locks. It runs in the environment of one Dagster (`make dagster`). Only loopback is used, telemetry is
off, and everything is in a folder of the test. The code server starts the runs, on its own machine, as with Dagster's
default launcher; everything that they start ends with the test.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import httpx

from tests.servers import dagster_queries as queries
from tests.servers.base import until
from tests.servers.dagster_parts import AT_ONCE, INSTANCE, READY_WITHIN, Part
from tests.servers.marked import MARK, Watcher, pids_of

ROOT: Final = Path(__file__).parents[2]

PATIENCE: Final = 180.0
"""Seconds until a wait fails: long enough for a busy machine."""

ENDED: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run. at: seconds since the epoch; said: the metadata of the event or failure; error: as JSON."""

    kind: str
    message: str
    at: float
    step: str | None
    said: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class Dagster:
    """One instance, with the servers for the definitions of one module. settings: more lines for dagster.yaml.

    environment: additional environment variables of all its processes, and so of the runs.
    """

    def __init__(
        self,
        directory: Path,
        module: str,
        *,
        coordinator: str = AT_ONCE,
        settings: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home = directory / "home"
        self.home.mkdir(parents=True)
        instance = INSTANCE.replace("HOME", str(self.home)).replace("COORDINATOR", coordinator)
        (self.home / "dagster.yaml").write_text(instance + settings)
        self._mark = uuid.uuid4().hex
        self.environment = {
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
            MARK: self._mark,
        }
        self.module = module
        where = ["-m", module, "-d", str(ROOT), "--location-name", "tests"]
        code = ["dagster", "api", "grpc", "-h", "127.0.0.1", "-p", "PORT", *where]
        workspace = directory / "workspace.yaml"
        server = ["dagster_webserver", "-h", "127.0.0.1", "-p", "PORT", "-w", str(workspace)]
        self.code = Part(directory / "code", code, self.environment)
        self.webserver = Part(directory / "webserver", server, self.environment)
        self.daemon = Part(directory / "daemon", ["dagster._daemon", "run", "-w", str(workspace)], self.environment)
        self.parts = (self.code, self.webserver, self.daemon)
        entry = f"{{host: 127.0.0.1, port: {self.code.port}, location_name: tests}}"
        workspace.write_text(f"load_from: [{{grpc_server: {entry}}}]\n")
        self._watcher: Watcher | None = None
        self._http = httpx.Client(base_url=f"http://{self.webserver.address}", timeout=60.0, trust_env=False)

    # --- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it and wait until it serves its definitions."""
        self._watcher = Watcher(self._mark)
        try:
            for part in (self.code, self.webserver):
                part.start()
            # started last: daemon and webserver would create the same database
            self.until(self._is_loaded, "the definitions were not loaded", READY_WITHIN)
            self.daemon.launch()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill it and everything that it started. No part needs a clean shutdown, so none is waited for."""
        self._http.close()
        for part in self.parts:
            part.kill()
        if self._watcher is not None:
            self._watcher.sweep()

    def restart_daemon(self) -> None:
        """Restart the daemon: it checks for backfills when it starts, and after that only every 30 s."""
        self.daemon.kill()
        self.daemon.launch()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def pids(self) -> list[int]:
        """Return the ids of all its living processes, including orphans."""
        return pids_of(self._mark)

    def until(self, condition: Callable[[], Any], otherwise: str | Callable[[], str], seconds: float = PATIENCE) -> Any:
        """Wait until a condition is true and return its result; AssertionError with the ends of the logs."""

        def failure() -> str:
            return f"{otherwise() if callable(otherwise) else otherwise}\n{self.said()}"

        return until(condition, seconds, failure)

    def said(self) -> str:
        """Return the ends of the logs of all parts."""
        return "\n".join(f"--- {part.directory.name}\n{part.log()}" for part in self.parts if part.process)

    def _is_loaded(self) -> bool:
        with suppress(httpx.HTTPError):
            found = self.ask(queries.LOADED)["workspaceOrError"]["locationEntries"][0]
            error = (found["locationOrLoadError"] or {}).get("message")
            if error is not None:
                raise AssertionError(error)
            return bool(found["loadStatus"] == "LOADED")
        return False

    # --- GraphQL ------------------------------------------------------------------------------------------------

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Send a query to the webserver and return its data; AssertionError for an error."""
        answer = self._http.post("/graphql", json={"query": query, "variables": variables})
        said = answer.json()
        assert "errors" not in said, json.dumps(said["errors"])[:4000]
        found: dict[str, Any] = said["data"]
        return found

    def _did(self, query: str, name: str, **variables: Any) -> dict[str, Any]:
        """Run a mutation or query and return its result; AssertionError if that is an error."""
        found: dict[str, Any] = self.ask(query, **variables)[name]
        assert not found["__typename"].endswith(("Error", "Failure", "Invalid", "NotFound")), found
        return found

    @property
    def _repository(self) -> dict[str, str]:
        return {"repositoryName": "__repository__", "repositoryLocationName": "tests"}

    def launch(
        self,
        job: str = "__ASSET_JOB",
        *,
        assets: Sequence[str] = (),
        checks: Sequence[tuple[str, str]] = (),
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        partition: str | None = None,
    ) -> str:
        """Start a run of a job, of assets with their checks, or only of some (asset, check), and return its id."""
        selector: dict[str, Any] = {**self._repository, "jobName": job}
        if assets or checks:
            selector["assetSelection"] = [{"path": [name]} for name in assets]
        if checks:
            selector["assetCheckSelection"] = [{"assetKey": {"path": [one]}, "name": name} for one, name in checks]
        named = {**(tags or {}), **({"dagster/partition": partition} if partition else {})}
        params = {
            "selector": selector,
            "runConfigData": dict(config or {}),
            "executionMetadata": {"tags": _tags(named)},
        }
        run: str = self._did(queries.LAUNCH, "launchRun", params=params)["run"]["runId"]
        return run

    def execute_again(self, run: str) -> str:
        """Re-execute a run from its failure, as the button does; return the id of the new run."""
        params = {"parentRunId": run, "strategy": "FROM_FAILURE"}
        found = self._did(queries.AGAIN, "launchRunReexecution", params=params)
        again: str = found["run"]["runId"]
        return again

    def terminate(self, run: str, policy: str = "SAFE_TERMINATE") -> None:
        """Terminate a run, as the button does."""
        self._did(queries.TERMINATE, "terminateRun", run=run, policy=policy)

    def backfill(self, asset: str, partitions: Sequence[str]) -> str:
        """Launch a run for each of some partitions of an asset; return the id of the backfill."""
        params = {"assetSelection": [{"path": [asset]}], "partitionNames": list(partitions)}
        found = self._did(queries.BACKFILL, "launchPartitionBackfill", params=params)
        backfill: str = found["backfillId"]
        return backfill

    def runs(self, **tags: str) -> dict[str, str]:
        """Return the status of each run that has all these tags; `__` in a name stands for `/`."""
        named = {name.replace("__", "/"): value for name, value in tags.items()}
        found = self.ask(queries.RUNS, filter={"tags": _tags(named)})["runsOrError"]["results"]
        return {one["runId"]: one["status"] for one in found}

    def status(self, run: str) -> str:
        """Return a run's status."""
        found: str = self.ask(queries.STATUS, run=run)["runOrError"]["status"]
        return found

    def finished(self, run: str, seconds: float = PATIENCE) -> str:
        """Wait for the end of a run and return its status."""
        ended: str = self.until(
            lambda: (found := self.status(run)) in ENDED and found,
            lambda: f"{run} did not end: {self.story(run)}",
            seconds,
        )
        return ended

    def events(self, run: str, kind: str | None = None, step: str | None = None) -> list[Event]:
        """Return the events of a run so far: all, or those of one type (`STEP_FAILURE`) or step."""
        found: list[Event] = []
        cursor = None
        while True:
            page = self._did(queries.EVENTS, "logsForRun", run=run, cursor=cursor)
            found += [_event(one) for one in page["events"]]
            cursor = page["cursor"]
            if not page["hasMore"]:
                break
        return [one for one in found if (kind or one.kind) == one.kind and (step or one.step) == one.step]

    def tells(self, run: str, words: str, step: str | None = None) -> Event:
        """Wait for an event of a run whose message contains this text, and return it."""
        event: Event = self.until(
            lambda: next((one for one in self.events(run, step=step) if words in one.message), None),
            f"{run} did not tell {words!r}",
        )
        return event

    def story(self, run: str) -> str:
        """Return all events of a run as text, for the message of a failed test."""
        return "\n".join(f"{one.kind} {one.step or ''} {one.message} {one.error}"[:600] for one in self.events(run))

    def run_worker(self, run: str) -> int:
        """Wait until a run has a process and return its id."""
        return int(self.tells(run, "Started process for run").said["pid"])

    def step_worker(self, run: str, step: str) -> int:
        """Wait until a step of a run has its own process and return its id."""
        return int(self.tells(run, "in subprocess", step).said["pid"])

    # --- sensors ------------------------------------------------------------------------------------------------

    def turn_on(self, sensor: str) -> None:
        """Turn a sensor on."""
        self._did(queries.SENSOR_ON, "startSensor", sensor={**self._repository, "sensorName": sensor})

    def turn_off(self, sensor: str) -> None:
        """Reset a sensor to its definition's default, which must be off, and wait for the evaluation in progress."""
        selector = {**self._repository, "sensorName": sensor}
        found = self._did(queries.SENSOR_OFF, "resetSensor", sensor=selector)
        assert found["sensorState"]["status"] == "STOPPED", found
        self.until(lambda: len(self.ticks(sensor)) == len(self._ticks(sensor)), f"{sensor} does not end")

    def ticks(self, sensor: str) -> list[dict[str, Any]]:
        """Return a sensor's finished evaluations, newest first: `status`, `skipReason`, `runIds`, `error`."""
        return [tick for tick in self._ticks(sensor) if tick["status"] != "STARTED"]

    def _ticks(self, sensor: str) -> list[dict[str, Any]]:
        found = self._did(queries.TICKS, "sensorOrError", sensor={**self._repository, "sensorName": sensor})
        ticks: list[dict[str, Any]] = found["sensorState"]["ticks"]
        return ticks


def _tags(named: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in named.items()]


def _event(told: Mapping[str, Any]) -> Event:
    entries = [*told.get("metadataEntries", ()), *(told.get("failureMetadata") or {}).get("metadataEntries", ())]
    if check := told.get("evaluation"):
        entries += [{"label": name, "value": check[name]} for name in ("checkName", "success", "description")]
    said = {one["label"]: next(iter(one[name] for name in one if name != "label"), None) for one in entries}
    kind = told.get("eventType") or told["__typename"]
    error = json.dumps(told["error"]) if told.get("error") else ""
    return Event(kind, told["message"], float(told["timestamp"]) / 1000, told["stepKey"], said, error)
