"""Who left a lock unclean, and how that is said: also to those who come after one who was refused for it.

Who is refused gives the lock back as unclean, so the record names the one who was refused as its last holder. The audit
entry that this leaves says, in the words of here, who it was that did not end cleanly.
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
    """Who did not end cleanly, on which key; owner is empty if nobody knows."""

    key: str
    owner: str
    ending: LeaseOutcome

    def __str__(self) -> str:
        return f"the lease of {self.owner or UNKNOWN!r} on {self.key!r} ended {self.ending.value}"


def last(key: str, before: PreviousLease, own: str | None = None) -> Unclean | None:
    """Return who held a lock before, if that one did not end cleanly, and was not `own`."""
    return Unclean(key, before.owner, before.ending) if before.ending.is_unclean and before.owner != own else None


def origin(last: Unclean, before: PreviousLease, broken: Iterable[AuditEntry]) -> Unclean:
    """Return who it was at first: if the last holder was refused for the sake of another one, that one.

    broken: the leases of this lock that were broken. Who is refused breaks its own lease, and says for whom.
    """
    for entry in broken:
        if entry.holder == before.holder and entry.by == entry.holder:
            return _said(last.key, entry.reason) or last
    return last


def _said(key: str, reason: str) -> Unclean | None:
    """Read what `str` wrote; None if it is anything else. Nothing is evaluated: it is what it is if written again."""
    found = re.fullmatch(f"the lease of (['\"])(.+)\\1 on {re.escape(repr(key))} ended ([A-Z]+)", reason)
    if found is None or found[3] not in LeaseOutcome.__members__:
        return None
    owner = found[2].replace("\\'", "'").replace("\\\\", "\\")
    said = Unclean(key, "" if owner == UNKNOWN else owner, LeaseOutcome[found[3]])
    return said if str(said) == reason else None
