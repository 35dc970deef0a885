"""What `top` shows, and what each key does to it. Must not know the terminal, nor ask a store."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import chain
from typing import Any, Final

from lockstead.cli.top.keys import ESCAPE
from lockstead.dashboard.board import Entry, Listing
from lockstead.dashboard.breaking import REASON_MAX, Asked, Chosen
from lockstead.dashboard.filters import TEXT_MAX, Filter
from lockstead.views import LockInfo

ROWS_MAX: Final = 1000
"""Locks that can be scrolled to; a filter finds the rest."""

_LATE: Final = float("inf")
SORTS: Final[Mapping[str, Callable[[Entry], Any]]] = {
    "urgency": lambda one: (one.rank, one.key, one.store),
    "key": lambda one: (one.key, one.store),
    "owner": lambda one: (one.held.owner, one.key, one.store),
    "held for": lambda one: (_or_late(one.held.acquired_epoch), one.key, one.store),
    "left": lambda one: (_or_late(one.held.expires_epoch), one.key, one.store),
}
_MOVES: Final = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "home": -ROWS_MAX,
    "g": -ROWS_MAX,
    "end": ROWS_MAX,
    "G": ROWS_MAX,
}


def _or_late(epoch: float | None) -> float:
    return _LATE if epoch is None else epoch


class Mode(Enum):
    """What the keys are for."""

    LIST = auto()
    FILTER = auto()
    SLOT = auto()
    """The number of the permit to break is asked for."""
    REASON = auto()
    CONFIRM = auto()


class Action(Enum):
    """What a key asks of the program."""

    QUIT = auto()
    REFRESH = auto()
    CHOOSE = auto()
    """Look again at the lease of `asked`, which is to be broken."""
    BREAK = auto()
    """Break the lease of `breaking` as `asked` says."""


@dataclass(slots=True)
class State:
    """What is shown. only: the keys that are wanted of a store; None stands for all. height: how many rows fit."""

    listings: Sequence[Listing]
    only: Mapping[str, Collection[str | None]] = field(default_factory=dict)
    mode: Mode = Mode.LIST
    sort: str = "urgency"
    wanted: Filter = field(default_factory=Filter)
    chosen: tuple[str, str] | None = None
    """Store and key of the lock under the cursor."""
    cursor: int = 0
    first: int = 0
    height: int = 20
    text: str = ""
    message: str = ""
    asked: Asked | None = None
    breaking: Chosen | None = None
    is_open: bool = False
    """Whether one lock is shown with all its fields; the cursor stays at it even if it is free."""
    is_backtrace: bool = False
    rows: list[Entry] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def update(self) -> None:
        """Choose the rows anew, after a listing, or for another filter or order. The cursor stays at its lock."""
        listed = chain.from_iterable(one.entries for one in self.listings)
        found = [
            one
            for one in listed
            if not {None, one.key}.isdisjoint(self.only.get(one.store, (None,)))
            and self.wanted.admits(one.store, one.held, one.state)
        ]
        self.counts = Counter(one.state for one in found)
        self.rows = heapq.nsmallest(ROWS_MAX, found, SORTS[self.sort])
        if not self.is_open:
            places = {(one.store, one.key): place for place, one in enumerate(self.rows)}
            self._put(self.cursor if self.chosen is None else places.get(self.chosen, self.cursor))

    def _put(self, cursor: int) -> None:
        self.cursor = max(0, min(cursor, len(self.rows) - 1))
        self.chosen = (self.rows[self.cursor].store, self.rows[self.cursor].key) if self.rows else None

    @property
    def held(self) -> LockInfo | None:
        """The lock under the cursor, as it was listed last; None if it is free."""
        store, key = self.chosen or ("", "")
        return next((one.locks.get(key) for one in self.listings if one.name == store), None)

    def press(self, key: str) -> Action | None:
        """Do what a key does here; return what it asks of the program."""
        self.message = ""
        match self.mode:
            case Mode.LIST:
                return self._in_lock(key) if self.is_open else self._in_list(key)
            case Mode.CONFIRM:
                return self._confirm(key)
            case _:
                return self._type(key)

    def _in_list(self, key: str) -> Action | None:
        if key in _MOVES or key in ("page up", "page down"):
            page = max(1, self.height - 1)
            self._put(self.cursor + _MOVES.get(key, page if key == "page down" else -page))
        elif key == "/":
            self.mode, self.text = Mode.FILTER, self.wanted.q
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
            self.update()
        elif key == ESCAPE:
            self.wanted = Filter()
            self.update()
        elif key in ("enter", "t") and self.rows:
            self.is_open, self.first, self.is_backtrace = True, 0, key == "t"
        else:
            return self._anywhere(key)
        return None

    def _in_lock(self, key: str) -> Action | None:
        if key in ("enter", ESCAPE):
            self.is_open = False
            self.update()
        elif key == "t":
            self.first, self.is_backtrace = 0, not self.is_backtrace
        elif key in _MOVES or key in ("page up", "page down"):
            self.first += _MOVES.get(key, self.height if key == "page down" else -self.height)
        else:
            return self._anywhere(key)
        return None

    def _anywhere(self, key: str) -> Action | None:
        if key == "b":
            self._ask()
        return {"q": Action.QUIT, "r": Action.REFRESH}.get(key)

    def _ask(self) -> None:
        """Begin to break the lease that is shown: no later one, whatever the next listings show."""
        held, chosen = self.held, self.chosen
        if held is None or chosen is None:
            self.message = "there is nothing to break"
        elif held.is_foreign or (held.permits is None and not held.incarnation):
            self.message = "this record is not of lockstead: it cannot be broken here"
        else:
            self.asked = Asked(store=chosen[0], key=chosen[1], incarnation=held.incarnation)
            self.mode, self.text = Mode.REASON if held.permits is None else Mode.SLOT, ""

    def _type(self, key: str) -> Action | None:
        if key == ESCAPE:
            if self.mode is Mode.FILTER:
                self._filter("")
            self.mode = Mode.LIST
        elif key == "enter":
            return self._enter()
        elif key in ("backspace", "clear"):
            self.text = self.text[:-1] if key == "backspace" else ""
        elif len(key) == 1 and len(self.text) < (TEXT_MAX if self.mode is Mode.FILTER else REASON_MAX):
            self.text += key
        if self.mode is Mode.FILTER:
            self._filter(self.text)
        return None

    def _filter(self, text: str) -> None:
        self.wanted = Filter.parse({"q": text})
        self.update()

    def _enter(self) -> Action | None:
        mode, self.mode = self.mode, Mode.LIST
        if mode is Mode.SLOT:
            self._choose_slot()
        elif mode is Mode.REASON and self.asked is not None:
            self.asked = replace(self.asked, reason=self.text.strip())
            if self.asked.reason:
                return Action.CHOOSE
            self.message = "nothing was broken: a break needs a reason"
        return None

    def _choose_slot(self) -> None:
        permits = None if self.held is None else self.held.permits
        held = () if permits is None else permits.held
        one = next((one for one in held if str(one.slot) == self.text.strip()), None)
        if one is None or self.asked is None:
            self.message = f"no permit {self.text.strip()!r} is held"
        else:
            self.asked = replace(self.asked, incarnation=one.incarnation, slot=one.slot)
            self.mode, self.text = Mode.REASON, ""

    def found(self, lease: Chosen | str) -> None:
        """Ask for a confirmation, or show why there is nothing to break."""
        if isinstance(lease, str):
            self.message = lease
        else:
            self.mode, self.breaking = Mode.CONFIRM, lease

    def _confirm(self, key: str) -> Action | None:
        self.mode = Mode.LIST
        if key not in ("y", "R") or self.asked is None:
            self.message = "nothing was broken"
            return None
        self.asked = replace(self.asked, now=key == "R")
        return Action.BREAK
