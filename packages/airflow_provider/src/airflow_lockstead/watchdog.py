"""Ending a running body: the steps, their order and their limits.

After `lost`, or when the parent of this process is gone, it logs the reason, calls `on_kill` in another thread, ends
every process that the body started (SIGTERM, then SIGKILL), and exits the process if the body still runs after a grace
period. Must not know leases or Airflow: the lease's guard interrupts the main thread.

Only time in which this thread could run counts: while a C call holds the interpreter lock no grace time passes, since
the body may stop by itself as soon as it can run again.
"""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import psutil

from airflow_lockstead.liveness import MARK, is_alive, started_by
from lockstead.supervise import processes
from lockstead.wrapping.leaving import EXIT_CODE, flush_output

TURN: Final = 0.1
"""Seconds between two checks."""

TURN_MAX: Final = 1.0
"""Maximum seconds that one turn counts; it takes longer than `TURN` on a busy machine, and much longer in a C call."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds. terms: from SIGTERM to SIGKILL for the body's processes; grace: until this process exits."""

    terms: float
    grace: float


class Watchdog:
    """A context manager that watches the body in its `with` block. on_kill is called at most once, in another thread.

    body: a unique id, by which processes that the body started are found. parent: the id of the process that must stay
    our parent; None to watch none. leave ends this process and does not return.
    """

    def __init__(
        self,
        body: str | None = None,
        *,
        say: Callable[[str], None],
        on_kill: Callable[[], object],
        parent: int | None,
        limits: Limits,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._say = say
        self._on_kill = on_kill
        self._parent = parent
        self._limits = limits
        self._leave = leave
        self._why: str | None = None
        self._is_in_body = False
        self._wake = threading.Event()
        self._over = threading.Event()
        self._id = body or uuid.uuid4().hex
        self._outer: str | None = None
        self._before: set[psutil.Process] = set()
        self._context = contextvars.copy_context()
        self._thread = threading.Thread(target=self._watch, name="lockstead-watchdog", daemon=True)

    def lost(self, why: str) -> None:
        """End the body, from any thread; only the first reason counts. After the block it does nothing."""
        if self._why is None:
            self._is_in_body = not self._over.is_set()
            self._why = why
        self._wake.set()

    def __enter__(self) -> Self:
        self._outer = os.environ.get(MARK)
        os.environ[MARK] = f"{self._outer}:{self._id}" if self._outer else self._id
        self._before = set(_children())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._wake.set()
        # after a loss the block must not end before the body's processes have ended
        self._thread.join(self._limits.terms + self._limits.grace)
        if self._outer is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = self._outer

    # --- the thread ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while self._why is None and not self._over.is_set():
            self._wake.wait(TURN)
            if self._parent is not None and os.getppid() != self._parent and not self._over.is_set():
                self._end(f"its supervisor, process {self._parent}, is gone", is_orphan=True)
                return
        if self._why is not None:
            self._end(self._why, is_orphan=False)

    def _end(self, why: str, *, is_orphan: bool) -> None:
        killing = threading.Thread(target=self._kill, name="lockstead-on-kill", daemon=True)
        # also if the body was interrupted and has ended by now: work it started elsewhere continues without the lease
        if self._is_in_body or not self._over.is_set():
            self._tell(f"stopping this task: {why}")
            killing.start()
        told: set[psutil.Process] = set()
        terms, grace, spent = self._limits.terms, self._limits.grace, 0.0
        while spent < terms + grace:
            began_at = time.monotonic()
            found = self._descendants()
            for one in found:
                if spent >= terms or one not in told:
                    _send(one, signal.SIGKILL if spent >= terms else signal.SIGTERM)
            told |= found
            if not found and (is_orphan or (self._over.is_set() and not killing.is_alive())):
                break
            if spent >= grace and not self._over.is_set():
                break
            time.sleep(TURN)
            spent += min(time.monotonic() - began_at, TURN_MAX)
        else:
            self._tell(f"still alive: {', '.join(str(one.pid) for one in self._descendants())}")
        if not self._over.is_set():
            self._tell("exiting the process: " + ("no supervisor is left" if is_orphan else "its body does not stop"))
            flush_output()
            self._leave(EXIT_CODE)

    def _kill(self) -> None:
        try:
            self._context.run(self._on_kill)
        except Exception as error:  # noqa: BLE001 - the body is ended in any case
            self._tell(f"on_kill failed: {error!r}")

    def _tell(self, what: str) -> None:
        # a log that fails must not keep the body alive
        with suppress(Exception):
            self._say(what)

    def _descendants(self) -> set[psutil.Process]:
        """Return the living processes that the body started: our descendants, or by the mark if their parent died."""
        return {one for one in {*_children(), *started_by(self._id)} - self._before if is_alive(one)}


def _children() -> list[psutil.Process]:
    with suppress(psutil.Error, OSError):
        found: list[psutil.Process] = psutil.Process().children(recursive=True)
        return found
    return []


def _send(one: psutil.Process, number: int) -> None:
    """Signal a process, but not a later one with the same process id."""
    with suppress(psutil.Error, OSError):
        if sys.platform != "linux":
            one.send_signal(number)
            return
        found = processes.Process(one.pid, processes.stat_of(one.pid))
        # in this order: if `found` is a later process with that id, is_running returns False and nothing is signalled
        if one.is_running():
            processes.send_to(found, number)
