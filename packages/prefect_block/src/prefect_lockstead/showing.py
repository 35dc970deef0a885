"""Decides when a run shows that it waits and that it works again: at the side, for nobody in a queue waits for Prefect.

One thread with one client: it shows AwaitingLock, looks whether the run was cancelled once the lock is had, and shows
Running. Only the look is waited for before the body begins; the rest is done by the end of the section, so that
nothing is shown after the run's own end. Whatever Prefect's API fails with is a log line.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Final

from prefect_lockstead import states

PATIENCE: Final = 2 * states.ANSWER
"""Seconds for the look, and for what is on its way when a section ends or a wait is given up."""

_SHOWN: Final[ContextVar[Showing | None]] = ContextVar("lockstead_prefect_showing", default=None)


class Showing:
    """Shows one wait of the run of this context, from now on; message says for whom it waits."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._has_lock = threading.Event()
        self._is_over = False
        self._is_wanted: Future[bool] = Future()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._show,), name="lockstead-showing", daemon=True)
        self._thread.start()
        _SHOWN.set(self)

    def ask(self) -> None:
        """Say that the lock is had: whether the run is still wanted is asked from now on."""
        self._has_lock.set()

    def is_wanted(self) -> bool:
        """Wait for the answer: False if the run was cancelled meanwhile. True where nobody can tell."""
        try:
            wanted = self._is_wanted.result(PATIENCE)
        except TimeoutError:
            wanted = True
        return wanted

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
                with states.tolerant():
                    states.show_waiting(client, self._message)
                self._has_lock.wait()
                if self._is_over:
                    return
                wanted, now = states.look(client)
                self._is_wanted.set_result(wanted)
                if wanted and not self._is_over:
                    states.show_working(client, now)
        finally:
            if not self._is_wanted.done():
                self._is_wanted.set_result(True)


class settled:  # noqa: N801 - it reads as what it says: `with settled():`
    """A block, `with` or `async with`, at whose end what its section shows is shown."""

    def __enter__(self) -> None:
        """Nothing is waited for here."""

    def __exit__(self, *_error: object) -> None:
        shown = _SHOWN.get()
        if shown is not None:
            _SHOWN.set(None)
            shown.settle()

    async def __aenter__(self) -> None:
        """Nothing is waited for here."""

    async def __aexit__(self, *_error: object) -> None:
        shown = _SHOWN.get()
        if shown is not None:
            _SHOWN.set(None)
            await asyncio.to_thread(shown.settle)
