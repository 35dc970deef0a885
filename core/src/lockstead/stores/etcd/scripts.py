"""How leases of the server are granted, renewed and ended: the parts that all scripts consist of.

A script yields requests and is sent their answers; where there is none, a StoreError is thrown in. Must not know
connections, nor what a record is for.
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
"""Returns what one command, or one step of it, came to."""

TURNS_MAX: Final = 16
"""Turns of one script. Each but the first is caused by a change that somebody else made."""

STRAYS_MAX: Final = 60
"""Keys of a queue that are looked at together: etcd takes 128 operations in a transaction."""


@frozen
class Beat:
    """A lease that was granted or renewed. ttl is what the server gave (seconds); sent_at is on the boot clock.

    term is that of a KeepAlive's answer, which is to be proved; None where nothing is left to prove.
    """

    lease: str
    ttl: int
    sent_at: float
    term: str | None
    is_alone: bool = False

    def is_proved(self, term: str) -> bool:
        """Return whether an answer to what was sent afterwards proves that the lease was renewed.

        An old leader that is cut off goes on renewing leases, while the new one counts from its election.
        """
        return self.term is None or self.term == term


def ask(request: Request) -> Operation[Json]:
    """Yield one request and give the body of its answer. Raises StoreError or LeaseGone."""
    response = yield request
    return answered(response, request)


def term_of(body: Json) -> str:
    """Return the term under which an answer was given."""
    return str(body["header"].get("raft_term", ""))


def look(root: Root, name: Name) -> Operation[tuple[Kv | None, str]]:
    """Return a record as it stands, and the term in which it was read."""
    body = yield from ask(encoding.txn("Range", [], encoding.seeking(root.base(name)), []))
    return encoding.sought(body["responses"]), term_of(body)


def cleared(root: Root, key: str) -> Operation[bool]:
    """Delete what stands in the queue of a key without a lease: no place of ours, and it would stand there forever.

    True if something was deleted, so that the queue is worth another look.
    """
    queue = root.queue(key)
    body = yield from ask(
        encoding.range_of("Range", queue, encoding.end_of(queue), limit=str(STRAYS_MAX), keys_only=True)
    )
    strays = [item["key"] for item in body.get("kvs", ()) if item.get("lease", encoding.NO_LEASE) == encoding.NO_LEASE]
    if not strays:
        return False
    same = [{"target": "LEASE", "result": "EQUAL", "key": stray, "lease": encoding.NO_LEASE} for stray in strays]
    gone = [{"request_delete_range": {"key": stray}} for stray in strays]
    deleted = yield from ask(encoding.txn("Clear", same, gone, []))
    return bool(deleted.get("succeeded"))


def grant(ttl: int) -> Operation[Beat]:
    """Get a new lease."""
    request = encoding.grant(ttl)
    response = yield request
    body = answered(response, request)
    return Beat(body["ID"], int(body["TTL"]), response.sent_at, None)


def keep_alive(leases: Leases, lease: str, *, is_alone: bool = False) -> Operation[Beat | None]:
    """Renew one lease; None if it is gone."""
    request = encoding.keep_alive(lease)
    response = yield request
    return beats_in(leases, request, response, {lease: is_alone}).get(lease)


def beats_in(leases: Leases, request: Request, response: Response, asked: dict[str, bool]) -> dict[str, Beat]:
    """Read the answers to a KeepAlive of several leases; what is gone is missing. asked: lease, and is it alone?"""
    beats = {}
    for body in each_answered(response, request):
        lease, ttl = str(body["ID"]), int(body.get("TTL", 0))
        if ttl > 0 and lease in asked:
            beats[lease] = Beat(lease, ttl, response.sent_at, term_of(body), asked[lease])
        else:
            leases.retire(lease)
    return beats


def shared(leases: Leases, ttl: int) -> Operation[Beat]:
    """Return the lease that records of this length hang on: granted if there is none, renewed if it is not fresh."""
    now = boot_now()
    lease = leases.current(ttl, now)
    if lease is not None:
        if lease.is_fresh(now):
            return Beat(lease.id, lease.granted, lease.renewed_at, None)
        beat = yield from keep_alive(leases, lease.id)
        if beat is not None:
            return beat
    granted = yield from grant(ttl)
    made = Lease(granted.lease, ttl, granted.ttl, granted.sent_at)
    used = leases.granted(made)
    if used is made:
        return granted
    yield from end(made.id)
    return Beat(used.id, used.granted, used.renewed_at, None)


def end(lease: str) -> Operation[None]:
    """End a lease that carries nothing any more; if that fails, it runs out by itself."""
    with suppress(StoreError, LeaseGone):
        yield from ask(encoding.revoke(lease))


def lifetime(min_retention: float, beat: Beat) -> float | None:
    """Return how long (seconds) the server lets a record live, if that is less than was asked; None if it is not."""
    return None if beat.ttl >= min_retention else float(beat.ttl)


def doubtful(error: StoreError, what: str) -> OutcomeUnknown:
    """Put a failure that came after a write succeeded into words."""
    return OutcomeUnknown(f"{what}, and what had to follow failed: {error}")
