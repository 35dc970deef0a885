"""When a run shows that it waits and that it works again: at the side, for nobody in a queue waits for Prefect.

One thread with one client: it shows AwaitingLock, looks every few seconds, and once the lock is had, whether somebody
has stopped the run, and shows Running. Only the last look is waited for before the body begins; the rest is done by the
end of the section, so that nothing is shown after the run's own end. Whatever Prefect's API fails with is a log line.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from prefect_lockstead import states, telling

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

PATIENCE: Final = 2 * states.ANSWER
"""Seconds for the look, and for what is on its way when a section ends or a wait is given up."""

_SHOWN: Final[ContextVar[Showing | None]] = ContextVar("lockstead_prefect_showing", default=None)


class Showing:
    """Shows one wait of the run of this context, from now on, and looks meanwhile whether the run is to go on.

    message says for whom it waits. call_off is called, once and in another thread, when somebody has stopped the run.
    """

    def __init__(self, message: str, call_off: Callable[[], object]) -> None:
        self._message = message
        self._call_off = call_off
        self._has_lock = threading.Event()
        self._is_over = False
        self._stop: Future[State[Any] | None] = Future()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._show,), name="lockstead-showing", daemon=True)
        self._thread.start()
        _SHOWN.set(self)

    def ask(self) -> None:
        """Say that the lock is had: whether the run is still wanted is asked from now on."""
        self._has_lock.set()

    def raise_stopped(self) -> None:
        """Wait for the answer: Stopped if the run is not to go on. Where nobody can tell it goes on."""
        try:
            state = self._stop.result(PATIENCE)
        except TimeoutError:
            return
        if state is not None:
            raise states.Stopped(state)

    def give_up(self) -> None:
        """Show nothing more, and wait for what is on its way: it must not come after the run's end."""
        self._is_over = True
        self._has_lock.set()
        self._thread.join(PATIENCE)

    def settle(self) -> None:
        """Wait until the run is shown as working."""
        self._thread.join(PATIENCE)
        self._is_over = True

    def _show(self) -> None:
        try:
            with states.tolerant(), states.client() as client:
                self._watch(client)
        finally:
            if not self._stop.done():
                self._stop.set_result(None)

    def _watch(self, client: SyncPrefectClient) -> None:
        known: set[UUID] = set()
        state: State[Any] | None = None
        with states.tolerant():
            before = states.history(client)
            known = {one.id for of_run in before for one in of_run}
            state = states.stop(before, known)
            if state is None:
                states.show_waiting(client, self._message)
        while state is None and not self._has_lock.wait(states.LOOK_EVERY):
            with suppress(Exception):  # it is asked again, and at the grant
                state = states.stop(states.history(client), known)
        if self._is_over:
            return
        if state is None:
            state = states.stop(states.history(client), known)
        self._stop.set_result(state)
        if state is not None:
            self._call_off()
        elif not self._is_over:
            states.show_working(client)


class settled:  # noqa: N801 - it reads as what it says: `with settled():`
    """A block, `with` or `async with`, at whose end what its section shows is shown."""

    def __enter__(self) -> None:
        """Nothing is waited for here."""

    def __exit__(self, *_error: object) -> None:
        for wait in _unsettled():
            wait()

    async def __aenter__(self) -> None:
        """Nothing is waited for here."""

    async def __aexit__(self, *_error: object) -> None:
        for wait in _unsettled():
            await asyncio.to_thread(wait)


def _unsettled() -> list[Callable[[], object]]:
    shown = _SHOWN.get()
    _SHOWN.set(None)
    waits: list[Callable[[], object]] = [] if shown is None else [shown.settle]
    return [*waits, telling.settle] if telling.is_writing() else waits
