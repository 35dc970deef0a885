"""The queue of waiters on a ZooKeeper: the places of this process in it, and whose turn it is.

A place is an ephemeral node with a number from the server; its name begins with an identifier of its own, so that a
place whose creation was never answered is found again. The first waiter watches the record, each other one the place
before its own: a release wakes one. Must not know what a record says.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from kazoo import exceptions as kz

from lockstead.errors import StoreUnavailable
from lockstead.script import Script
from lockstead.stores.port import STANDINGS_MAX, Standing
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions
from lockstead.stores.zookeeper.connection import Connection
from lockstead.stores.zookeeper.encoding import NOTED_MAX, Tree, in_order, standing
from lockstead.stores.zookeeper.requests import Answers, Request, ask, make, remove_strays
from lockstead.stores.zookeeper.watches import NEW, Look, Observer, Watches
from lockstead.values import Name

LEFT_MAX: Final = 4096
"""Waiters that left and are remembered, so that a late `enqueue` of theirs takes no place."""

LOOKS_MAX: Final = 16
"""Looks at one queue, each but the first after something has changed there."""

CALLS_AGAIN: Final = 0.2
"""Seconds until a waiter is called again whose turn it is and which has not acquired: somebody may have done so and
have released since."""

GRANTS_WITHIN: Final = 0.05
"""Seconds until a place is looked at again that a grant under way may have taken out."""

Waiter: TypeAlias = tuple[Name, str]


class Place(Observer):
    """The place of one waiter. node is its name in the queue, empty while there is none or none is known of.

    is_first: seen to be first with this node, which stays so. is_in_doubt: the request that makes it was sent and has
    no answer yet, or never had one. state: of the record, as this waiter watched it.
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
        """Note the node of this place; "" for none. Under the queue's lock."""
        self.node, self.is_first, self.is_alone, self.is_in_doubt, self.state = node, False, False, False, NEW


class Turn(NamedTuple):
    """What is known of a waiter's place: its node, "" if it has none, and whether it is first."""

    node: str = ""
    is_first: bool = False


class WaitQueue:
    """The places of one store in the queues of all keys."""

    def __init__(self, tree: Tree, connection: Connection, watches: Watches) -> None:
        self.tree = tree
        self._connection = connection
        self._watches = watches
        self._turns: Subscriptions[Waiter] = Subscriptions()
        self._lock = threading.Lock()
        self._places: dict[Waiter, Place] = {}
        self._left: dict[Waiter, None] = {}
        self._granting: Counter[Waiter] = Counter()
        # names of queues whose last place was taken out by a grant: their node stays until the release
        self._uncleared: set[Name] = set()

    # --- for grants ----------------------------------------------------------------------------------------------

    @contextmanager
    def granting(self, waiter: Waiter) -> Iterator[None]:
        """Note that a grant is under way: no place is made meanwhile, since it would stay behind."""
        with self._lock:
            self._granting[waiter] += 1
        try:
            yield
        finally:
            with self._lock:
                self._granting[waiter] -= 1
                if not self._granting[waiter]:
                    del self._granting[waiter]

    def turn(self, waiter: Waiter) -> Turn:
        """Return what is known of a waiter's place."""
        with self._lock:
            place = self._places.get(waiter)
            return Turn() if place is None else Turn(place.node, place.is_first)

    def granted(self, waiter: Waiter, node: str) -> None:
        """Forget a waiter that was granted the lock. The same step took out this node, "" if none was known."""
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
        self._watches.look(place)  # there may be a node that nothing else would remove

    def clears(self, name: Name) -> str:
        """Return the node of a queue that a release deletes: the last waiter was granted the lock; "" for none."""
        if name not in self._uncleared:
            return ""
        self._uncleared.discard(name)
        return self.tree.queue(name)

    # --- waiting -------------------------------------------------------------------------------------------------

    def enqueue(self, name: Name, waiter_id: str, on_turn: OnChange) -> Subscription:
        """Return a subscription to a waiter's turn, as `stores.port.SupportsFifoQueue` wants it."""
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
        """Take a place if there is none, watch what is before it, and call the waiter if it is its turn."""
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
                    # not a waiter's place, and it would stay forever: once it is deleted there is another one to watch
                    yield from remove_strays(queue, [order[index - 1]])
            elif not self._lost(place):
                return GRANTS_WITHIN
        raise StoreUnavailable(f"ZooKeeper: the queue at {queue} changes with every look")

    def _look_at_record(self, place: Place) -> Look:
        found = (yield self._watches.watched("get", self.tree.record(place.waiter[0]), place))[0]
        is_gone = isinstance(found, kz.NoNodeError)
        before, place.state = place.state, None if is_gone else found[1].mzxid
        if is_gone or before not in {NEW, place.state}:
            self._turns.changed(place.waiter, is_gone)
        return CALLS_AGAIN if is_gone else None

    def changed(self, place: Place, is_gone: bool) -> float | None:
        """Note that what a place watches has changed."""
        if place.has_left or place.waiter not in self._turns:
            return None
        if not place.is_first or not is_gone or place.state == NEW:
            return 0.0
        place.state = None
        self._turns.changed(place.waiter, True)
        return CALLS_AGAIN

    # --- places --------------------------------------------------------------------------------------------------

    def _take(self, place: Place) -> Script[Request, Answers, bool]:
        """Make a place, or find the one that was made; its node may still be unknown. False: a grant is under way."""
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
            # under the lock: `leave` asks for what is there after this was sent, or this is not sent any more
            if place.has_left or place.waiter in self._granting:
                return ()
            path, noted = f"{place.path_of_queue}/{place.guid}-", place.waiter[1].encode()
            place.is_in_doubt = True
            return (client.create_async(path, noted, None, True, True),)

    def _lost(self, place: Place) -> bool:
        """Note that a place went with its session; False if a grant may have taken it out."""
        with self._lock:
            if place.waiter in self._granting:
                return False
            if not place.has_left:
                place.take("")
            return True

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Remove a waiter from the queue, so that no request of it that is still under way brings it back."""
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
            # what was sent before on this session is carried out before this is answered, or never
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
        """Return the first entries of a queue, in its order; behind them what is not a place of ours."""
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
            for node, said in zip(small, found, strict=True):
                if not standings[node].is_stray and not isinstance(said, Exception):
                    standings[node] = standings[node]._replace(who=said[0].decode("utf-8", "replace"))
        return list(standings.values())


def _of(place: Place, found: Any) -> str:
    """Return the node that bears this place's identifier; "" if there is none."""
    if isinstance(found, kz.NoNodeError):
        return ""
    return next((node for node in found if node.startswith(place.guid)), "")
