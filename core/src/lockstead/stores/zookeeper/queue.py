"""The queue of waiters in ZooKeeper: this process's entries in it, and whose turn it is.

A place (queue entry) is an ephemeral node with a sequence number from the server. Its name begins with a unique
identifier, so that a place is found even if the reply to its creation was lost. The first waiter watches the record,
every other waiter the place before its own, so a release wakes one waiter. Of a record it knows only its mode.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any, Final, TypeAlias

from kazoo import exceptions as kz

from lockstead.errors import StoreUnavailable
from lockstead.script import Script
from lockstead.stores.port import STANDINGS_MAX, Standing
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions
from lockstead.stores.zookeeper.connection import Connection
from lockstead.stores.zookeeper.encoding import NOTED_MAX, Tree, decode_record, in_order, standing
from lockstead.stores.zookeeper.requests import Answers, Request, ask, make, remove_strays
from lockstead.stores.zookeeper.watches import NEW, Look, Observer, Watches
from lockstead.values import SHARED, Name

LEFT_MAX: Final = 4096
"""Number of waiters remembered after they left, so that a late `enqueue` of theirs takes no place."""

LOOKS_MAX: Final = 16
"""Maximum reads of one queue in one look; each but the first follows a change."""

CALLS_AGAIN: Final = 0.2
"""Seconds until a waiter is called again if it is its turn but it has not acquired: another client may have acquired
and released since."""

GRANTS_WITHIN: Final = 0.05
"""Seconds until the next look at a place that a grant in progress may have deleted."""

Waiter: TypeAlias = tuple[Name, str]


class Place(Observer):
    """The place of one waiter. node is its name in the queue; empty if there is none or it is unknown.

    is_first: this node was seen to be first, which then does not change. is_in_doubt: the request to create the node
    was sent and has no reply yet, or will have none. state: the record's state when this waiter last watched it.
    """

    def __init__(self, queue: WaitQueue, waiter: Waiter) -> None:
        super().__init__()
        self._queue = queue
        self.waiter = waiter
        self.path_of_queue = queue.tree.queue(waiter[0])
        self.guid = os.urandom(16).hex()
        self.node = ""
        self.is_first = self.is_alone = self.is_in_doubt = self.has_left = False
        self.state: int | None = NEW

    def look(self) -> Look:
        return self._queue.look(self)

    def changed(self, is_gone: bool) -> float | None:
        return self._queue.changed(self, is_gone)

    def take(self, node: str) -> None:
        """Set the node of this place; "" for none. The caller holds the queue's lock."""
        self.node, self.is_first, self.is_alone, self.is_in_doubt, self.state = node, False, False, False, NEW


class WaitQueue:
    """The places of one store's waiters, in the queues of all keys."""

    def __init__(self, tree: Tree, connection: Connection, watches: Watches) -> None:
        self.tree = tree
        self._connection = connection
        self._watches = watches
        self._turns: Subscriptions[Waiter] = Subscriptions()
        self._lock = threading.Lock()
        self._places: dict[Waiter, Place] = {}
        self._left: dict[Waiter, None] = {}
        self._granting: list[Waiter] = []
        # names whose queue lost its last place in a grant: the queue's node is deleted at the release
        self._uncleared: set[Name] = set()

    # --- for grants ----------------------------------------------------------------------------------------------

    def begin_grant(self, waiter: Waiter) -> tuple[str, bool]:
        """Return the node of a waiter's place ("" if none is known), and whether it is first.

        Until `end_grant`, no place is created for the waiter, because it would be left behind.
        """
        with self._lock:
            self._granting.append(waiter)
            place = self._places.get(waiter)
            return ("", False) if place is None else (place.node, place.is_first)

    def end_grant(self, waiter: Waiter) -> None:
        """End what `begin_grant` began."""
        with self._lock:
            self._granting.remove(waiter)

    def granted(self, waiter: Waiter, node: str) -> None:
        """Forget a waiter that was granted the lock. The grant atomically deleted `node`; "" if none was known."""
        with self._lock:
            self._remember(waiter)
            place = self._places.get(waiter)
            if place is None:
                return
            place.has_left = True
            if place.node == node and not place.is_in_doubt:
                del self._places[waiter]
                if place.is_alone:
                    self._uncleared.add(waiter[0])
                return
        self._watches.look(place)  # a node may exist that nothing else would remove

    def clears(self, name: Name) -> str:
        """Return the queue's node that a release deletes, if the last waiter was granted the lock; "" otherwise."""
        if name not in self._uncleared:
            return ""
        self._uncleared.discard(name)
        return self.tree.queue(name)

    # --- waiting -------------------------------------------------------------------------------------------------

    def enqueue(self, name: Name, waiter_id: str, on_turn: OnChange) -> Subscription:
        """Return a subscription to a waiter's turn, as specified by `stores.port.SupportsFifoQueue`."""
        waiter = name, waiter_id
        subscription, _ = self._turns.add(waiter, on_turn)
        with self._lock:
            place = self._places.get(waiter)
            if place is None and waiter not in self._left:
                place = self._places[waiter] = Place(self, waiter)
        if place is not None:
            self._watches.look(place)
        return subscription

    def look(self, place: Place) -> Look:
        """Take a place if there is none, watch the place before it or the record, and call the waiter on its turn."""
        queue = place.path_of_queue
        for _ in range(LOOKS_MAX):
            if place.has_left:
                yield from self._remove(place)
                return None
            if place.waiter not in self._turns:
                return None
            if not place.node:
                if not (yield from self._take(place)):
                    return GRANTS_WITHIN
                continue
            found = (yield ask("get_children", queue))[0]
            order = [] if isinstance(found, kz.NoNodeError) else in_order(found)
            if place.node in order:
                index = order.index(place.node)
                place.is_first, place.is_alone = index == 0, len(order) == 1
                if index == 0:
                    return (yield from self._look_at_record(place))
                before = (yield self._watches.watched("get", f"{queue}/{order[index - 1]}", place))[0]
                if not isinstance(before, kz.NoNodeError):
                    if before[1].ephemeralOwner:
                        return None
                    # not a waiter's place, and it would never end: delete it, then watch the one before it
                    yield from remove_strays(queue, [order[index - 1]])
            elif not self._lost(place):
                return GRANTS_WITHIN
        raise StoreUnavailable(f"ZooKeeper: the queue at {queue} changes with every look")

    def _look_at_record(self, place: Place) -> Look:
        found = (yield self._watches.watched("get", self.tree.record(place.waiter[0]), place))[0]
        is_gone = isinstance(found, kz.NoNodeError)
        before, place.state = place.state, None if is_gone else found[1].mzxid
        if is_gone or (before != place.state and (before != NEW or _is_group(found[0]))):
            self._turns.changed(place.waiter, is_gone)
        return CALLS_AGAIN if is_gone else None

    def changed(self, place: Place, is_gone: bool) -> float | None:
        """Handle a change of the node that a place watches."""
        if place.has_left or place.waiter not in self._turns:
            return None
        if not place.is_first or not is_gone or place.state == NEW:
            return 0.0
        place.state = None
        self._turns.changed(place.waiter, True)
        return CALLS_AGAIN

    # --- places --------------------------------------------------------------------------------------------------

    def _take(self, place: Place) -> Script[Request, Answers, bool]:
        """Create a place, or find the existing one; its node may still be unknown. False: a grant is in progress."""
        if place.is_in_doubt:
            node = _of(place, (yield ask("get_children", place.path_of_queue, syncs=place.path_of_queue))[0])
            with self._lock:
                place.take(node)
            return True
        made = yield Request(partial(self._make, place), writes=True)
        if not made:
            return False
        with self._lock:
            place.take("" if isinstance(made[0], Exception) else str(made[0]).rpartition("/")[2])
        if isinstance(made[0], kz.NoNodeError):
            yield from make(place.path_of_queue)
        return True

    def _make(self, place: Place, client: Any) -> tuple[Any, ...]:
        with self._lock:
            # under the lock: `leave` either reads the queue after this was sent, or prevents it from being sent
            if place.has_left or place.waiter in self._granting:
                return ()
            path, noted = f"{place.path_of_queue}/{place.guid}-", place.waiter[1].encode()
            place.is_in_doubt = True
            return (client.create_async(path, noted, None, True, True),)

    def _lost(self, place: Place) -> bool:
        """Record that a place ended with its session; return False if a grant may have deleted it."""
        with self._lock:
            if place.waiter in self._granting:
                return False
            if not place.has_left:
                place.take("")
            return True

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Remove a waiter from the queue, so that none of its requests in flight restores the place."""
        waiter = name, waiter_id
        with self._lock:
            self._remember(waiter)
            place = self._places.get(waiter)
            if place is None:
                return
            place.has_left = True
            if not place.node and not place.is_in_doubt:
                del self._places[waiter]
                return
        self._connection.run(self._remove(place), limit)

    def _remove(self, place: Place) -> Script[Request, Answers, None]:
        with self._lock:
            node, is_in_doubt = place.node, place.is_in_doubt
        queue = place.path_of_queue
        if is_in_doubt:
            # requests sent earlier on this session are carried out before this one is answered, or never
            node = _of(place, (yield ask("get_children", queue, syncs=queue))[0])
        if node:
            yield ask("delete", f"{queue}/{node}", writes=True)
            yield ask("delete", queue, writes=True)
        with self._lock:
            self._places.pop(place.waiter, None)

    def _remember(self, waiter: Waiter) -> None:
        self._left[waiter] = None
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    # --- showing -------------------------------------------------------------------------------------------------

    def shown(self, name: Name) -> Script[Request, Answers, list[Standing]]:
        """Return the first entries of a queue in order, followed by nodes that are not our places."""
        queue = self.tree.queue(name)
        found = (yield ask("get_children", queue, syncs=queue))[0]
        if isinstance(found, kz.NoNodeError):
            return []
        order = in_order(found)
        strays = sorted(set(found) - set(order))
        some = [*order, *strays][:STANDINGS_MAX]
        if not some:
            return []
        stats = yield ask("exists", *(f"{queue}/{node}" for node in some))
        known = {node: stat for node, stat in zip(some, stats, strict=True) if stat is not None}
        standings = {node: standing(node, stat) for node, stat in known.items()}
        small = [node for node, stat in known.items() if 0 < stat.dataLength <= NOTED_MAX]
        if small:
            found = yield ask("get", *(f"{queue}/{node}" for node in small))
            for node, data in zip(small, found, strict=True):
                if not standings[node].is_stray and not isinstance(data, Exception):
                    standings[node] = standings[node]._replace(who=data[0].decode("utf-8", "replace"))
        return list(standings.values())


def _is_group(data: bytes | None) -> bool:
    """Return whether a record is that of a group of readers: whose turn it is may join it, or has to mark it."""
    record = decode_record(data)
    return record is not None and record.fields.get("mode") == SHARED


def _of(place: Place, found: Any) -> str:
    """Return the node with this place's identifier; "" if there is none."""
    if isinstance(found, kz.NoNodeError):
        return ""
    return next((node for node in found if node.startswith(place.guid)), "")
