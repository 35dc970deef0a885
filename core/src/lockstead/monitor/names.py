"""Names of locks in metrics: the user maps keys to few names, because every name is a time series."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, Self

from lockstead.protocol.record import shortened
from lockstead.reading import clean

NAMES_MAX: Final = 100
NAME_BYTES_MAX: Final = 100

OTHER: Final = "other"
"""The name of every key that no pattern matches, and of those beyond the limit."""


class LockNames:
    """A map of keys to at most 100 names. Patterns are those of a shell, the first that matches counts.

    `apt-*=apt` gives all matching keys one name; `apt-*` leaves each its own.
    """

    def __init__(self, patterns: Sequence[tuple[str, str | None]] = ()) -> None:
        self._patterns = tuple(patterns)
        self._names = {OTHER, *[name for _, name in patterns if name is not None]}

    @classmethod
    def parse(cls, labels: Sequence[str]) -> Self:
        """Parse `PATTERN=NAME` and `PATTERN`; ValueError if one is neither, or if there are too many names."""
        patterns: list[tuple[str, str | None]] = []
        for label in labels:
            pattern, equals, name = label.rpartition("=") if "=" in label else (label, "", "")
            if not pattern or (equals and (not name or clean(name) != name or len(name.encode()) > NAME_BYTES_MAX)):
                raise ValueError(f"a lock label is PATTERN=NAME or PATTERN, as in 'apt-*=apt', not {label[:60]!r}")
            patterns.append((pattern, name if equals else None))
        made = cls(patterns)
        if len(made._names) > NAMES_MAX:
            raise ValueError(f"there are {len(made._names) - 1} names of locks; there may be {NAMES_MAX - 1}")
        return made

    def name(self, key: str) -> str:
        """Return the name of a key."""
        for pattern, name in self._patterns:
            if fnmatchcase(key, pattern):
                return self._own(key) if name is None else name
        return OTHER

    def _own(self, key: str) -> str:
        name = shortened(clean(key), NAME_BYTES_MAX)
        if name not in self._names:
            if len(self._names) >= NAMES_MAX:
                return OTHER
            self._names.add(name)
        return name
