"""How a process waits on a ZooKeeper: in a queue, or by looking; and who is woken by what.

A place in a queue is an ephemeral node with a number from the server; its name begins with an identifier of its own, so
that a place whose making was never answered is found again. Who is first watches the record, everybody else the place
before its own: a release wakes one. Must not know what a record says.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kazoo import exceptions as kz

from lockstead.errors import StoreError
from lockstead.stores.port import STANDINGS_MAX, Standing
from lockstead.stores.zookeeper.answers import outcome
from lockstead.stores.zookeeper.bells import Bell, Bells
from lockstead.stores.zookeeper.names import NOTED_MAX, Tree, in_order, standing
from lockstead.stores.zookeeper.steps import Ask, Flow, cleared, make
from lockstead.stores.zookeeper.wire import Wire
from lockstead.values import Name

LOOK_EVERY: Final = 0.05
"""Seconds after which a wait looks whether its caller wants to stop."""

LOOK_AGAIN: Final = 0.02
"""Seconds until a wait on an absent record ends: it may have gone between the caller's read and the wait."""

LEFT_MAX: Final = 4096
"""How many of those who left are remembered, so that a wait of theirs that begins late takes no place."""

ANSWERS_WITHIN: Final = 10.0
"""Seconds that a wait gives the server to answer, where its own time is shorter."""


@dataclass(slots=True, eq=False)
class Stand:
    """One who stands in line. node is the place's name in the queue, empty while there is none or none is known of.

    is_first: seen to be first with this place, which stays so. bell: rung when what is watched has changed.
    making: the request that makes the place, while it is under way; is_lost: one such was never answered.
    """

    name: Name
    waiter_id: str
    guid: str = field(default_factory=lambda: os.urandom(16).hex())
    node: str = ""
    is_first: bool = False
    is_alone: bool = False
    has_left: bool = False
    making: Any = None
    is_lost: bool = False
    watches: str = ""
    bell: Bell = field(default_factory=Bell)


class _Stopped(Exception):  # noqa: N818 - no error: it only leads out
    """The caller of a wait wants to stop, or its time is up."""


class Line:
    """Where the askers of one store stand."""

    def __init__(self, tree: Tree, wire: Wire) -> None:
        self._tree = tree
        self._wire = wire
        self._bells = Bells()
        self._lock = threading.Lock()
        self._stands: dict[tuple[Name, str], Stand] = {}
        self._left: dict[tuple[Name, str], None] = {}
        # names of queues whose last place was taken out by a grant: their node stands until the release
        self._uncleared: set[Name] = set()

    # --- for grants ----------------------------------------------------------------------------------------------

    def stand(self, name: Name, waiter_id: str) -> Stand | None:
        """Return where a waiter stands, if it has a place."""
        with self._lock:
            stand = self._stands.get((name, waiter_id)) if waiter_id else None
        return stand if stand is not None and stand.node else None

    def granted(self, name: Name, waiter_id: str) -> None:
        """Forget who was granted the lock: the same step took the place out of the queue."""
        if not waiter_id:
            return
        with self._lock:
            stand = self._stands.pop((name, waiter_id), None)
            self._remember(name, waiter_id)
            if stand is not None and stand.is_alone:
                self._uncleared.add(name)
        if stand is not None:
            stand.has_left = True

    def clears(self, name: Name) -> str:
        """Return the node of a queue that who releases clears up: the one granted stood there alone; "" for none."""
        if name not in self._uncleared:
            return ""
        self._uncleared.discard(name)
        return self._tree.queue(name)

    # --- waiting -------------------------------------------------------------------------------------------------

    def wait(self, name: Name, seconds: float, is_over: Callable[[float], bool]) -> bool:
        """Block until the record changed (True), `seconds` passed, or the caller wants to stop (False)."""
        ends_at = time.monotonic() + seconds
        path, bell = self._tree.record(name), Bell()
        client = self._wire.ready(max(seconds, 1.0))
        ringer = self._bells.add(path, bell)
        try:
            found = self._ask(client, Ask(lambda client: (client.get_async(path, watch=ringer),)), ends_at, is_over)
            if isinstance(found, kz.NoNodeError):
                return not is_over(min(LOOK_AGAIN, max(0.0, seconds)))
            return _rung(bell, ends_at, is_over)
        except _Stopped:
            return False
        finally:
            self._bells.remove(path, bell)

    def queue(self, name: Name, waiter_id: str, seconds: float, is_over: Callable[[float], bool]) -> bool:
        """Block until the waiter is first and the record is gone (True), or as `wait`, or it has changed (False)."""
        ends_at = time.monotonic() + seconds
        if is_over(0.0):
            return False
        stand = self._found(name, waiter_id)
        if stand is None:
            return False
        try:
            while not stand.has_left:
                if stand.bell.is_set() and stand.is_first:
                    is_gone = stand.bell.is_gone
                    self._unwatch(stand)
                    return is_gone
                if not stand.watches or stand.bell.is_set():
                    client = self._wire.ready(max(ends_at - time.monotonic(), 1.0))
                    if self._look(client, stand, ends_at, is_over):
                        return True
                if not _rung(stand.bell, ends_at, is_over):
                    return False
        except _Stopped:
            pass
        return False

    def _found(self, name: Name, waiter_id: str) -> Stand | None:
        with self._lock:
            if (name, waiter_id) in self._left:
                return None
            return self._stands.setdefault((name, waiter_id), Stand(name, waiter_id))

    def _look(self, client: Any, stand: Stand, ends_at: float, is_over: Callable[[float], bool]) -> bool:
        """Take a place if there is none, and watch what stands before it. True: it is first and the record is gone."""
        queue = self._tree.queue(stand.name)
        while not stand.has_left:
            self._unwatch(stand)
            if not stand.node:
                self._take_place(client, stand, ends_at, is_over)
            found = self._ask(client, Ask(lambda client: (client.get_children_async(queue),)), ends_at, is_over)
            order = [] if isinstance(found, kz.NoNodeError) else in_order(found)
            if stand.node not in order:  # it went with its session
                stand.node, stand.is_first = "", False
                continue
            index = order.index(stand.node)
            stand.is_first, stand.is_alone = index == 0, len(order) == 1
            watched = self._tree.record(stand.name) if stand.is_first else f"{queue}/{order[index - 1]}"
            ringer = self._bells.add(watched, stand.bell)
            stand.watches = watched
            before = self._ask(client, Ask(lambda client: (client.get_async(watched, watch=ringer),)), ends_at, is_over)  # noqa: B023
            if not isinstance(before, kz.NoNodeError):
                if stand.is_first or before[1].ephemeralOwner:
                    return False
                # nobody's place, and it would stand forever: without it there is another to watch
                self._carry_out(client, cleared(queue, [order[index - 1]]), ends_at, is_over)
                continue
            if stand.is_first:
                self._unwatch(stand)
                return True
        return False

    def _unwatch(self, stand: Stand) -> None:
        if stand.watches:
            self._bells.remove(stand.watches, stand.bell)
        stand.watches = ""
        stand.bell.clear()

    def _take_place(self, client: Any, stand: Stand, ends_at: float, is_over: Callable[[float], bool]) -> None:
        queue = self._tree.queue(stand.name)
        while not stand.node:
            if stand.is_lost:
                found = self._ask(client, _whole(queue), ends_at, is_over)
                stand.node = _of(stand, found)
                stand.is_lost = False
                continue
            with self._lock:
                # under the lock: `leave` asks for what is there after this was sent, or this is not sent any more
                if stand.has_left:
                    raise _Stopped
                if stand.making is None:
                    ask = Ask(
                        lambda client: (
                            client.create_async(f"{queue}/{stand.guid}-", stand.waiter_id.encode(), None, True, True),
                        ),
                        writes=True,
                    )
                    stand.making = self._wire.send(client, ask, max(ends_at, time.monotonic() + 1.0))[0]
            try:
                made = _answer(stand.making, ends_at, is_over, writes=True)
            except StoreError:
                stand.making, stand.is_lost = None, True
                raise
            stand.making = None
            if isinstance(made, kz.NoNodeError):
                self._carry_out(client, make(queue), ends_at, is_over)
            else:
                stand.node = str(made).rpartition("/")[2]

    def _carry_out(self, client: Any, flow: Flow[Any], ends_at: float, is_over: Callable[[float], bool]) -> None:
        with suppress(StopIteration):
            ask = next(flow)
            while True:
                results = self._wire.send(client, ask, max(ends_at, time.monotonic() + 1.0))
                ask = flow.send([_answer(one, ends_at, is_over, writes=ask.writes) for one in results])

    def _ask(self, client: Any, ask: Ask, ends_at: float, is_over: Callable[[float], bool]) -> Any:
        results = self._wire.send(client, ask, max(ends_at, time.monotonic() + 1.0))
        return _answer(results[-1], ends_at, is_over, writes=ask.writes)

    # --- looking -------------------------------------------------------------------------------------------------

    def shown(self, name: Name) -> Flow[list[Standing]]:
        """Return the first entries of a queue, in its order; behind them what is not a place of ours."""
        queue = self._tree.queue(name)
        found = (yield _whole(queue))[0]
        if isinstance(found, kz.NoNodeError):
            return []
        order = in_order(found)
        strays = sorted(set(found) - set(order))
        some = [*order, *strays][:STANDINGS_MAX]
        if not some:
            return []
        stats = yield Ask(lambda client: [client.exists_async(f"{queue}/{node}") for node in some])
        standings = {node: standing(node, stat) for node, stat in zip(some, stats, strict=True) if stat is not None}
        sized = zip(some, stats, strict=True)
        small = [node for node, stat in sized if stat is not None and 0 < stat.dataLength <= NOTED_MAX]
        if small:
            found = yield Ask(lambda client: [client.get_async(f"{queue}/{node}") for node in small])
            for node, said in zip(small, found, strict=True):
                if not standings[node].is_stray and not isinstance(said, Exception):
                    standings[node] = standings[node]._replace(who=said[0].decode("utf-8", "replace"))
        return list(standings.values())

    # --- leaving -------------------------------------------------------------------------------------------------

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Remove a waiter from the queue, so that no request of it that is still under way brings it back."""
        with self._lock:
            self._remember(name, waiter_id)
            stand = self._stands.get((name, waiter_id))
            if stand is None:
                return
            stand.has_left = True
        stand.bell.set()
        self._wire.run(self._leaving(stand), limit)
        with self._lock:
            self._stands.pop((name, waiter_id), None)
        self._bells.remove(stand.watches, stand.bell)

    def _leaving(self, stand: Stand) -> Flow[None]:
        queue = self._tree.queue(stand.name)
        node = stand.node
        if not node and (stand.making is not None or stand.is_lost):
            # what was sent before on this session is carried out before this is answered, or never
            node = _of(stand, (yield _whole(queue))[0])
        if node:
            yield Ask(lambda client: (client.delete_async(f"{queue}/{node}"),), writes=True)
            yield Ask(lambda client: (client.delete_async(queue),), writes=True)

    def _remember(self, name: Name, waiter_id: str) -> None:
        self._left[name, waiter_id] = None
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]


def _rung(bell: Bell, ends_at: float, is_over: Callable[[float], bool]) -> bool:
    while not is_over(0.0):
        left = ends_at - time.monotonic()
        if left <= 0:
            return False
        if bell.wait(min(left, LOOK_EVERY)):
            return True
    return False


def _answer(result: Any, ends_at: float, is_over: Callable[[float], bool], *, writes: bool) -> Any:
    """Wait for an answer as long as the caller waits, and a little longer: the next call would only ask again."""
    gives_up_at = max(ends_at, time.monotonic() + ANSWERS_WITHIN)
    while not result.wait(LOOK_EVERY):
        if is_over(0.0) or time.monotonic() > gives_up_at:
            raise _Stopped
    return outcome(result, gives_up_at, writes=writes)


def _whole(queue: str) -> Ask:
    return Ask(lambda client: (client.get_children_async(queue),), syncs=queue)


def _of(stand: Stand, found: Any) -> str:
    """Return the place that bears this one's identifier; "" if there is none."""
    if isinstance(found, kz.NoNodeError):
        return ""
    return next((node for node in found if node.startswith(stand.guid)), "")
