"""The parts of all scripts: reading a record, and granting, renewing and ending leases of the server.

A script yields requests and is sent their replies, or a StoreError is thrown in. Must not know connections, nor what a
record is for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError
from lockstead.frozen import frozen
from lockstead.script import Script
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.encoding import Json, Kv, Request, Response, Root
from lockstead.stores.etcd.errors import LeaseGone, answered, each_answered
from lockstead.stores.etcd.leases import Lease, Leases
from lockstead.values import Name

T = TypeVar("T")
Operation: TypeAlias = Script[Request, Response, T]
"""Returns the result of one command, or of one step of it."""

ATTEMPTS_MAX: Final = 16
"""Attempts of one script; each but the first is caused by a change from elsewhere."""

STRAYS_MAX: Final = 60
"""Keys of a queue that are cleared together: etcd takes 128 operations in a transaction."""


@frozen
class Beat:
    """A lease that was granted or renewed. ttl is what the server granted (seconds); sent_at is on the boot clock.

    term is that of a KeepAlive's reply, which must be proved; None if there is nothing left to prove.
    """

    lease: str
    ttl: int
    sent_at: float
    term: str | None

    def proves(self, kv: Kv, term: str) -> bool:
        """Return whether the lease of a record, which was read in this term afterwards, was renewed."""
        return self.lease == kv.lease and self.is_proved(term)

    def is_proved(self, term: str) -> bool:
        """Return whether a reply to a later request proves that the lease was renewed.

        An old leader that is cut off continues to renew leases, but the new one counts them from its election.
        """
        return self.term is None or self.term == term


def ask(request: Request) -> Operation[Json]:
    """Yield a request and return the body of its reply. Raises StoreError or LeaseGone."""
    response = yield request
    return answered(response, request)


def term_of(body: Json) -> str:
    """Return the raft term of a reply."""
    return str(body["header"].get("raft_term", ""))


def look(root: Root, name: Name) -> Operation[tuple[Kv | None, str]]:
    """Return a record, and the term in which it was read."""
    body = yield from ask(encoding.txn("Range", encoding.seeking(root.base(name))))
    return encoding.sought(body["responses"]), term_of(body)


def cleared(root: Root, name: Name) -> Operation[bool]:
    """Delete keys without a lease from a queue: they are not places of waiters, and would never end.

    Return True if something was deleted, so that it is worthwhile to read the queue again.
    """
    queue = encoding.below(root.queue(name))
    body = yield from ask(encoding.range_of("Range", queue, limit=str(STRAYS_MAX), keys_only=True))
    strays = [item["key"] for item in body.get("kvs", ()) if item.get("lease", encoding.NO_LEASE) == encoding.NO_LEASE]
    if not strays:
        return False
    same = [encoding.compared({"key": stray}, "lease", encoding.NO_LEASE) for stray in strays]
    gone = [encoding.delete({"key": stray}) for stray in strays]
    deleted = yield from ask(encoding.txn("Clear", gone, when=same))
    return bool(deleted.get("succeeded"))


def strays(root: Root, at_most: int, *, deletes: bool) -> Operation[list[str]]:
    """Return keys without a lease in all queues, at most so many, and delete them unless one was changed meanwhile."""
    folder = f"{root.text}queue/"
    start, found = folder, list[str]()
    while len(found) < at_most:
        keys = encoding.between(start, encoding.end_of(folder))
        body = yield from ask(encoding.range_of("Range", keys, limit=str(encoding.GETS_MAX), keys_only=True))
        read = body.get("kvs", [])
        some = [one for one in read if not encoding.is_place(one)][: at_most - len(found)]
        if some and deletes:
            named = [({"key": one["key"]}, one["mod_revision"]) for one in some]
            same = [encoding.compared(key, "mod_revision", changed) for key, changed in named]
            body = yield from ask(encoding.txn("Clear", [encoding.delete(key) for key, _ in named], when=same))
            some = some if body.get("succeeded") else []
        found += [encoding.text(one["key"]).removeprefix(folder) for one in some]
        if len(read) < encoding.GETS_MAX:
            break
        start = encoding.text(read[-1]["key"]) + "\0"
    return found


def grant(ttl: int) -> Operation[Beat]:
    """Return a new lease."""
    request = encoding.grant(ttl)
    response = yield request
    body = answered(response, request)
    return Beat(body["ID"], int(body["TTL"]), response.sent_at, None)


def keep_alive(*leases: str) -> Operation[dict[str, Beat]]:
    """Renew leases by one request; return those that still exist."""
    request = encoding.keep_alive(*leases)
    response = yield request
    beats = {}
    for body in each_answered(response, request):
        lease, ttl = str(body["ID"]), int(body.get("TTL", 0))
        if ttl > 0 and lease in leases:
            beats[lease] = Beat(lease, ttl, response.sent_at, term_of(body))
    return beats


def shared(leases: Leases, ttl: int) -> Operation[Beat]:
    """Return the lease that records of this length share: granted if there is none, renewed if it is not fresh."""
    now = boot_now()
    lease = leases.current(ttl, now)
    if lease is not None:
        if lease.is_fresh(now):
            return Beat(lease.id, lease.granted, lease.renewed_at, None)
        beat = (yield from keep_alive(lease.id)).get(lease.id)
        if beat is not None:
            return beat
        leases.retire(lease.id)
    granted = yield from grant(ttl)
    made = Lease(granted.lease, ttl, granted.ttl, granted.sent_at)
    used = leases.granted(made)
    if used is made:
        return granted
    yield from end(made.id)
    return Beat(used.id, used.granted, used.renewed_at, None)


def end(lease: str) -> Operation[None]:
    """End a lease that has no records; if that fails, it expires."""
    with suppress(StoreError, LeaseGone):
        yield from ask(encoding.revoke(lease))


def lifetime(min_retention: float, beat: Beat) -> float | None:
    """Return the ttl (seconds) that the server granted, if it is shorter than requested; else None."""
    return None if beat.ttl >= min_retention else float(beat.ttl)


def doubtful(error: StoreError, what: str) -> OutcomeUnknown:
    """Return the error for a failure after a write that succeeded."""
    return OutcomeUnknown(f"{what}, and what had to follow failed: {error}")
