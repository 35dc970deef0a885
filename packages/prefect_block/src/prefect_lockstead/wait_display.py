"""Setting the run's state in Prefect to AwaitingLock and back to Running, in a background thread.

The thread sets AwaitingLock, checks every few seconds and after the grant whether the run was stopped, and sets
Running. The body starts after the last check; the section ends after the last request, so no state is set after the
run's own end. Failures of Prefect's API are logged.
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

from prefect_lockstead import reporting, states

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

PATIENCE: Final = 2 * states.ANSWER
"""Seconds to wait for the last check, and for requests in flight when a section or a wait ends."""

_SHOWN: Final[ContextVar[WaitDisplay | None]] = ContextVar("lockstead_prefect_wait_display", default=None)


class WaitDisplay:
    """Shows in Prefect that the run of this context waits, and checks meanwhile whether the run was stopped.

    message: names the holder. call_off: called once, in another thread, when the run was stopped.
    """

    def __init__(self, message: str, call_off: Callable[[], object]) -> None:
        self._message = message
        self._call_off = call_off
        self._has_lock = threading.Event()
        self._is_over = False
        self._stop: Future[State[Any] | None] = Future()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._show,), name="lockstead-wait-display", daemon=True)
        self._thread.start()
        _SHOWN.set(self)

    def ask(self) -> None:
        """Start the last check, after the lock was acquired."""
        self._has_lock.set()

    def raise_stopped(self) -> None:
        """Wait for the last check; raise Stopped if the run was stopped. Without an answer the run continues."""
        try:
            state = self._stop.result(PATIENCE)
        except TimeoutError:
            return
        if state is not None:
            raise states.Stopped(state)

    def give_up(self) -> None:
        """Set no further state, and wait for the request in flight: it must not arrive after the run's end."""
        self._is_over = True
        self._has_lock.set()
        self._thread.join(PATIENCE)

    def settle(self) -> None:
        """Wait until the state is Running."""
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
            with suppress(Exception):  # the check is repeated
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


class settled:  # noqa: N801 - used as `with settled():`
    """A context manager, `with` or `async with`, that waits at its end for the section's reports to Prefect."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_error: object) -> None:
        for wait in _unsettled():
            wait()

    async def __aenter__(self) -> None:
        """Do nothing."""

    async def __aexit__(self, *_error: object) -> None:
        for wait in _unsettled():
            await asyncio.to_thread(wait)


def _unsettled() -> list[Callable[[], object]]:
    display = _SHOWN.get()
    _SHOWN.set(None)
    waits: list[Callable[[], object]] = [] if display is None else [display.settle]
    return [*waits, reporting.settle] if reporting.is_writing() else waits
