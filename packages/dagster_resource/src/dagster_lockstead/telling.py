"""What a step tells of its lock: engine events, the metadata of what it yields, log lines.

Events are written by a thread at the side, for a database that hangs must hold up no section and no release; the thread
ends with what it was given to write. Only the end of the step, or of the run, waits for it a moment: what is told of
a lock is written before the step's own end is, after which its process may be gone. An instance in memory hangs never,
and of two threads that write to it at once one fails: there who tells writes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

import dagster

from dagster_lockstead import compat, names
from lockstead.wrapping.messages import is_held

if TYPE_CHECKING:
    from lockstead import Lease, LeaseLost, LockInfo

JOIN: Final = 2.0
"""Seconds for which the end of a step, or of a run, waits until what was told of its locks is written."""


class Teller:
    """Tells of one section, of a step or of a whole run. After `close` nothing more is told.

    Of a step what is told may be written after `close`, and before the step's end is.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self._step_key = step.step.key if hasattr(step, "step") else None
        self._waiting: queue.SimpleQueue[tuple[str, dict[str, Any] | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def waiting(self, key: str, held: LockInfo | None) -> None:
        """Tell that the step waits for a lock; held: for whom, None if nobody knows."""
        said: dict[str, Any] = {names.KEY: key}
        if held is not None:
            said |= _of_holder(held)
        message = f"{names.WAITING}: {is_held(key, held)}"
        # for who looks at a terminal: the step's log would show it, too, but hangs where its database does
        _log().warning("%s run %s: %s", time.strftime("%Y-%m-%d %H:%M:%S %z"), self._step.run_id, message)
        self._tell(message, said)

    def acquired(self, lease: Lease, waited: float) -> None:
        """Tell that the step holds a lock, after so many seconds."""
        said = {**metadata(lease), names.WAITED: round(waited, 3)}
        token = "" if lease.token is None else f" with token {lease.token}"
        whole = "" if self._step_key is not None else " for the whole run"
        self._tell(f"{names.ACQUIRED}: {lease.key!r}{token}{whole} after {waited:.1f} s", said)

    def released(self, lease: Lease) -> None:
        """Tell that the lock was given back."""
        self._tell(f"{names.RELEASED}: {lease.key!r}", metadata(lease))

    def lost(self, lease: Lease, error: LeaseLost) -> None:
        """Tell that the step lost its lease."""
        self._tell(f"{names.LOST}: {error}", {**metadata(lease), names.REASON: error.reason.value})

    def warn(self, message: str) -> None:
        """Write a warning among the run's log lines.

        Not by the step's log: a handler holds its lock while it writes to the database, which asks for the lock of
        `logging`, and a thread that configures `logging`, as Dagster does for each execution, asks for both the other
        way around.
        """
        _log().warning("run %s: %s", self._step.run_id, message)
        self._put((message, None))

    def close(self) -> None:
        """Let the thread end with what it has to write; of a run, wait a moment for it."""
        if self._thread is None:
            return
        self._waiting.put(None)
        thread, self._thread = self._thread, None
        if self._step_key is None:
            thread.join(JOIN)
        else:
            _BeforeTheEnd.of(self._step).add(thread)

    def _tell(self, message: str, said: dict[str, Any]) -> None:
        self._put((message, said))

    def _put(self, one: tuple[str, dict[str, Any] | None]) -> None:
        if self._step.instance.is_ephemeral:
            self._write_one(*one)
            return
        if self._thread is None:
            thread = threading.Thread(target=self._write, name="lockstead-telling", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads can be had
                _log().warning("not told to Dagster: %s: %s", error, one[0])
                return
            self._thread = thread
        self._waiting.put(one)

    def _write(self) -> None:
        while (one := self._waiting.get()) is not None:
            self._write_one(*one)

    def _write_one(self, message: str, said: dict[str, Any] | None) -> None:
        try:
            if said is None:
                self._step.instance.handle_new_event(self._line(message))
            else:
                self._report(message, said)
        except Exception as error:  # noqa: BLE001 - what cannot be written holds nobody up
            _log().warning("not told to Dagster: %s: %s", type(error).__name__, error)

    def _line(self, message: str) -> dagster.EventLogEntry:
        run = self._step.dagster_run
        return dagster.EventLogEntry(
            error_info=None,
            level=logging.WARNING,
            user_message=message,
            run_id=run.run_id,
            timestamp=time.time(),
            step_key=self._step_key,
            job_name=run.job_name,
        )

    def _report(self, message: str, said: dict[str, Any]) -> None:
        self._step.instance.report_engine_event(
            message,
            self._step.dagster_run,
            compat.EventData(
                metadata={
                    name: dagster.MetadataValue.int(value) if isinstance(value, int) else value
                    for name, value in said.items()
                }
            ),
            step_key=self._step_key,
        )


class _BeforeTheEnd(logging.Handler):
    """Waits, as the end of a step is about to be written, until what was told of its locks is. A step's log has one."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self._step_key = step.step.key
        self._threads: list[threading.Thread] = []

    @classmethod
    def of(cls, step: Any) -> Self:
        """Return that of a step."""
        with _LOCK:
            found = cls.there(step)
            if found is None:
                found = cls(step)
                compat.listen(step.log, found)
            return found

    @classmethod
    def there(cls, step: Any) -> Self | None:
        """Return that of a step, if there is one."""
        return next((one for one in step.log.handlers if isinstance(one, cls)), None)

    def add(self, thread: threading.Thread) -> None:
        """Wait for this one, too."""
        with _LOCK:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def wait(self) -> None:
        """Wait for all of them, `JOIN` seconds at most."""
        ends_at = time.monotonic() + JOIN
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

    def handle(self, record: logging.LogRecord) -> bool:
        """Look at an event. Without the handler's lock: who is waited for may write to the same log."""
        event = getattr(record, compat.EVENT, None)
        if event is not None and compat.ends_step(event, self._step_key):
            self.wait()
        return True


_LOCK: Final = threading.Lock()


def wait_until_written(step: Any) -> None:
    """Wait a moment until what was told of a step's locks is written: for who ends a section as the step ends."""
    found = _BeforeTheEnd.there(step)
    if found is not None:
        found.wait()


def _of_holder(held: LockInfo) -> dict[str, Any]:
    """Say of a holder what its record says; of a step or a run of Dagster's with a link to the run."""
    run_id = names.run_of(held.owner)
    known = {
        names.HELD_BY: held.owner,
        names.HELD_RUN: None if run_id is None else dagster.MetadataValue.dagster_run(run_id),
        names.HELD_SINCE: held.acquired_at and f"{held.acquired_at.to_datetime_string()} UTC",
        names.HELD_TOKEN: held.token,
        names.HELD_UNTIL: held.alert_at and f"{held.alert_at.to_datetime_string()} UTC",
        names.PURPOSE: held.purpose,
    }
    return {name: value for name, value in known.items() if value is not None and value != ""}


def metadata(lease: Lease) -> dict[str, Any]:
    """Return key, holder and, if one was drawn, token of a lease, as metadata."""
    said: dict[str, Any] = {names.KEY: lease.key, names.HOLDER: lease.holder}
    if lease.token is not None:
        said[names.TOKEN] = lease.token
    return said


def marked(event: Any, lease: Lease) -> Any:
    """Return an event of a body with the lock's key and token in its metadata; any other event as it is."""
    said = {name: value for name, value in metadata(lease).items() if name != names.HOLDER}
    if isinstance(event, dagster.Output | dagster.AssetMaterialization):
        return event.with_metadata({**(event.metadata or {}), **said})
    if isinstance(event, dagster.DynamicOutput):
        return dagster.DynamicOutput(
            value=event.value,
            mapping_key=event.mapping_key,
            output_name=event.output_name,
            metadata={**(event.metadata or {}), **said},
        )
    if isinstance(event, dagster.MaterializeResult):
        return event._replace(metadata={**(event.metadata or {}), **said})
    return event


def _log() -> logging.Logger:
    return logging.getLogger("dagster_lockstead")
