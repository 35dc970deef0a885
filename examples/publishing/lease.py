"""The interface that the pipeline needs from a lock: a lease and its sequencer.

A lockstead lease has it. Tests pass leases of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import lockstead


class Sequencer(Protocol):
    """Key and token of a grant; a later grant of the same key has a higher token."""

    @property
    def key(self) -> str:
        """Return the lock's name."""
        ...

    @property
    def token(self) -> int:
        """Return the fencing token, which grows with every grant."""
        ...


class Lease(Protocol):
    """The right to publish, until it is lost."""

    def check(self) -> None:
        """Raise an error if the lease may be lost."""
        ...

    def sequencer(self) -> Sequencer:
        """Return the sequencer to write to the pointer."""
        ...


@dataclass(frozen=True, slots=True)
class LockSettings:
    """Where the lock is and how to acquire it.

    url: a lockstead URL without a key (`gs://bucket/locks`, `redis://host/0`). ttl and timeout are in seconds. ticket:
    of a lease that another process holds for this one, as `lockstead run` does; None to acquire one.
    """

    url: str
    ttl: float = 300.0
    timeout: float | None = None
    owner: str | None = None
    backoff_max: float = 5.0
    ticket: str | None = None


@contextmanager
def held(settings: LockSettings, key: str, purpose: str) -> Iterator[lockstead.Lease]:
    """Hold the lock of a key while the block runs, or attach to the ticket's lease; raises lockstead's errors."""
    lock = lockstead.Lock(
        f"{settings.url}#{key}",
        ttl=settings.ttl,
        purpose=purpose,
        backoff_max=settings.backoff_max,
        backoff_min=min(0.1, settings.backoff_max),
        owner=settings.owner,
    )
    with lock.hold(timeout=settings.timeout) if settings.ticket is None else lock.attach(settings.ticket) as lease:
        yield lease
