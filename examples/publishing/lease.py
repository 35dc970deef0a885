"""What the pipeline needs of a lock: a lease it can ask, and a sequencer it can show.

A lockstead lease fits as it is. Tests pass leases made by hand.
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
        """The lock's name."""
        ...

    @property
    def token(self) -> int:
        """Grows with every grant."""
        ...


class Lease(Protocol):
    """The right to publish, for the time being."""

    def check(self) -> None:
        """Raise if the right may be lost."""
        ...

    def sequencer(self) -> Sequencer:
        """Return what to show to the pointer."""
        ...


@dataclass(frozen=True, slots=True)
class LockSettings:
    """Where the lock is and how it is asked for.

    url: a lockstead URL without a key (`gs://bucket/locks`, `redis://host/0`). ttl and timeout are seconds. ticket: of
    a lease that somebody else holds for us, as `lockstead run` does; None to ask for one.
    """

    url: str
    ttl: float = 300.0
    timeout: float | None = None
    owner: str | None = None
    backoff_max: float = 5.0
    ticket: str | None = None


@contextmanager
def held(settings: LockSettings, key: str, purpose: str) -> Iterator[lockstead.Lease]:
    """Hold the lock of a key while the block runs, or join who holds it; raises what lockstead raises."""
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
