"""Whether the run that a body works for is over, though nobody has told the body: a thread at the side.

It asks Dagster for the run every few seconds. In a step process it also looks whether the run worker that started it
still lives, which needs no database. An error of the database is not an answer, and what hangs in it delays nothing:
nobody waits for these threads.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import TYPE_CHECKING, Final

from dagster_lockstead.compat import is_step_process

if TYPE_CHECKING:
    from dagster import DagsterInstance

ASK_EVERY: Final = 3.0
"""Seconds between two questions for the run."""

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at whether anybody still wants to be told."""


ANSWER: Final = 2.0
"""Seconds for which who begins again waits for the answer whether the run is wanted still."""


def is_ending(instance: DagsterInstance, run_id: str) -> bool:
    """Return whether somebody has asked for the end of a run, or it is over. No answer within `ANSWER` is no."""
    if instance.is_ephemeral:
        return False
    found: list[bool] = []

    def ask() -> None:
        with suppress(Exception):
            run = instance.get_run_by_id(run_id)
            found.append(run is not None and (run.is_finished or run.status.value == "CANCELING"))

    # a database that hangs must hold up nobody
    asking = threading.Thread(target=ask, name="lockstead-ending-run", daemon=True)
    asking.start()
    asking.join(ANSWER)
    return found == [True]


class Watch:
    """Tells once, by gone(why), in a thread of its own, that a run is over or that its run worker has ended.

    Watches of the same run share their threads. After `stop` it is not told, unless it is being told already.
    """

    def __init__(self, instance: DagsterInstance, run_id: str, *, gone: Callable[[str], None]) -> None:
        self._instance = instance
        self._run_id = run_id
        self._gone = gone

    def start(self) -> None:
        """Begin to watch."""
        with _LOCK:
            shared = _WATCHED.get(self._run_id)
            if shared is None:
                shared = _WATCHED[self._run_id] = _Shared(self._instance, self._run_id)
            shared.add(self)

    def stop(self) -> None:
        """Watch no longer. Waits for nothing; idempotent."""
        with _LOCK:
            shared = _WATCHED.get(self._run_id)
            if shared is not None:
                shared.remove(self)

    def tell(self, why: str) -> None:
        """Tell whoever watches; nothing that they raise keeps others from being told."""
        with suppress(Exception):
            self._gone(why)


class _Shared:
    """The threads that watch over one run. What is named here is called under the lock, `_ask` and `_look` not."""

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
        # one that hangs in a database is there still, and goes on when it comes back
        # a database in memory has no other process that would end the run, and a question may lock out its writer
        if "lockstead-run" not in names and not self._instance.is_ephemeral:
            self._begin("lockstead-run", self._ask)
        if "lockstead-parent" not in names and is_step_process():
            self._begin("lockstead-parent", self._look)

    def remove(self, watch: Watch) -> None:
        with suppress(ValueError):
            self._watches.remove(watch)
        # its threads find out at their next look: to wake them would cost more than the section itself
        self._forget()

    def _forget(self) -> None:
        if not self._watches and not self._threads:
            _WATCHED.pop(self._run_id, None)

    def _begin(self, name: str, task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task, name=name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _goes_on(self) -> bool:
        """Tell a thread whether it is still needed; if not, it has left already, and who comes next begins another."""
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

    # --- in threads of their own ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        unknown = 0
        while not self._is_told.wait(ASK_EVERY) and self._goes_on():
            # a database that is away says nothing about the run
            with suppress(Exception):
                run = self._instance.get_run_by_id(self._run_id)
                # a run that is deleted stays unknown
                unknown = unknown + 1 if run is None else 0
                if unknown == 2:
                    self._tell(f"the run {self._run_id} is not known any more")
                elif run is not None and run.is_finished:
                    self._tell(f"the run {self._run_id} is over: {run.status.value}")
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
"""By run; an entry goes with its last watch and its last thread."""
