"""How commands reach etcd: a script of requests each, driven by a client. Must not know what a request says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import StoreError, StoreRefused
from lockstead.protocol.commands import Command, StoreClock, TokenSource, Traits
from lockstead.stores.bounds import LISTING_MAX, Bounds, is_too_long
from lockstead.stores.driven import DrivenStore
from lockstead.stores.etcd.aio_client import AsyncClient
from lockstead.stores.etcd.batch import batch
from lockstead.stores.etcd.client import ANSWER_MAX, Client
from lockstead.stores.etcd.encoding import Request, Response
from lockstead.stores.etcd.leases import Leases
from lockstead.stores.etcd.listener import Listener
from lockstead.stores.etcd.members import Members
from lockstead.stores.etcd.operations import Operations
from lockstead.stores.etcd.queue import Queue
from lockstead.stores.etcd.scripts import Operation, end, strays
from lockstead.stores.etcd.url import Target
from lockstead.stores.kept import outcome
from lockstead.stores.loops import PerLoop
from lockstead.stores.port import Standing
from lockstead.stores.subscriptions import OnChange, Subscription

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee
    from lockstead.values import Name

TRAITS: Final = Traits(
    scheme="etcd",
    guarantee="consensus: linearizable transactions, and leases that the cluster itself ends",
    clock=StoreClock.SERVER_EXPIRES,
    tokens=TokenSource.NATIVE,
    ttl_recommended=5.0,
)

CLEANUP_LIMIT: Final = 1.0
"""Seconds that `close` waits for the servers to end what is idle."""


class EtcdStore(DrivenStore[Client, AsyncClient]):
    """Records as keys of an etcd. Promises what a majority of its members promises: without one, nothing is granted."""

    traits = TRAITS
    answer_max = ANSWER_MAX

    def __init__(self, target: Target, url: str) -> None:
        """url: as it may be shown. Raises StoreRefused if a certificate cannot be used."""
        self._target = target
        self.url = url
        try:
            self._tls = target.tls_context() if target.tls else None
        except OSError as error:
            raise StoreRefused(f"the certificates for {url} cannot be used ({error}); correct ca, cert, key") from error
        super().__init__()

    def _begin(self) -> None:
        members = Members(self._target, self._tls, self.url)
        self._driver = Client(members)
        self._drivers = PerLoop(lambda: AsyncClient(members), AsyncClient.aclose)
        self._operations = Operations(self._target.root, Leases(), Queue(self._target.root))
        self._listener = Listener(self._operations.queue, members)

    # --- commands ------------------------------------------------------------------------------------------------

    def _script(self, command: Command[Any], _bounds: Bounds) -> Operation[Any]:
        return self._operations.script(command)

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Renew many leases by one KeepAlive and one range; what is left over is carried out one by one."""
        ends_at = time.monotonic() + limit
        try:
            answers = self._batched(commands, ends_at)
        except StoreError as error:
            return [error] * len(commands)
        for number, command in enumerate(commands):
            if answers[number] is None:
                answers[number] = outcome(self.perform, command, ends_at - time.monotonic())
        return answers

    def _batched(self, commands: Sequence[Command[Any]], ends_at: float) -> list[Any]:
        bounds = Bounds(ends_at - time.monotonic(), LISTING_MAX)
        try:
            return self._driver.run(batch(self._operations, commands), bounds)
        except StoreError as error:
            if not is_too_long(error):
                raise
        # foreign records between ours are larger than the limit
        bounds = Bounds(ends_at - time.monotonic(), LISTING_MAX)
        return self._driver.run(batch(self._operations, commands, is_ranged=False), bounds)

    # --- waiting -------------------------------------------------------------------------------------------------

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Call on_change at every change of the record."""
        return self._listener.subscribe(name, on_change)

    def enqueue(self, name: Name, waiter_id: str, on_turn: OnChange) -> Subscription:
        """Take a place in the queue or keep it, and call on_turn when the turn has come."""
        return self._listener.enqueue(name, waiter_id, on_turn)

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Give up a place in the queue."""
        self._driver.run(self._operations.queue.leave(name, waiter_id), Bounds(limit))

    def standing(self, name: Name, limit: float) -> list[Standing]:
        """Return the first of a key's queue."""
        return self._driver.run(self._operations.queue.shown(name), Bounds(limit, LISTING_MAX))

    def clear_queues(self, at_most: int, limit: float, *, dry_run: bool) -> list[str]:
        """Delete keys without a lease from all queues."""
        return self._driver.run(strays(self._operations.root, at_most, deletes=not dry_run), Bounds(limit, LISTING_MAX))

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """Return what in this store is behind a guarantee."""
        from lockstead.stores.etcd.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Look at the members, their versions, their quorum, alarms and space."""
        from lockstead.stores.etcd.doctor import examination

        def each(request: Request) -> dict[str, Response | StoreError]:
            exchange = self._driver.exchange
            return {member: outcome(exchange, Bounds(limit), request, member) for member in self._target.endpoints}

        yield self._target.transport()
        yield from examination(self._target, each)

    # --- life ----------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it, and every lease: they belong to the parent."""
        self._listener.forget()
        super().after_fork()

    def close(self) -> None:
        """End what carries no record, and close every connection. Idempotent; takes up to 2 s if etcd hangs."""
        self._listener.close()
        ends_at = time.monotonic() + CLEANUP_LIMIT
        for lease in [*self._operations.queue.forget(), *self._operations.leases.empty()]:
            with suppress(StoreError):
                self._driver.run(end(lease), Bounds(max(0.05, ends_at - time.monotonic())))
        super().close()
