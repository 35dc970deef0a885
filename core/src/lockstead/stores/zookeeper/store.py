"""The store on ZooKeeper: one session, commands as scripts of requests, and a queue.

The session is for the queue and watches only. Locks outlive it: they are persistent nodes, renewed by writes. Must not
know what the fields of a record mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockstead.protocol.commands import Command, StoreClock, TokenSource, Traits
from lockstead.stores.port import Standing, StoreBase, Subscription
from lockstead.stores.zookeeper.connection import Connection
from lockstead.stores.zookeeper.encoding import Tree
from lockstead.stores.zookeeper.operations import Operations
from lockstead.stores.zookeeper.queue import WaitQueue
from lockstead.stores.zookeeper.requests import strays
from lockstead.stores.zookeeper.watches import Records, Watches
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee
    from lockstead.stores.zookeeper.url import Target

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="zk",
    guarantee="consensus: a majority of the ensemble's servers, each with what it wrote on its disk",
    clock=StoreClock.NONE,
    tokens=TokenSource.NATIVE,
    ttl_recommended=5.0,
)


class ZookeeperStore(StoreBase):
    """Records in ZooKeeper. Replies carry no time, so a dead holder's lock is taken over only after watching it.

    make returns a new KazooClient that is not started, each time it is called (also in a forked child).
    """

    traits = TRAITS

    def __init__(self, target: Target, make: Callable[[], Any] | None = None) -> None:
        self._target = target
        self.url = target.url
        self._tree = Tree(target.path)
        self._connect(Connection(target, make))

    def _connect(self, connection: Connection) -> None:
        self._connection = connection
        self._watches = Watches(connection)
        self._records = Records(self._tree, self._watches)
        self._queue = WaitQueue(self._tree, connection, self._watches)
        self._operations = Operations(self._tree, self._queue)

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds.

        Raises StoreUnavailable (nothing was changed), OutcomeUnknown or StoreRefused.
        """
        answer: A = self._connection.run(self._operations.script(command), limit)
        return answer

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Carry out commands concurrently on the one connection; a batch takes as long as its longest command."""
        return self._connection.run_many([self._operations.script(command) for command in commands], limit)

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Call on_change(False) at every change of the record, and once if it is absent. See the port."""
        return self._records.subscribe(name, on_change)

    def enqueue(self, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        """Take a place in the queue, and call on_turn(is_free) when it is the waiter's turn. See the port."""
        return self._queue.enqueue(name, waiter_id, on_turn)

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Remove a waiter from the queue, if queued."""
        self._queue.leave(name, waiter_id, limit)

    def standing(self, name: Name, limit: float) -> list[Standing]:
        """Return the first entries of a key's queue."""
        shown: list[Standing] = self._connection.run(self._queue.shown(name), limit)
        return shown

    def clear_queues(self, at_most: int, limit: float, *, dry_run: bool) -> list[str]:
        """Delete nodes of queues that are no waiters' places, and the nodes of queues that were left empty."""
        script = strays(self._tree.queues, at_most, deletes=not dry_run)
        gone: list[str] = self._connection.run(script, limit)
        return gone

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """Return what in this store is behind a guarantee."""
        from lockstead.stores.zookeeper.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as in the port
        """Check the servers, their versions and majority, the session timeout, and the permissions."""
        from lockstead.stores.zookeeper.doctor import examination, rights

        self._connection.ready(limit)
        yield self._target.transport()
        yield from examination(self._target, limit)
        yield self._connection.run(rights(self._tree), limit)

    def after_fork(self) -> None:
        """Forget the inherited session without ending it: it belongs to the parent, like its threads and places."""
        self._connect(self._connection.forget())

    def close(self) -> None:
        """End the session, and with it the queue entries. Records stay."""
        self._watches.close()
        self._connection.close()
