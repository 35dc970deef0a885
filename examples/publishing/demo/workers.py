"""Publishers as processes of their own, which can be killed, paused and resumed; and the worker's side.

A job is sent to a worker's standard input as one line of JSON, and its events come back on its standard output. A
worker whose input ends has lost its parent, and ends too.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from examples.publishing.events import Event, EventKind
from examples.publishing.gcs import Place
from examples.publishing.lease import LockSettings
from examples.publishing.runner import Job, Pace, run


def job_line(job: Job) -> str:
    """Return a job as one line of JSON."""
    return json.dumps({**asdict(job), "files": [str(path) for path in job.files]})


def job_of(line: str) -> Job:
    """Parse the output of `job_line`."""
    fields = json.loads(line)
    fields["files"] = tuple(Path(path) for path in fields["files"])
    fields["place"], fields["pace"] = Place(**fields["place"]), Pace(**fields["pace"])
    fields["lock"] = fields["lock"] and LockSettings(**fields["lock"])
    return Job(**fields)


def work() -> None:
    """Run as a worker: read a job, wait for the start line, publish, report."""
    job = job_of(sys.stdin.readline())
    writing = threading.Lock()

    def report(event: Event) -> None:
        with writing:
            sys.stdout.write(event.to_line() + "\n")
            sys.stdout.flush()

    def outlive_nobody() -> None:
        sys.stdin.read()
        os._exit(1)

    # The events report everything; other output on standard error is unexpected.
    logging.getLogger("lockstead").addHandler(logging.NullHandler())
    sys.stdin.readline()
    threading.Thread(target=outlive_nobody, daemon=True).start()
    run(job, report)


class Worker:
    """One publisher process. Its events go to a queue; None after the last one."""

    def __init__(self, job: Job, events: queue.Queue[tuple[Worker, Event | None]]) -> None:
        self.job = job
        self._events = events
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.publishing", "worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the demo alone, which then stops its workers in order.
            start_new_session=True,
        )
        self._complaints: list[str] = []
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._collect, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._say(job_line(job))

    @property
    def complaints(self) -> str:
        """Return what it wrote to its standard error."""
        return "".join(self._complaints)

    def go(self) -> None:
        """Send the start line."""
        self._say("go")

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        self._process.kill()

    def pause(self) -> None:
        """Stop all its threads (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it if it still runs, and clean up."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(5)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put((self, Event.from_line(line)))
        self._process.wait()
        self._events.put((self, None))

    def _collect(self) -> None:
        assert self._process.stderr is not None
        self._complaints.extend(self._process.stderr)


class Crew:
    """Some workers, and their events in order of arrival."""

    def __init__(self) -> None:
        self._events: queue.Queue[tuple[Worker, Event | None]] = queue.Queue()
        self._workers: list[Worker] = []
        self._running: set[Worker] = set()

    def add(self, job: Job) -> Worker:
        """Start a worker, which waits for the start line."""
        worker = Worker(job, self._events)
        self._workers.append(worker)
        self._running.add(worker)
        return worker

    def events(self, timeout: float) -> Iterator[tuple[Worker, Event]]:
        """Return events until all workers have ended; TimeoutError if there is none for `timeout` seconds."""
        while self._running:
            try:
                worker, event = self._events.get(timeout=timeout)
            except queue.Empty:
                names = ", ".join(sorted(worker.job.run for worker in self._running))
                raise TimeoutError(f"nothing was heard of {names} for {timeout:.0f} s") from None
            if event is None:
                self._running.discard(worker)
                if worker.complaints:
                    yield worker, Event(worker.job.run, "", EventKind.FAILED, text=worker.complaints.strip()[-300:])
            else:
                yield worker, event

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            worker.close()


@contextmanager
def crew() -> Iterator[Crew]:
    """Provide workers while the block runs; all are stopped at its end."""
    hired = Crew()
    try:
        yield hired
    finally:
        hired.close()
