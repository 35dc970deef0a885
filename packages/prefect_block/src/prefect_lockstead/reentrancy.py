"""Detection of nested acquisitions of one lock, through context variables.

The core detects them in one thread or task only. A child task runs elsewhere, and would deadlock with its parent.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from lockstead import AsyncLease, Lease
from prefect_lockstead.errors import AlreadyHeld


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock that is held around the code of this context. place: (store, key)."""

    place: tuple[str, str]
    lease: Lease | AsyncLease
    outer: _Held | None


_HELD: Final[ContextVar[_Held | None]] = ContextVar("prefect_lockstead_held", default=None)


def check_not_held(place: tuple[str, str]) -> None:
    """Raise AlreadyHeld if the code of this context runs under that lock."""
    one = _HELD.get()
    while one is not None:
        # a copied context outlives its section
        if one.place == place and one.lease.is_held:
            raise AlreadyHeld(
                f"{place[1]!r} is held by {one.lease.holder!r}, under whose lease this runs: it would wait for itself; "
                "remove the inner lock, or use another key for it"
            )
        one = one.outer


def other_held_key(place: tuple[str, str]) -> str | None:
    """Return the key of another lock that is held around this context; None if there is none."""
    one = _HELD.get()
    while one is not None:
        if one.place != place and one.lease.is_held:
            return one.place[1]
        one = one.outer
    return None


class holding:  # noqa: N801 - used as `with holding(place, lease):`
    """A context manager, `with` or `async with`, that records in the context that the lock is held."""

    def __init__(self, place: tuple[str, str], lease: Lease | AsyncLease) -> None:
        self._mine = _Held(place, lease, _HELD.get())

    def __enter__(self) -> None:
        _HELD.set(self._mine)

    def __exit__(self, *_error: object) -> None:
        # a generator may exit in another context than it was entered in
        if _HELD.get() is self._mine:
            _HELD.set(self._mine.outer)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_error: object) -> None:
        self.__exit__()
