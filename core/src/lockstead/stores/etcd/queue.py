"""Queues of waiters: places on a lease of this store, its session, in the order of their create revisions.

A request to take a place may arrive late, after its waiter has left. So it compares a guard, a key on the same lease,
and a waiter that leaves after such a request changes the guard in the transaction that removes the place: a late
request then fails. If the lease is gone, so are its places. Must not know connections.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.record import number
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.encoding import Json, Kv, Root
from lockstead.stores.etcd.errors import LeaseGone
from lockstead.stores.etcd.scripts import ATTEMPTS_MAX, Operation, ask, cleared, end, grant, keep_alive
from lockstead.stores.port import STANDINGS_MAX, Standing
from lockstead.values import Name

SESSION_TTL: Final = 10
"""Seconds after which the places of a dead process end."""

BEAT_EVERY: Final = 2.5
"""Seconds after which the session is renewed while there are waiters."""


@dataclass(slots=True, eq=False)
class Session:
    """The lease that all places of a store hang on. guard is the revision of its guard, "0" while there is none."""

    lease: str
    beaten_at: float
    guard: str = "0"


@dataclass(slots=True, eq=False)
class Place:
    """A waiter's place in the queue of a lock: its create revision, None while it has none.

    doubt: the session on which a request to take it may still arrive. has_left: it must not be taken any more.
    is_acquiring: a Create or Replace of the waiter is in flight, which may end it, so it must not be taken meanwhile.
    """

    name: Name
    waiter_id: str
    created: str | None = None
    doubt: Session | None = None
    has_left: bool = False
    is_acquiring: bool = False

    @property
    def id(self) -> tuple[Name, str]:
        """The lock and the waiter."""
        return self.name, self.waiter_id


@dataclass(slots=True)
class Observation:
    """A queue as read at a revision: whether the place is in it, the key of the place ahead, and the record."""

    is_in_queue: bool
    ahead: str | None
    record: Kv | None
    revision: int


@dataclass(slots=True)
class Queue:
    """The places of one store. Safe to share between threads; its lock is held for memory only."""

    root: Root
    session: Session | None = None
    wall: Callable[[], float] = time.time
    """Seconds since the epoch, noted with a place for people to read."""
    places: dict[tuple[Name, str], Place] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    # --- what is known -------------------------------------------------------------------------------------------

    def find(self, name: Name, waiter_id: str) -> Place | None:
        """Return the place of a waiter that queues in this store."""
        with self.lock:
            return self.places.get((name, waiter_id))

    def enter(self, name: Name, waiter_id: str) -> Place:
        """Return the place of a waiter; create it if there is none."""
        with self.lock:
            place = self.places.setdefault((name, waiter_id), Place(name, waiter_id))
            place.is_acquiring = False
            return place

    @contextmanager
    def acquiring(self, name: Name, waiter_id: str) -> Iterator[Place | None]:
        """Keep the place of a waiter, if there is one, from being taken while the waiter acquires the lock.

        After an unknown outcome too, until `enter` is called again: the lock may have been granted.
        """
        place = None
        with self.lock:
            if waiter_id and (place := self.places.get((name, waiter_id))) is not None:
                place.is_acquiring = True
        try:
            yield place
        except (StoreUnavailable, StoreRefused):
            if place is not None:
                place.is_acquiring = False
            raise
        if place is not None:
            place.is_acquiring = False

    def _begins_to_take(self, place: Place, session: Session) -> bool:
        """Note that a request to take a place will be sent; return False if it must not be taken."""
        with self.lock:
            if place.has_left or place.is_acquiring:
                return False
            place.doubt = session
            return True

    def note_place(self, name: Name, waiter_id: str, created: str | None) -> Place:
        """Note the create revision of a place; that of a waiter that does not queue in this store is not kept."""
        with self.lock:
            place = self.places.get((name, waiter_id)) or Place(name, waiter_id)
            place.created = created
            return place

    def closing(self, place: Place | None) -> list[Json]:
        """Return the operations that, together with removing a place, prevent a late request from taking it again."""
        if place is None or place.doubt is None:
            return []
        lease = place.doubt.lease
        return [encoding.put(self.root.session(lease), place.waiter_id, lease)]

    def granted(self, place: Place, revision: str) -> None:
        """Forget a place that was removed at this revision."""
        with self.lock:
            # the waiter may have entered again meanwhile; that place must not be taken either
            for one in {place, self.places.pop(place.id, place)}:
                if one.doubt is not None:
                    one.doubt.guard = revision
                one.doubt, one.created, one.has_left = None, None, True

    def forget(self) -> list[str]:
        """Forget all places; return the lease to end, if there is one."""
        with self.lock:
            session, self.session = self.session, None
            places = list(self.places.values())
            self.places.clear()
        for place in places:
            place.has_left = True
        return [] if session is None else [session.lease]

    # --- scripts -------------------------------------------------------------------------------------------------

    def beat(self) -> Operation[Session]:
        """Return the session, renewed if that is due, or a new one."""
        with self.lock:
            session = self.session
        now = boot_now()
        if session is not None and now - session.beaten_at < BEAT_EVERY:
            return session
        if session is not None:
            beat = (yield from keep_alive(session.lease)).get(session.lease)
            if beat is not None:
                session.beaten_at = beat.sent_at
                return session
            self._lost(session)
        made = yield from grant(SESSION_TTL)
        session = Session(made.lease, made.sent_at)
        with self.lock:
            if self.session is None:
                self.session = session
                return session
            standing = self.session
        yield from end(made.lease)
        return standing

    def _lost(self, session: Session) -> None:
        with self.lock:
            if self.session is session:
                self.session = None

    def check_session(self, place: Place | None) -> Operation[None]:
        """Check the session after some lease was found gone: if it was the session's, no late request can succeed."""
        session = None if place is None else place.doubt
        if place is None or session is None:
            return
        if not (yield from keep_alive(session.lease)):
            place.doubt = None
            self._lost(session)

    def take(self, place: Place) -> Operation[None]:
        """Try once to take a place; not if its waiter has left or is acquiring the lock. Raises StoreError."""
        session = yield from self.beat()
        before = place.doubt
        if not self._begins_to_take(place, session):
            return
        key, guard = self.root.place(place.name, place.waiter_id), self.root.session(session.lease)
        put = encoding.put(key, number(self.wall()), session.lease)
        when = [
            encoding.compared(encoding.at(key), "create_revision", "0"),
            encoding.compared(encoding.at(guard), "mod_revision", session.guard),
        ]
        found = [encoding.get(encoding.at(one)) for one in (key, guard)]
        try:
            body = yield from ask(encoding.txn("Queue", [put], when=when, otherwise=found))
        except StoreUnavailable:
            place.doubt = before
            raise
        except LeaseGone as error:
            place.doubt = before
            self._lost(session)
            raise StoreUnavailable(f"the lease of the places is gone ({error}); nothing was written") from error
        # an earlier request that is still in doubt finds the place, or another guard
        place.doubt = before
        if body.get("succeeded"):
            place.created = body["header"]["revision"]
            return
        mine, guards = (one["response_range"].get("kvs") for one in body["responses"])
        session.guard = guards[0]["mod_revision"] if guards else "0"
        if mine:
            place.created = mine[0]["create_revision"]

    def look(self, place: Place) -> Operation[Observation]:
        """Return who is ahead, and the record."""
        queue, mine = self.root.queue(place.name), self.root.place(place.name, place.waiter_id)
        ahead = {
            "limit": "1",
            "sort_order": "DESCEND",
            "sort_target": "CREATE",
            "max_create_revision": str(int(place.created or "1") - 1),
            "keys_only": True,
        }
        reads = [encoding.get(encoding.at(mine)), encoding.get(encoding.below(queue), **ahead)]
        asked = [*reads, *encoding.seeking(self.root.base(place.name))]
        for _ in range(ATTEMPTS_MAX):
            body = yield from ask(encoding.txn("Look", asked))
            own, before = (one["response_range"].get("kvs") for one in body["responses"][: len(reads)])
            is_stray = bool(before) and before[0].get("lease", encoding.NO_LEASE) == encoding.NO_LEASE
            if not is_stray or not (yield from cleared(self.root, place.name)):
                break
        return Observation(
            is_in_queue=bool(own) and own[0]["create_revision"] == place.created,
            ahead=encoding.text(before[0]["key"]) if before else None,
            record=encoding.sought(body["responses"][len(reads) :]),
            revision=int(body["header"]["revision"]),
        )

    def shown(self, name: Name) -> Operation[list[Standing]]:
        """Return the first entries of a queue, in its order."""
        queue = self.root.queue(name)
        order = {"limit": str(STANDINGS_MAX), "sort_order": "ASCEND", "sort_target": "CREATE", "keys_only": True}
        body = yield from ask(encoding.range_of("Range", encoding.below(queue), **order))
        found = body.get("kvs", [])
        # values are for display only; a huge one must not make the entries unreadable
        noted: dict[str, str] = {}
        with suppress(StoreError):
            looks = [encoding.get({"key": item["key"]}) for item in found if encoding.is_place(item)]
            body = yield from ask(encoding.txn("Look", looks))
            kept = [item for one in body.get("responses", ()) for item in one["response_range"].get("kvs", ())]
            noted = {item["key"]: item.get("value", "") for item in kept}
        return [encoding.standing(queue, item, noted.get(item["key"], "")) for item in found]

    def leave(self, name: Name, waiter_id: str) -> Operation[None]:
        """Remove a place, so that no request in flight restores it."""
        with self.lock:
            place = self.places.get((name, waiter_id))
            if place is None:
                return
            place.has_left = True
        for _ in range(ATTEMPTS_MAX):
            closing = self.closing(place)
            try:
                body = yield from ask(
                    encoding.txn("Leave", [encoding.delete(encoding.at(self.root.place(name, waiter_id))), *closing])
                )
            except LeaseGone:
                yield from self.check_session(place)
                continue
            self.granted(place, body["header"]["revision"])
            return
        raise OutcomeUnknown(f"the queue place for {name.key!r} could not be removed in {ATTEMPTS_MAX} attempts")
