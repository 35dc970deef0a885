"""Reports of a step on its lock: engine events, metadata of its outputs, log lines.

A background thread writes the events, so a hanging database delays neither section nor release. The end of the step or
run waits up to `JOIN` seconds for the thread, because the process may exit then. For an ephemeral instance the caller
writes: it cannot hang, and it does not support two writing threads.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

import dagster

from dagster_lockstead import compat, names
from lockstead.reading import date_text
from lockstead.wrapping.messages import is_held

if TYPE_CHECKING:
    from lockstead import Lease, LeaseLost, LockInfo

JOIN: Final = 2.0
"""Seconds for which the end of a step or run waits until the events of its locks are written."""


class Reporter:
    """Reports on one section, of a step or of a whole run. Not used after `close`.

    Events of a step may be written after `close`, but before the step's end is.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self._step_key = step.step.key if hasattr(step, "step") else None
        self._waiting: queue.SimpleQueue[tuple[str, dict[str, Any] | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def waiting(self, key: str, held: LockInfo | None) -> None:
        """Report that the step waits for a lock. held: the holder, None if unknown."""
        said: dict[str, Any] = {names.KEY: key}
        if held is not None:
            said |= _of_holder(held)
        message = f"{names.WAITING}: {is_held(key, held)}"
        # for readers of a terminal: the step's log would hang with its database
        _log().warning("%s run %s: %s", time.strftime("%Y-%m-%d %H:%M:%S %z"), self._step.run_id, message)
        self._tell(message, said)

    def acquired(self, lease: Lease, waited: float) -> None:
        """Report that the step acquired a lock. waited: seconds."""
        said = {**metadata(lease), names.WAITED: round(waited, 3)}
        token = "" if lease.token is None else f" with token {lease.token}"
        whole = "" if self._step_key is not None else " for the whole run"
        self._tell(f"{names.ACQUIRED}: {lease.key!r}{token}{whole} after {waited:.1f} s", said)

    def released(self, lease: Lease) -> None:
        """Report that the lock was released."""
        self._tell(f"{names.RELEASED}: {lease.key!r}", metadata(lease))

    def lost(self, lease: Lease, error: LeaseLost) -> None:
        """Report that the step lost its lease."""
        self._tell(f"{names.LOST}: {error}", {**metadata(lease), names.REASON: error.reason.value})

    def warn(self, message: str) -> None:
        """Write a warning among the run's log lines.

        Not by the step's log, which can deadlock: its handler takes its own lock and then the lock of `logging`; a
        thread that configures `logging`, as each execution of Dagster does, takes them in the opposite order.
        """
        _log().warning("run %s: %s", self._step.run_id, message)
        self._put((message, None))

    def close(self) -> None:
        """Let the thread end after the last event; for a run, wait up to `JOIN` seconds for it."""
        if self._thread is None:
            return
        self._waiting.put(None)
        thread, self._thread = self._thread, None
        if self._step_key is None:
            thread.join(JOIN)
        else:
            _EndOfStep.of(self._step).add(thread)

    def _tell(self, message: str, said: dict[str, Any]) -> None:
        self._put((message, said))

    def _put(self, one: tuple[str, dict[str, Any] | None]) -> None:
        if self._step.instance.is_ephemeral:
            self._write_one(*one)
            return
        if self._thread is None:
            thread = threading.Thread(target=self._write, name="lockstead-reporting", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread can be started
                _log().warning("cannot report to Dagster: %s: %s", error, one[0])
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
        except Exception as error:  # noqa: BLE001 - a failure of Dagster must not end the section
            _log().warning("cannot report to Dagster: %s: %s", type(error).__name__, error)

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


class _EndOfStep(logging.Handler):
    """Log handler of a step that waits, before the step's end is written, until the events of its locks are."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self._step_key = step.step.key
        self._threads: list[threading.Thread] = []

    @classmethod
    def of(cls, step: Any) -> Self:
        """Return the handler of a step, added if there is none."""
        with _LOCK:
            found = cls.there(step)
            if found is None:
                found = cls(step)
                compat.listen(step.log, found)
            return found

    @classmethod
    def there(cls, step: Any) -> Self | None:
        """Return the handler of a step; None if there is none."""
        return next((one for one in step.log.handlers if isinstance(one, cls)), None)

    def add(self, thread: threading.Thread) -> None:
        """Wait for this thread, too."""
        with _LOCK:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def wait(self) -> None:
        """Wait for all threads, `JOIN` seconds at most."""
        ends_at = time.monotonic() + JOIN
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle an event without the handler's lock: the awaited threads may write to the same log."""
        event = getattr(record, compat.EVENT, None)
        if event is not None and compat.ends_step(event, self._step_key):
            self.wait()
        return True


_LOCK: Final = threading.Lock()


def wait_until_written(step: Any) -> None:
    """Wait, `JOIN` seconds at most, until the events of a step's locks are written."""
    found = _EndOfStep.there(step)
    if found is not None:
        found.wait()


def _of_holder(held: LockInfo) -> dict[str, Any]:
    """Return a holder's record as metadata, with a link to the run if a step or run of Dagster holds it."""
    run_id = names.run_of(held.owner)
    known = {
        names.HELD_BY: held.owner,
        names.HELD_RUN: None if run_id is None else dagster.MetadataValue.dagster_run(run_id),
        names.HELD_SINCE: date_text(held.acquired_epoch),
        names.HELD_TOKEN: held.token,
        names.HELD_UNTIL: date_text(held.alert_epoch),
        names.PURPOSE: held.purpose,
    }
    return {name: value for name, value in known.items() if value is not None and value != ""}


def metadata(lease: Lease) -> dict[str, Any]:
    """Return key, holder, slot and, if drawn, token of a lease as metadata."""
    said: dict[str, Any] = {names.KEY: lease.key, names.HOLDER: lease.holder}
    if lease.token is not None:
        said[names.TOKEN] = lease.token
    if lease.slot is not None:
        said[names.SLOT] = lease.slot
    return said


def marked(event: Any, lease: Lease) -> Any:
    """Return an output event with the lock's key and token in its metadata; any other event unchanged."""
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
