"""A real Airflow for tests: put DAG files, start runs, wait for states, mark, clear and kill tasks.

Must not know locks. Actions use Airflow's own REST API, so that marking and clearing do what they do for users; states
are read from its tables, which is cheap and the same in all versions. Its processes are in `airflow_parts`.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg

from tests.servers.airflow_parts import Part, Version, parts, settings
from tests.servers.base import READY_WITHIN, dies_with_us, free_port, until
from tests.servers.marked import MARK, Watcher, is_alive, kill, parent_of, pids_of
from tests.servers.postgres import USER, PostgresServer

PATIENCE = 300.0
"""Seconds until a wait fails: long enough for a busy machine."""

ENDED = frozenset({"success", "failed"})
JOBS = {"SchedulerJob", "TriggererJob"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one DAG."""

    dag_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task instance as it is in Airflow's table now. pid: the process of its body, while there is one."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    pid: int | None


class Airflow:
    """A scheduler with LocalExecutor, a triggerer, a DAG processor and an API server, with their own PostgreSQL.

    Version 2 has a web server instead of the last two. told: additional settings, as {"AIRFLOW__CORE__...": ...}.
    """

    def __init__(
        self, version: str, directory: Path, *, parallelism: int = 16, told: Mapping[str, str] | None = None
    ) -> None:
        self.version = Version(version)
        self.home = directory
        self.parallelism = parallelism
        self.port = free_port()
        self.postgres = PostgresServer(settings={"max_connections": "300", "shared_buffers": "64MB"})
        self._mark = uuid.uuid4().hex
        database = f"postgresql+psycopg2://{USER}@127.0.0.1:{self.postgres.port}/airflow"
        ours = settings(self.version, self.home, database, self.port, parallelism)
        self.told = {**ours, **(told or {}), MARK: self._mark}
        self.parts = parts(self.version, self.home / "parts", self.told, self.port)
        self._watcher: Watcher | None = None
        self._http: httpx.Client | None = None
        self._database: psycopg.Connection[Any] | None = None
        self._asking = threading.Lock()

    # --- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it and wait until every part reports that it runs."""
        try:
            for _ in self.starting():
                time.sleep(0.05)
        except BaseException:
            self.stop()
            raise
        return self

    def starting(self) -> Iterator[None]:
        """Start it, yielding while it has to wait. A caller that gives up must call `stop`."""
        for folder in ("dags", "plugins", "logs"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        (self.home / "webserver_config.py").write_text("AUTH_ROLE_PUBLIC = 'Admin'\nWTF_CSRF_ENABLED = False\n")
        self._watcher = Watcher(self._mark)
        self.postgres.start()
        self.postgres.tell("CREATE DATABASE airflow")
        yield from self._migrating()
        for part in self.parts.values():
            part.launch()
        ends_at = time.monotonic() + READY_WITHIN
        for part in self.parts.values():
            while not part.is_ready():
                if not part.is_running or time.monotonic() > ends_at:
                    raise AssertionError(f"{part.name} did not come up\n{part.log()}")
                yield
        ends_at = time.monotonic() + PATIENCE
        while not self.jobs() >= JOBS:
            if time.monotonic() > ends_at:
                raise AssertionError(f"scheduler and triggerer did not come up\n{self.said()}")
            yield

    def _migrating(self) -> Iterator[None]:
        with (self.home / "migrate.log").open("wb") as log:
            migrating = subprocess.Popen(
                [*dies_with_us(), *self.version.command("db", "migrate")],
                env={**os.environ, **self.told},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            ends_at = time.monotonic() + PATIENCE
            while migrating.poll() is None and time.monotonic() < ends_at:
                yield
        finally:
            migrating.kill()
            status = migrating.wait()
        assert status == 0, f"db migrate: {(self.home / 'migrate.log').read_text(errors='replace')[-4000:]}"

    def stop(self) -> None:
        """Kill it and everything that it started. No part needs a clean shutdown, so none is waited for."""
        if self._http is not None:
            self._http.close()
        if self._database is not None:
            self._database.close()
        for part in self.parts.values():
            part.kill()
        if self._watcher is not None:
            self._watcher.sweep()
        self.postgres.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def run(self, *words: str) -> str:
        """Run an `airflow` command and return its output."""
        return self.python_of(*self.version.command(*words)[1:])

    def python_of(self, *words: str) -> str:
        """Run this Airflow's Python (`-c`, a file, `-m`) with its environment variables, and return its output."""
        done = subprocess.run(
            [str(self.version.python), *words],
            env={**os.environ, **self.told},
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def part(self, name: str) -> Part:
        """Return one process: `scheduler`, `triggerer`, `dag-processor`, `api-server`; `webserver` in version 2."""
        return self.parts[name]

    def jobs(self) -> set[str]:
        """Return the types of the jobs whose state in the database is running."""
        return {row[0] for row in self.asked("SELECT DISTINCT job_type FROM job WHERE state = 'running'")}

    def pids(self) -> list[int]:
        """Return the ids of all its living processes, including orphans."""
        return pids_of(self._mark)

    def until(self, condition: Callable[[], Any], otherwise: str, seconds: float = PATIENCE) -> Any:
        """Wait until a condition is true and return its result; AssertionError with the ends of the logs."""
        # many tests wait at once, and each check is a database query
        return until(condition, seconds, lambda: f"{otherwise}\n{self.said()}", pause_max=0.5)

    def said(self) -> str:
        """Return the ends of the logs of all parts."""
        return "\n".join(f"--- {part.name}\n{part.log()}" for part in self.parts.values() if part.process)

    # --- DAGs and runs ------------------------------------------------------------------------------------------

    def put(self, dag_id: str, text: str) -> None:
        """Write a DAG file and wait until Airflow has parsed exactly this version."""
        before = self._parsed(dag_id)
        path = self.home / "dags" / f"{dag_id}.py"
        aside = path.with_suffix(".new")
        aside.write_text(textwrap.dedent(text))
        aside.replace(path)
        written_at = time.time()
        self.until(lambda: self._refused(path) or self._parsed(dag_id) > max(before, written_at), f"no DAG {dag_id}")
        assert not self._refused(path), self._refused(path)

    def _parsed(self, dag_id: str) -> float:
        rows = self.asked(
            "SELECT extract(epoch FROM d.last_parsed_time) FROM dag d JOIN serialized_dag s USING (dag_id)"
            " WHERE dag_id = %s",
            dag_id,
        )
        return float(rows[0][0]) if rows and rows[0][0] else 0.0

    def _refused(self, path: Path) -> str:
        rows = self.asked("SELECT stacktrace FROM import_error WHERE filename LIKE %s", f"%{path.name}")
        return rows[0][0] if rows else ""

    def pool(self, name: str, slots: int) -> None:
        """Make a pool."""
        self._ask("POST", "/pools", {"name": name, "slots": slots})

    def trigger(self, dag_id: str, run_id: str | None = None, conf: Mapping[str, Any] | None = None) -> Run:
        """Start a run."""
        run = Run(dag_id, run_id or f"run-{uuid.uuid4().hex[:8]}")
        body: dict[str, Any] = {"dag_run_id": run.run_id, "conf": dict(conf or {})}
        if self.version.has_task_sdk:
            body["logical_date"] = None
        self._ask("POST", f"/dags/{dag_id}/dagRuns", body)
        return run

    def run_state(self, run: Run) -> str | None:
        rows = self.asked("SELECT state FROM dag_run WHERE dag_id = %s AND run_id = %s", run.dag_id, run.run_id)
        return rows[0][0] if rows else None

    def finished(self, run: Run, seconds: float = PATIENCE) -> str:
        """Wait for the end of a run and return its state."""
        state: str = self.until(
            lambda: (found := self.run_state(run)) in ENDED and found, f"{run} did not end: {self.tasks(run)}", seconds
        )
        return state

    def tasks(self, run: Run) -> list[Attempt]:
        """Return the current task instances of a run."""
        rows = self.asked(
            "SELECT task_id, map_index, state, try_number, pid FROM task_instance"
            " WHERE dag_id = %s AND run_id = %s ORDER BY task_id, map_index",
            run.dag_id,
            run.run_id,
        )
        return [Attempt(*row) for row in rows]

    def task(self, run: Run, task_id: str, map_index: int = -1) -> Attempt:
        for one in self.tasks(run):
            if (one.task_id, one.map_index) == (task_id, map_index):
                return one
        return Attempt(task_id, map_index, None, 0, None)

    def reaches(self, run: Run, task_id: str, *states: str, map_index: int = -1, seconds: float = PATIENCE) -> Attempt:
        """Wait until a task is in one of these states."""

        def there() -> Attempt | None:
            over = self.run_state(run) in ENDED
            found = self.task(run, task_id, map_index)
            assert found.state in states or not over, f"{run} ended: {self.tasks(run)}"
            return found if found.state in states else None

        reached: Attempt = self.until(there, f"{task_id} of {run} did not become {states}", seconds)
        return reached

    def task_log(self, run: Run, task_id: str, *, attempt: int = 1, map_index: int = -1) -> str:
        """Return the log of one attempt of a task, from its file; empty if there is none yet."""
        folder = self.home / "logs" / f"dag_id={run.dag_id}" / f"run_id={run.run_id}" / f"task_id={task_id}"
        if map_index >= 0:
            folder /= f"map_index={map_index}"
        path = folder / f"attempt={attempt}.log"
        return path.read_text("utf-8", errors="replace") if path.exists() else ""

    def shown_operator(self, dag_id: str, task_id: str) -> str:
        """Return the operator name that Airflow's UI shows for a task."""
        shown: str = self._ask("GET", f"/dags/{dag_id}/tasks/{task_id}")["operator_name"]
        return shown

    # --- user actions -------------------------------------------------------------------------------------------

    def mark(self, run: Run, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark a task success or failed, as the button does."""
        where = f"/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}"
        if map_index >= 0:
            where += f"/{map_index}"
        body: dict[str, Any] = {"new_state": state}
        if not self.version.has_task_sdk:
            # the simple endpoint of version 2 only sets a state, without ending other tasks
            where = f"/dags/{run.dag_id}/updateTaskInstancesState"
            body |= {
                "task_id": task_id,
                "dag_run_id": run.run_id,
                "dry_run": False,
                "include_upstream": False,
                "include_downstream": False,
                "include_future": False,
                "include_past": False,
            }
        self._ask("PATCH" if self.version.has_task_sdk else "POST", where, body)

    def mark_run(self, run: Run, state: str) -> None:
        """Mark a run success or failed, as the button does."""
        self._ask("PATCH", f"/dags/{run.dag_id}/dagRuns/{run.run_id}", {"state": state})

    def clear(
        self, run: Run, tasks: Iterable[str] = (), *, only_failed: bool = False, downstream: bool = False
    ) -> list[str]:
        """Clear tasks of a run, as the button does, and return the ids of those that were cleared."""
        body = {
            "dry_run": False,
            "dag_run_id": run.run_id,
            "only_failed": only_failed,
            "only_running": False,
            "include_downstream": downstream,
            "reset_dag_runs": True,
        }
        if chosen := list(tasks):
            body["task_ids"] = chosen
        said = self._ask("POST", f"/dags/{run.dag_id}/clearTaskInstances", body)
        return sorted(one["task_id"] for one in said["task_instances"])

    def body_of(self, run: Run, task_id: str, map_index: int = -1) -> int:
        """Wait until a task runs and return the process id of its body."""
        pid: int = self.until(
            lambda: (found := self.task(run, task_id, map_index)).state == "running" and found.pid,
            f"{task_id} of {run} does not run",
        )
        return pid

    def kill_body(self, run: Run, task_id: str, map_index: int = -1) -> int:
        """Kill the process of a task's body (SIGKILL), and return its process id."""
        pid = self.body_of(run, task_id, map_index)
        kill(pid)
        return pid

    def kill_supervisor(self, run: Run, task_id: str, map_index: int = -1) -> tuple[int, int]:
        """Kill the supervisor of a task (SIGKILL), and return the process ids of the supervisor and of the body."""
        pid = self.body_of(run, task_id, map_index)
        supervisor = parent_of(pid)
        kill(supervisor)
        self.until(lambda: not is_alive(supervisor), f"process {supervisor} lives on")
        return supervisor, pid

    # --- database and REST API ----------------------------------------------------------------------------------

    def asked(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in Airflow's database and return its rows."""
        with self._asking:
            if self._database is None or self._database.closed:
                self._database = psycopg.connect(self.postgres.url("airflow"), autocommit=True)
            cursor = self._database.execute(statement, values)
            return list(cursor.fetchall()) if cursor.description else []

    def _ask(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        with self._asking:
            if self._http is None:
                server = f"http://127.0.0.1:{self.port}"
                self._http = httpx.Client(base_url=server, timeout=60.0, trust_env=False)
                if self.version.has_task_sdk:
                    token = self._http.get("/auth/token").json()["access_token"]
                    self._http.headers["Authorization"] = f"Bearer {token}"
        prefix = "/api/v2" if self.version.has_task_sdk else "/api/v1"
        said = self._http.request(verb, prefix + path, json=body)
        assert said.is_success, f"{verb} {path}: {said.status_code} {said.text[:2000]}"
        return said.json() if said.content else None
