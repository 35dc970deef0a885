"""When a lock is asked for by work that runs under it already: in this context, or one it was copied from.

The core knows its own thread and task; child tasks are others, and would wait for their parent, which waits for them.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from lockstead import AsyncLease, Lease
from prefect_lockstead.errors import AlreadyHeld


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock that is held around what runs here. place: (store, key)."""

    place: tuple[str, str]
    lease: Lease | AsyncLease
    outer: _Held | None


_HELD: Final[ContextVar[_Held | None]] = ContextVar("prefect_lockstead_held", default=None)


def refuse_held(place: tuple[str, str]) -> None:
    """Raise AlreadyHeld, with one line, if this work runs under that very lock."""
    one = _HELD.get()
    while one is not None:
        # a context that was copied outlives the section it was copied in
        if one.place == place and one.lease.is_held:
            raise AlreadyHeld(
                f"{place[1]!r} is held by {one.lease.holder!r}, under whose lease this runs: it would wait for itself; "
                "take the inner lock away, or give it a key of its own"
            )
        one = one.outer


def beside(place: tuple[str, str]) -> str | None:
    """Return the key of another lock under which this work runs; None if there is none."""
    one = _HELD.get()
    while one is not None:
        if one.place != place and one.lease.is_held:
            return one.place[1]
        one = one.outer
    return None


class noted:  # noqa: N801 - it reads as what it says: `with noted(place, lease):`
    """A block, `with` or `async with`: what runs in it runs under that lock."""

    def __init__(self, place: tuple[str, str], lease: Lease | AsyncLease) -> None:
        self._mine = _Held(place, lease, _HELD.get())

    def __enter__(self) -> None:
        _HELD.set(self._mine)

    def __exit__(self, *_error: object) -> None:
        # a generator may be left in another context than it was entered in: then nothing is to be undone
        if _HELD.get() is self._mine:
            _HELD.set(self._mine.outer)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_error: object) -> None:
        self.__exit__()
