"""The filter of the page: parsed from its URL, written back to it, matched against locks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from lockstead.dashboard.rows import URGENCY

if TYPE_CHECKING:
    from lockstead.views import LockInfo

TEXT_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which locks the page shows; an empty text admits all. label: `name`, or `name=text`."""

    q: str = ""
    store: str = ""
    owner: str = ""
    label: str = ""
    state: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filter:
        """Return the filter of a URL. A state that there is none of admits nothing, so it is left out."""
        said = {name: query.get(name, "").strip()[:TEXT_MAX] for name in cls.__slots__}
        if said["state"] not in URGENCY:
            said["state"] = ""
        return cls(**said)

    @property
    def query(self) -> str:
        """The filter as the query of a URL: the same text for the same filter."""
        return urlencode({name: text for name, text in self._said() if text})

    @property
    def is_empty(self) -> bool:
        """Whether it admits everything."""
        return not any(text for _name, text in self._said())

    def without(self, name: str) -> str:
        """Return the query of this filter without one of its parts."""
        return urlencode({other: text for other, text in self._said() if text and other != name})

    def _said(self) -> Iterator[tuple[str, str]]:
        return ((name, getattr(self, name)) for name in type(self).__slots__)

    def admits(self, store: str, held: LockInfo, state: str) -> bool:
        """Whether the page shows a lock that is in this state."""
        if self.state and state != self.state:
            return False
        if self.store and store != self.store:
            return False
        if self.owner and not any(_in(self.owner, text) for text in _owners(held)):
            return False
        if self.label and not any(_has_label(self.label, one.labels) for one in _leases(held)):
            return False
        return not self.q or any(_in(self.q, text) for text in _texts(held))


def _in(part: str, text: str | None) -> bool:
    return text is not None and part.casefold() in text.casefold()


def _leases(held: LockInfo) -> Iterator[LockInfo]:
    yield held
    yield from held.readers
    if held.permits is not None:
        yield from held.permits.held


def _owners(held: LockInfo) -> Iterator[str]:
    for one in _leases(held):
        yield one.owner
        yield one.holder


def _texts(held: LockInfo) -> Iterator[str | None]:
    yield held.key
    for one in _leases(held):
        yield from (one.owner, one.holder, one.purpose, one.progress, one.host, one.value)
        yield from one.labels.values()


def _has_label(wanted: str, labels: Mapping[str, str]) -> bool:
    name, equals, text = wanted.partition("=")
    return labels.get(name) == text if equals else name in labels
