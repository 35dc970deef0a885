"""On which lease of the server each record hangs, and which leases may be kept alive.

All records of this store with one ttl share a lease: then a cycle is two writes, and one request renews a thousand
records. But the renewal of one record would keep all others alive. So a shared lease is retired (not renewed any more)
if a record on it was not renewed for a while, or may hang on it without our knowledge: renewed records then move to a
new lease, and the others end with the old one. Must not know requests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lockstead.frozen import frozen
from lockstead.renewal import default_renew_every, is_fresh, is_unrenewed
from lockstead.values import Name

ALONE_MAX: Final = 10_000


@dataclass(slots=True)
class Member:
    """A record on a shared lease. wanted_at: when its last renewal was requested (boot clock).

    renew_every is seconds: what the record's owner announced, or the longest interval since.
    """

    incarnation: str
    wanted_at: float
    renew_every: float

    def is_overdue(self, now: float) -> bool:
        """Return whether it seems not to be renewed any more."""
        return is_unrenewed(now - self.wanted_at, self.renew_every)


@dataclass(slots=True, eq=False)
class Lease:
    """A shared lease. asked and granted are its ttl in seconds; renewed_at is when the last proved renewal was sent.

    members are in the order of their wanted_at; shortest is the shortest of their renew_every.
    """

    id: str
    asked: int
    granted: int
    renewed_at: float
    is_retired: bool = False
    members: dict[Name, Member] = field(default_factory=dict)
    shortest: float = float("inf")

    def is_fresh(self, now: float) -> bool:
        """Return whether it can take another record without being renewed first."""
        return is_fresh(now - self.renewed_at, min(self.asked, self.granted))

    def is_over(self, now: float) -> bool:
        """Return whether it has certainly ended at the server, with all its records."""
        return self.is_retired and now - self.renewed_at > 2 * max(self.asked, self.granted)


@frozen
class Hold:
    """The lease that a record hangs on as far as we know, and whether that lease may be renewed."""

    lease: str
    is_good: bool


class Leases:
    """The leases of one store. Safe to share between threads; its lock is held for memory only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[int, Lease] = {}
        self._by_id: dict[str, Lease] = {}
        self._where: dict[Name, Lease] = {}
        self._alone: dict[Name, tuple[str, str]] = {}
        """Records on a lease of their own: incarnation and lease."""

    # --- which lease ---------------------------------------------------------------------------------------------

    def current(self, ttl: int, now: float) -> Lease | None:
        """Return the lease for records with this ttl; None if one must be granted."""
        with self._lock:
            lease = self._current.get(ttl)
            return lease if lease is not None and self._may_renew(lease, now) else None

    def granted(self, lease: Lease) -> Lease:
        """Note a lease that was granted, and return the one to use: another thread may have been first."""
        with self._lock:
            standing = self._current.get(lease.asked)
            if standing is not None and not standing.is_retired:
                return standing
            self._forget_over(lease.renewed_at)
            self._current[lease.asked] = lease
            self._by_id[lease.id] = lease
            return lease

    def _forget_over(self, now: float) -> None:
        for old in [old for old in self._by_id.values() if old.is_over(now)]:
            del self._by_id[old.id]
            for name in old.members:
                del self._where[name]

    def ours(self, lease_id: str, now: float) -> tuple[bool, bool]:
        """Return whether a lease is a shared one of this store, and whether it may be renewed."""
        with self._lock:
            lease = self._by_id.get(lease_id)
            return lease is not None, lease is not None and self._may_renew(lease, now)

    def wanted(self, records: Sequence[tuple[Name, str]], now: float) -> list[Hold | None]:
        """Note that these records (of these incarnations) are renewed, and return what they hang on."""
        with self._lock:
            return self._wanted(records, now)

    def _wanted(self, records: Sequence[tuple[Name, str]], now: float) -> list[Hold | None]:
        # no loop directly in a `with` statement: a Ctrl-C at its jump back would skip the exit
        leases = [self._lease(*record) for record in records]
        for (name, _incarnation), lease in zip(records, leases, strict=True):
            if lease is not None:
                member = lease.members.pop(name)
                member.renew_every, member.wanted_at = max(member.renew_every, now - member.wanted_at), now
                lease.members[name] = member
        return [self._hold(record, lease, now) for record, lease in zip(records, leases, strict=True)]

    def _lease(self, name: Name, incarnation: str) -> Lease | None:
        """Return the shared lease on which this incarnation of a record hangs."""
        lease = self._where.get(name)
        return lease if lease is not None and lease.members[name].incarnation == incarnation else None

    def _hold(self, record: tuple[Name, str], lease: Lease | None, now: float) -> Hold | None:
        if lease is not None:
            return Hold(lease.id, is_good=self._may_renew(lease, now))
        incarnation, alone = self._alone.get(record[0], ("", ""))
        return Hold(alone, is_good=True) if incarnation == record[1] else None

    def _may_renew(self, lease: Lease, now: float) -> bool:
        if lease.is_retired:
            return False
        for member in lease.members.values():
            if not is_unrenewed(now - member.wanted_at, lease.shortest):
                break  # the following members were wanted later
            if member.is_overdue(now):
                self._retire(lease)
                return False
        return True

    # --- what becomes of them ------------------------------------------------------------------------------------

    def beat(self, lease_id: str, sent_at: float, granted: int) -> None:
        """Note that a lease was certainly renewed."""
        with self._lock:
            lease = self._by_id.get(lease_id)
            if lease is not None:
                lease.renewed_at, lease.granted = max(lease.renewed_at, sent_at), granted

    def retire(self, lease_id: str) -> None:
        """Neither renew this lease nor use it for other records any more."""
        with self._lock:
            lease = self._by_id.get(lease_id)
            if lease is not None:
                self._retire(lease)

    def _retire(self, lease: Lease) -> None:
        lease.is_retired = True
        if self._current.get(lease.asked) is lease:
            del self._current[lease.asked]

    def hangs(
        self,
        name: Name,
        lease_id: str,
        incarnation: str,
        now: float,
        renew_every: float = 0.0,
        *,
        is_alone: bool = False,
    ) -> None:
        """Note that a record hangs, or may hang from now on, on this lease, and is renewed.

        renew_every is what its owner announced (seconds); 0 if it is not known: then it is what was seen of this
        record, and at least the default for a ttl of the lease's length. is_alone: no other record hangs on the lease.
        """
        with self._lock:
            lease, before = self._by_id.get(lease_id), self._where.get(name)
            if lease is None:
                if is_alone:
                    self._forget(name)
                    self._alone[name] = (incarnation, lease_id)
                    if len(self._alone) > ALONE_MAX:
                        del self._alone[next(iter(self._alone))]
                return
            every = renew_every or default_renew_every(lease.asked)
            if before is not None:
                member = before.members[name]
                # an answer that comes late must not put an older record in the place of one that we have to watch
                if int(member.incarnation) > int(incarnation):
                    return
                if member.incarnation == incarnation:
                    every = max(renew_every or member.renew_every, now - member.wanted_at)
                del before.members[name]
                if before is not lease:
                    self._prune(before)
            lease.members[name] = Member(incarnation, now, every)
            lease.shortest = min(lease.shortest, every)
            self._where[name] = lease
            self._alone.pop(name, None)

    def forget(self, name: Name, incarnation: str) -> None:
        """Note that this incarnation of a record certainly does not exist any more."""
        with self._lock:
            alone = self._alone.get(name)
            if self._lease(name, incarnation) is not None or (alone is not None and alone[0] == incarnation):
                self._forget(name)

    def _forget(self, name: Name) -> None:
        self._alone.pop(name, None)
        lease = self._where.pop(name, None)
        if lease is not None:
            lease.members.pop(name, None)
            self._prune(lease)

    def _prune(self, lease: Lease) -> None:
        if lease.is_retired and not lease.members:
            self._by_id.pop(lease.id, None)

    def of(self, name: Name, incarnation: str) -> str | None:
        """Return the shared lease on which this record hangs as far as we know."""
        with self._lock:
            lease = self._lease(name, incarnation)
            return None if lease is None else lease.id

    def empty(self) -> list[str]:
        """Return the leases without records, which can be ended with the store."""
        with self._lock:
            leases = [*self._by_id.values()]
        return [lease.id for lease in leases if not lease.members and not lease.is_retired]
