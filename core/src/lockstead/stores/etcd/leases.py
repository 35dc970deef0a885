"""Decides on which lease of the server a record hangs, and which leases may be kept alive.

One lease a length is shared by all records of this store: taking and giving back a lock then writes twice, and one
request renews a thousand. The price is that a renewal of one record would keep all others alive. So no shared lease
is renewed on which a record hangs that nobody has renewed for a while, or may hang without our knowledge: it is
retired, those that are renewed move to a new one, and what is left ends with it. Must not know requests.
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
    """A record on a lease of ours: its incarnation, when it was last wanted (boot clock), how often it is renewed.

    renew_every is seconds: what the record's owner announced, or the longest that was seen since.
    """

    incarnation: str
    wanted_at: float
    renew_every: float

    def is_overdue(self, now: float) -> bool:
        """Return whether nobody seems to renew it any more."""
        return is_unrenewed(now - self.wanted_at, self.renew_every)


@dataclass(slots=True, eq=False)
class Lease:
    """A lease of the server. asked and granted are seconds; renewed_at is the send that last certainly renewed it.

    members are in the order in which they were last wanted; shortest is the
    shortest of their renew_every.
    """

    id: str
    asked: int
    granted: int
    renewed_at: float
    is_retired: bool = False
    members: dict[Name, Member] = field(default_factory=dict)
    shortest: float = float("inf")

    def is_fresh(self, now: float) -> bool:
        """Return whether another record may be hung on it without renewing it first."""
        return is_fresh(now - self.renewed_at, min(self.asked, self.granted))

    def is_over(self, now: float) -> bool:
        """Return whether the server has dropped it long since, with whatever hung on it."""
        return self.is_retired and now - self.renewed_at > 2 * max(self.asked, self.granted)


@dataclass(slots=True, eq=False)
class DedicatedLease:
    """A lease that carries one record alone, which whoever extends that record keeps alive."""

    id: str
    incarnation: str


@frozen
class Hold:
    """The lease that a record hangs on as far as we know; whether alone, and whether that lease may be renewed."""

    lease: str
    asked: int
    is_alone: bool
    is_good: bool


class Leases:
    """The leases of one store. Safe to share between threads; its lock is held for memory only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[int, Lease] = {}
        self._by_id: dict[str, Lease] = {}
        self._where: dict[Name, Lease] = {}
        self._alone: dict[Name, DedicatedLease] = {}

    # --- which lease ---------------------------------------------------------------------------------------------

    def current(self, ttl: int, now: float) -> Lease | None:
        """Return the lease that records of this length hang on; None if one has to be granted."""
        with self._lock:
            lease = self._current.get(ttl)
            return lease if lease is not None and self._may_renew(lease, now) else None

    def granted(self, lease: Lease) -> Lease:
        """Take up a lease just granted; give the one to use: another thread may have been first."""
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

    def ours(self, lease_id: str, now: float) -> tuple[bool, Lease | None]:
        """Return whether a lease is one of ours, and give it if it may be renewed."""
        with self._lock:
            lease = self._by_id.get(lease_id)
            if lease is None:
                return False, None
            return True, lease if self._may_renew(lease, now) else None

    def wanted(self, records: Sequence[tuple[Name, str]], now: float) -> list[Hold | None]:
        """Note that somebody wants these records (of these incarnations) to live; say what they hang on."""
        with self._lock:
            return self._wanted(records, now)

    def _wanted(self, records: Sequence[tuple[Name, str]], now: float) -> list[Hold | None]:
        for name, incarnation in records:
            lease = self._where.get(name)
            if lease is not None and lease.members[name].incarnation == incarnation:
                self._want(lease, name, now)
        return [self._held(name, incarnation, now) for name, incarnation in records]

    def _held(self, name: Name, incarnation: str, now: float) -> Hold | None:
        alone, lease = self._alone.get(name), self._where.get(name)
        if alone is not None and alone.incarnation == incarnation:
            return Hold(alone.id, 0, is_alone=True, is_good=True)
        if lease is None or lease.members[name].incarnation != incarnation:
            return None
        return Hold(lease.id, lease.asked, is_alone=False, is_good=self._may_renew(lease, now))

    def _want(self, lease: Lease, name: Name, now: float) -> None:
        member = lease.members.pop(name)
        member.renew_every, member.wanted_at = max(member.renew_every, now - member.wanted_at), now
        lease.members[name] = member

    def _may_renew(self, lease: Lease, now: float) -> bool:
        if lease.is_retired:
            return False
        for member in lease.members.values():
            if not is_unrenewed(now - member.wanted_at, lease.shortest):
                break  # the members behind it were wanted later
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
        """Renew this lease no more, and hang nothing on it any more."""
        with self._lock:
            lease = self._by_id.get(lease_id)
            if lease is not None:
                self._retire(lease)

    def _retire(self, lease: Lease) -> None:
        lease.is_retired = True
        if self._current.get(lease.asked) is lease:
            del self._current[lease.asked]

    def hangs(self, name: Name, lease_id: str, incarnation: str, now: float, renew_every: float = 0.0) -> None:
        """Note that a record hangs, or may hang from now on, on this lease, and that somebody wants it to live.

        renew_every is what its owner announced (seconds); 0 if it is not known: then it is what was seen of this
        record, and at least the default for a ttl of the lease's length.
        """
        with self._lock:
            lease, before = self._by_id.get(lease_id), self._where.get(name)
            if lease is None:
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

    def hangs_alone(self, name: Name, lease_id: str, incarnation: str) -> None:
        """Note that a record hangs on a lease of its own."""
        with self._lock:
            self._forget(name)
            if len(self._alone) >= ALONE_MAX:
                self._alone.pop(next(iter(self._alone)))
            self._alone[name] = DedicatedLease(lease_id, incarnation)

    def forget(self, name: Name, incarnation: str) -> None:
        """Note that a record of this incarnation certainly stands no more."""
        with self._lock:
            alone, lease = self._alone.get(name), self._where.get(name)
            if alone is not None and alone.incarnation == incarnation:
                del self._alone[name]
            if lease is not None and lease.members[name].incarnation == incarnation:
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
        """Return the lease for many records on which this one hangs as far as we know."""
        with self._lock:
            lease = self._where.get(name)
            if lease is None or lease.members[name].incarnation != incarnation:
                return None
            return lease.id

    def empty(self) -> list[str]:
        """Return the leases on which nothing of ours hangs: they may end with the store."""
        with self._lock:
            leases = [*self._by_id.values()]
        return [lease.id for lease in leases if not lease.members and not lease.is_retired]
