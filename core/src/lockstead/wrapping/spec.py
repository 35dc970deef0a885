"""The lock arguments that all wrappers share, checked when the lock is declared, without opening a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from lockstead.values import EXCLUSIVE, SHARED, Duration, checked_permits, seconds

if TYPE_CHECKING:
    from lockstead.aio_lock import AsyncLock
    from lockstead.lock import Lock

L = TypeVar("L", "Lock", "AsyncLock")

OnUnclean = Literal["warn", "fail"]

DURATIONS: Final = ("ttl", "timeout", "expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSpecBase:
    """The part of a lock's specification that does not depend on the orchestrator; a wrapper's subclass adds the rest.

    ttl, timeout and expected are durations, converted to seconds. None: the value of the lock's URL, or the default; a
    timeout of None waits indefinitely. on_unclean: what to do if the previous lease did not end cleanly. labels are
    stored with the lock and shown to waiters. mode: "exclusive", or "shared" for a reader, which holds the lock
    together with other readers; it may be a template. permits: the limit of a semaphore, which is then acquired in
    place of a lock. Raises ValueError or TypeError with one line for invalid arguments.
    """

    ttl: Duration | None = None
    timeout: Duration | None = None
    purpose: str | None = None
    expected: Duration | None = None
    on_unclean: OnUnclean = "warn"
    labels: Mapping[str, str] = field(default_factory=dict)
    mode: str | None = None
    permits: int | None = None

    def complete(self, *, is_mode_final: bool = True) -> None:
        """Check the choices and turn durations into seconds; for `__post_init__` of the wrapper's class.

        is_mode_final: the mode is not a template.
        """
        check_choice("on_unclean", self.on_unclean, ("warn", "fail"))
        if self.mode is not None and is_mode_final:
            check_choice("mode", self.mode, (EXCLUSIVE, SHARED))
        if self.permits is not None:
            checked_permits(self.permits, 1)
            if self.mode is not None:
                raise ValueError("permits and mode exclude each other: the permits of a semaphore are exclusive")
            if self.on_unclean == "fail":
                raise ValueError(
                    "on_unclean='fail' is for locks: with permits, others work on beside what was left unclean"
                )
        for name in DURATIONS:
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else seconds(given, name))

    def checked(self, lock: L) -> L:
        """Return the lock, or its semaphore for permits; ValueError if that has another mode.

        For on_unclean="fail", raise ValueError if its store cannot detect unclean ends.
        """
        if self.on_unclean == "fail":
            lock.require_unclean_detection()
        return self.of_permits(lock)

    def of_permits(self, lock: L) -> L:
        """Return the lock, or its semaphore for permits; ValueError if that has another mode."""
        return lock if self.permits is None else of_permits(lock, self.permits)

    @property
    def timeout_seconds(self) -> float | None:
        """Return how long to wait for the lock, in seconds; None: indefinitely."""
        return None if self.timeout is None else seconds(self.timeout, "timeout")

    @property
    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `lockstead.Lock(url, **settings)`: those that were given."""
        given = {
            "ttl": self.ttl,
            "purpose": self.purpose,
            "expected": self.expected,
            "labels": dict(self.labels) or None,
            "mode": self.mode,
        }
        return {name: value for name, value in given.items() if value is not None}


def of_permits(lock: L, permits: int) -> L:
    """Return the semaphore of a lock's name and settings; ValueError for a shared lock."""
    from lockstead.aio_lock import AsyncLock
    from lockstead.wrapping import aio_permits
    from lockstead.wrapping import permits as blocking

    if isinstance(lock, AsyncLock):
        return aio_permits.AsyncPermitLock.of(lock, permits)
    return blocking.PermitLock.of(lock, permits)


def check_choice(name: str, given: object, known: tuple[str, ...]) -> None:
    """Raise ValueError if an argument is not one of the known strings."""
    if given not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, not {given!r}")


def check_text(name: str, given: object) -> None:
    """Raise TypeError if an argument is not a string, ValueError if it is blank; None is allowed."""
    if given is not None and not isinstance(given, str):
        raise TypeError(f"{name} must be text, not {type(given).__name__}")
    if given is not None and not given.strip():
        raise ValueError(f"{name} is empty")
