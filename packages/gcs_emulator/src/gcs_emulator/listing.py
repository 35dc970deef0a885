"""Pages of a listing: prefix, delimiter, offsets and page tokens.

No I/O. An entry is an object's name or, with a delimiter, a common prefix of names. A page ends after `maxResults`
entries, and its token contains the last one.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gcs_emulator.conditions import whole_number
from gcs_emulator.errors import ApiError

PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """One page: object names, common prefixes, and the token of the next page (None on the last page)."""

    names: tuple[str, ...]
    prefixes: tuple[str, ...]
    next_token: str | None


def page(sorted_names: Iterable[str], query: Mapping[str, str]) -> Page:
    """Return one page of a listing; raises ApiError 400 for an invalid token or number."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    start, end = query.get("startOffset", ""), query.get("endOffset", "")
    after = _read_token(query.get("pageToken", ""))
    limit = min(whole_number(query, "maxResults") or PAGE_MAX, PAGE_MAX)
    names: list[str] = []
    prefixes: list[str] = []
    last = ""
    for name in sorted_names:
        if not name.startswith(prefix) or name < start or (end and name >= end):
            continue
        entry = _entry(name, prefix, delimiter)
        if entry <= after or (prefixes and entry == prefixes[-1]):
            continue
        if len(names) + len(prefixes) == limit:
            return Page(tuple(names), tuple(prefixes), _token(last))
        (names if entry == name and not _is_shared(entry, prefix, delimiter) else prefixes).append(entry)
        last = entry
    return Page(tuple(names), tuple(prefixes), None)


def _entry(name: str, prefix: str, delimiter: str) -> str:
    at = name.find(delimiter, len(prefix)) if delimiter else -1
    return name if at < 0 else name[: at + len(delimiter)]


def _is_shared(entry: str, prefix: str, delimiter: str) -> bool:
    return bool(delimiter) and entry.find(delimiter, len(prefix)) >= 0


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _read_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        raise ApiError(400, "Invalid value for pageToken.") from None
