"""The filter of the page: parsed from its URL, written back to it, matched against locks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
        """Whether the page shows a lock of a store that is in a state."""
        return self.matcher()(store, held, state)

    def matcher(self) -> Callable[[str, LockInfo, str], bool]:
        """Return what does the same for very many locks."""
        text, owner = self.q.casefold(), self.owner.casefold()
        name, equals, value = self.label.partition("=")

        def admits(store: str, held: LockInfo, state: str) -> bool:
            return (
                (not self.state or state == self.state)
                and (not self.store or store == self.store)
                and (not owner or owner in _joined(_owners(held)))
                and (not name or any(_has(one.labels, name, value if equals else None) for one in _leases(held)))
                and (not text or text in held.key.casefold() or text in _joined(_texts(held)))
            )

        return admits


def _joined(texts: Iterable[str | None]) -> str:
    """Return texts as one; none of them has a line break."""
    return "\n".join(filter(None, texts)).casefold()


def _has(labels: Mapping[str, str], name: str, value: str | None) -> bool:
    return name in labels if value is None else labels.get(name) == value


def _leases(held: LockInfo) -> Iterable[LockInfo]:
    if held.permits is not None:
        return (held, *held.permits.held)
    return (held, *held.readers) if held.readers else (held,)


def _owners(held: LockInfo) -> Iterator[str]:
    for one in _leases(held):
        yield one.owner
        yield one.holder


def _texts(held: LockInfo) -> Iterator[str | None]:
    for one in _leases(held):
        yield from (one.owner, one.holder, one.purpose, one.progress, one.host, one.value)
        yield from one.labels.values()
