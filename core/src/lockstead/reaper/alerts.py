"""Alerts: what they say, and their delivery by webhook and command, beside the rounds and bounded in every way.

Texts of records are untrusted: in JSON they are ASCII, in a command's environment they have no control characters, and
they are never arguments. The address of a webhook is shown as scheme and host alone: the rest may be a secret.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lockstead.reading import clean, on_calendar
from lockstead.views import LockInfo

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("lockstead.reaper")

VERSION: Final = 1
"""Of the JSON; within it keys are only added."""

QUEUED_MAX: Final = 1000
"""Alerts that wait for delivery; more are dropped, which is logged and counted."""

WEBHOOK_TAKES: Final = 10.0
COMMAND_TAKES: Final = 60.0
KILLED_AFTER: Final = 2.0
"""Seconds from SIGTERM to SIGKILL."""

TRIES: Final = 5
BACKOFF: Final = 1.0
"""Seconds before the second try; twice as long before each further one, with jitter."""

ENV_BYTES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Alert:
    """A lease that is overdue ("overdue") or was revoked ("unlocked").

    number: which alert of this lease it is, from 1. at: seconds since the epoch. name: of the lock in metrics.
    """

    event: str
    store: str
    lease: LockInfo
    name: str
    number: int
    at: float
    by: str

    def facts(self) -> dict[str, Any]:
        """Return the alert for JSON; null for what is unknown."""
        lease = self.lease
        said = {
            "version": VERSION,
            "event": self.event,
            "id": self._id(),
            "number": self.number,
            "at": instant(self.at),
            "by": self.by,
            "store": self.store,
            "key": lease.key,
            "name": self.name,
            "mode": lease.mode,
            "slot": lease.slot,
            "owner": lease.owner,
            "holder": lease.holder,
            "purpose": lease.purpose,
            "progress": lease.progress,
            "value": lease.value,
            "url": lease.url,
            "labels": dict(lease.labels),
            "acquired_at": instant(lease.acquired_epoch),
            "expected": lease.expected,
            "alert_at": instant(lease.alert_epoch),
            "auto_unlock_at": instant(lease.auto_unlock_epoch),
            "token": lease.token,
            "incarnation": lease.incarnation,
            "host": lease.host,
            "pid": lease.pid,
            "where": lease.where,
            "backtrace": lease.backtrace,
        }
        return {name: None if value in ("", {}) else value for name, value in said.items()}

    def _id(self) -> str:
        """Return what is equal for all deliveries of one alert, also by another reaper."""
        lease = self.lease
        told = (self.store, lease.key, lease.mode, lease.registration, lease.incarnation, lease.alert_epoch)
        # a lease is unlocked once, after any number of alerts
        number = self.number if self.event == "overdue" else 1
        return sha256(json.dumps([*told, self.event, number]).encode()).hexdigest()[:32]

    def body(self) -> bytes:
        """Return the alert as one line of JSON in ASCII."""
        return json.dumps(self.facts()).encode() + b"\n"

    def environment(self) -> dict[str, str]:
        """Return the alert as environment variables, LOCKSTEAD_KEY and so on: short ones, in one printable line."""
        said = self.facts()
        for absent in ("labels", "backtrace"):
            del said[absent]
        return {
            f"LOCKSTEAD_{name.upper()}": "" if value is None else clean(str(value))[:ENV_BYTES_MAX]
            for name, value in said.items()
        }


def instant(epoch: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601 in UTC; None if unknown or out of range."""
    epoch = on_calendar(epoch)
    if epoch is None:
        return None
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Unsuited(Exception):  # noqa: N818
    """The receiver refused an alert, and would refuse it again."""


class Failed(Exception):  # noqa: N818
    """An alert was not delivered, and may be later. The text is for the log, and has no secret."""


@dataclass(frozen=True, slots=True)
class _Delivery:
    alert: Alert
    on_tried: Callable[[], None]


@dataclass(slots=True)
class Outlet:
    """One way out for alerts: a bounded queue and a few workers. `submit` never waits."""

    name: str
    deliver: Callable[[Alert], Awaitable[None]]
    workers: int
    tries: int = TRIES
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    _queue: asyncio.Queue[_Delivery] = field(default_factory=lambda: asyncio.Queue(QUEUED_MAX))
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Start the workers, in the running event loop, unless they run."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._work()) for _ in range(self.workers)]

    def submit(self, alert: Alert, on_tried: Callable[[], None]) -> None:
        """Queue an alert; on_tried is called after its first try, or when it is dropped."""
        try:
            self._queue.put_nowait(_Delivery(alert, on_tried))
        except asyncio.QueueFull:
            self.dropped += 1
            if self.dropped == 1 or self.dropped % QUEUED_MAX == 0:
                log.warning("%s: %d alerts dropped: it is slower than they come", self.name, self.dropped)
            on_tried()

    async def flush(self, seconds: float) -> None:
        """Wait until everything is delivered or given up, at most `seconds`; then end the workers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._queue.join()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left = self._queue.qsize()
        if left:
            log.error("%s: %d alerts were not delivered", self.name, left)

    async def tried(self) -> None:
        """Wait until the queue is empty and every delivery has ended."""
        await self._queue.join()

    def facts(self) -> dict[str, int]:
        """Return the counts, for /healthz."""
        return {
            "queued": self._queue.qsize(),
            "delivered": self.delivered,
            "failed": self.failed,
            "dropped": self.dropped,
        }

    async def _work(self) -> None:
        while True:
            delivery = await self._queue.get()
            try:
                await self._deliver(delivery)
            finally:
                self._queue.task_done()

    async def _deliver(self, delivery: _Delivery) -> None:
        why = ""
        for turn in range(self.tries):
            if turn:
                await self.sleep(BACKOFF * 2 ** (turn - 1) * (0.5 + self.chance()))
            try:
                await self.deliver(delivery.alert)
            except Unsuited as error:
                why = str(error)
                break
            except Failed as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - whatever a client library raises, the next alert must go out
                why = type(error).__name__
            else:
                self.delivered += 1
                return
            finally:
                if not turn:
                    delivery.on_tried()
        self.failed += 1
        log.error("%s: the alert on %r was not delivered: %s", self.name, delivery.alert.lease.key, clean(why))


# --- by webhook -----------------------------------------------------------------------------------------------------


def shown_address(url: str) -> str:
    """Return the scheme and host of a webhook; ValueError, which repeats nothing of it, if it is none."""
    try:
        said = urlsplit(url)
        port = said.port
        host = (said.hostname or "").encode("idna" if not url.isascii() else "ascii").decode("ascii")
    except (ValueError, UnicodeError):
        said, host, port = urlsplit(""), "", None
    if said.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise ValueError("--webhook needs the URL of a webhook: https://HOST/PATH")
    bracketed = f"[{host}]" if ":" in host else host
    return f"{said.scheme}://{bracketed}" + ("" if port is None else f":{port}")


class Webhook:
    """Posts alerts to an address. Certificates are checked, redirects are not followed, the answer is not read."""

    def __init__(self, url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        import httpx

        self.name = f"webhook {shown_address(url)}"
        self._url = url
        self._client = httpx.AsyncClient(timeout=WEBHOOK_TAKES, follow_redirects=False, transport=transport)

    async def deliver(self, alert: Alert) -> None:
        """Post one alert; Failed, or Unsuited if another try would not help."""
        import httpx

        headers = {"Content-Type": "application/json", "User-Agent": "lockstead-reap"}
        try:
            async with (
                asyncio.timeout(WEBHOOK_TAKES),
                self._client.stream("POST", self._url, content=alert.body(), headers=headers) as answer,
            ):
                status = answer.status_code
        except TimeoutError:
            raise Failed(f"no answer within {WEBHOOK_TAKES:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # its text may repeat the address
            raise Failed(f"{type(error).__name__}{_certificate(error)}") from None
        if status < 300:
            return
        if status in (408, 425, 429) or status >= 500:
            raise Failed(f"status {status}")
        raise Unsuited(f"status {status}")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _certificate(error: Exception) -> str:
    return ": its certificate is not trusted" if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""


# --- by command -----------------------------------------------------------------------------------------------------


def parse_command(text: str) -> list[str]:
    """Split a command into words, as a shell would, without one; ValueError if it cannot be run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--exec is not a command: {str(error).lower()}") from None
    if not words:
        raise ValueError("--exec is empty; give a command, or leave it out")
    if shutil.which(words[0]) is None:
        raise ValueError(f"--exec: {words[0]!r} is not found, or cannot be executed")
    return words


class Command:
    """Runs a command for each alert: JSON on standard input, facts in the environment, nothing as arguments."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = f"command {words[0]}"
        self._words = words
        self._environment = dict(os.environ if environment is None else environment)

    async def deliver(self, alert: Alert) -> None:
        """Run the command once, in a process group of its own that is killed when its time is over."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                env={**self._environment, **alert.environment()},
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"it cannot be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(COMMAND_TAKES):
                await process.communicate(alert.body())
        except TimeoutError:
            raise Failed(f"it did not end within {COMMAND_TAKES:g} s, and was killed") from None
        finally:
            if process.returncode is None:
                await _killed(process)
        if process.returncode:
            raise Failed(f"exit code {process.returncode}")


async def _killed(process: asyncio.subprocess.Process) -> None:
    for number, seconds in ((signal.SIGTERM, KILLED_AFTER), (signal.SIGKILL, KILLED_AFTER)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
