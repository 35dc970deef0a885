"""Background threads that detect that the run of a body has ended without the body being notified.

They read the run from Dagster every few seconds. In a step process they also check whether the run worker that started
it still lives, which needs no database. An error of the database means nothing, and a database that hangs delays
nothing: no other thread waits for these.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import TYPE_CHECKING, Final

from dagster_lockstead.compat import is_step_process
from lockstead.wrapping.leaving import call_within

if TYPE_CHECKING:
    from dagster import DagsterInstance

ASK_EVERY: Final = 3.0
"""Seconds between two reads of the run."""

LOOK_EVERY: Final = 0.5
"""Seconds between two checks whether there is still a watch to notify."""


ANSWER: Final = 2.0
"""Maximum seconds that a retry waits for the answer whether its run is ending."""


def is_ending(instance: DagsterInstance, run_id: str) -> bool:
    """Return whether a run is being terminated or has ended; False if there is no answer within `ANSWER` seconds."""
    if instance.is_ephemeral:
        return False
    found: list[bool] = []

    def ask() -> None:
        with suppress(Exception):
            run = instance.get_run_by_id(run_id)
            found.append(run is not None and (run.is_finished or run.status.value == "CANCELING"))

    # a database that hangs must not delay the caller
    call_within(ANSWER, ask, "lockstead-ending-run")
    return found == [True]


class Watch:
    """A watch of a run: calls gone(why) once, in a separate thread, when the run or its run worker has ended.

    Watches of the same run share their threads. After `stop` it makes no call, unless one is already in progress.
    """

    def __init__(self, instance: DagsterInstance, run_id: str, *, gone: Callable[[str], None]) -> None:
        self._instance = instance
        self._run_id = run_id
        self._gone = gone

    def start(self) -> None:
        """Start watching."""
        with _LOCK:
            shared = _WATCHED.get(self._run_id)
            if shared is None:
                shared = _WATCHED[self._run_id] = _Shared(self._instance, self._run_id)
            shared.add(self)

    def stop(self) -> None:
        """Stop watching. Does not wait; idempotent."""
        with _LOCK:
            shared = _WATCHED.get(self._run_id)
            if shared is not None:
                shared.remove(self)

    def tell(self, why: str) -> None:
        """Call `gone`; its exceptions are ignored, so that other watches are notified too."""
        with suppress(Exception):
            self._gone(why)


class _Shared:
    """The threads that watch one run. The methods are called with the lock held, except those of the threads."""

    def __init__(self, instance: DagsterInstance, run_id: str) -> None:
        self._instance = instance
        self._run_id = run_id
        self._watches: list[Watch] = []
        self._threads: set[threading.Thread] = set()
        self._is_told = threading.Event()
        self._why: str | None = None

    def add(self, watch: Watch) -> None:
        self._watches.append(watch)
        if self._why is not None:
            self._begin("lockstead-gone", self._say_again)
            return
        names = {one.name for one in self._threads}
        # a thread that hangs in the database still exists, and continues when the database answers
        # with an in-memory database no other process can end the run, and a read may block its writer
        if "lockstead-run" not in names and not self._instance.is_ephemeral:
            self._begin("lockstead-run", self._ask)
        if "lockstead-parent" not in names and is_step_process():
            self._begin("lockstead-parent", self._look)

    def remove(self, watch: Watch) -> None:
        with suppress(ValueError):
            self._watches.remove(watch)
        # the threads notice at their next check: waking them would cost more than the section itself
        self._forget()

    def _forget(self) -> None:
        if not self._watches and not self._threads:
            _WATCHED.pop(self._run_id, None)

    def _begin(self, name: str, task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task, name=name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _goes_on(self) -> bool:
        """Return whether the calling thread is still needed; if not, remove it: the next watch starts another."""
        with _LOCK:
            if self._watches and self._why is None:
                return True
            self._threads.discard(threading.current_thread())
            self._forget()
            return False

    def _tell(self, why: str) -> None:
        with _LOCK:
            self._why = self._why or why
            watches, self._watches = self._watches, []
            self._is_told.set()
        for one in watches:
            one.tell(self._why)

    # --- the threads ----------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        unknown = 0
        while not self._is_told.wait(ASK_EVERY) and self._goes_on():
            # an unavailable database says nothing about the run
            with suppress(Exception):
                run = self._instance.get_run_by_id(self._run_id)
                # twice, since only a deleted run stays unknown
                unknown = unknown + 1 if run is None else 0
                if unknown == 2:
                    self._tell(f"the run {self._run_id} no longer exists")
                elif run is not None and run.is_finished:
                    self._tell(f"the run {self._run_id} has ended: {run.status.value}")
        self._goes_on()

    def _look(self) -> None:
        parent = multiprocessing.parent_process()
        while self._goes_on():
            if parent is not None and connection.wait([parent.sentinel], LOOK_EVERY):
                self._tell(f"the run worker of the run {self._run_id} is gone")

    def _say_again(self) -> None:
        self._tell("")
        self._goes_on()


_LOCK: Final = threading.Lock()
_WATCHED: Final[dict[str, _Shared]] = {}
"""By run id; an entry is removed with its last watch and its last thread."""
