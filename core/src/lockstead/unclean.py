"""The holder that left a lock unclean, also for callers after one that was refused because of it.

A refused caller releases the lock as unclean, so the record names that caller as the last holder. The reason in its
audit entry, in the format of `Unclean`, names the holder that did not end cleanly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.values import LeaseOutcome

if TYPE_CHECKING:
    from lockstead.values import PreviousLease
    from lockstead.views import AuditEntry

UNKNOWN: Final = "an unknown owner"


@dataclass(frozen=True, slots=True)
class Unclean:
    """The holder that did not end cleanly, and the key; owner is empty if it is unknown."""

    key: str
    owner: str
    ending: LeaseOutcome

    def __str__(self) -> str:
        return f"the lease of {self.owner or UNKNOWN!r} on {self.key!r} ended {self.ending.value}"


def last(key: str, before: PreviousLease, own: str | None = None) -> Unclean | None:
    """Return the previous holder, if it did not end cleanly and was not `own`."""
    return Unclean(key, before.owner, before.ending) if before.ending.is_unclean and before.owner != own else None


def origin(last: Unclean, before: PreviousLease, broken: Iterable[AuditEntry]) -> Unclean:
    """Return the original unclean holder: if the last holder was refused because of another one, that one.

    broken: the broken leases of this lock. A refused caller breaks its own lease, and names the original holder.
    """
    for entry in broken:
        if entry.holder == before.holder and entry.by == entry.holder:
            return _said(last.key, entry.reason) or last
    return last


def _said(key: str, reason: str) -> Unclean | None:
    """Parse the output of `str`; None if it is anything else. Nothing is evaluated: it is valid if it is written
    back unchanged."""
    found = re.fullmatch(f"the lease of (['\"])(.+)\\1 on {re.escape(repr(key))} ended ([A-Z]+)", reason)
    if found is None or found[3] not in LeaseOutcome.__members__:
        return None
    owner = found[2].replace("\\'", "'").replace("\\\\", "\\")
    said = Unclean(key, "" if owner == UNKNOWN else owner, LeaseOutcome[found[3]])
    return said if str(said) == reason else None
