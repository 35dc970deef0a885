"""How commands reach Redis: one script call each, never repeated.

Must not know what the fields of a record mean. What requests look like is `encoding`, what the server
does `scripts`, and which server it is `route`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.aio_script import drive as adrive
from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import (
    Command,
    List,
    Listing,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.script import drive
from lockstead.stores.aio_pool import AsyncPool
from lockstead.stores.bounds import LISTING_MAX, Bounds, bounds_of
from lockstead.stores.kept import MALFORMED, senseless
from lockstead.stores.loops import PerLoop
from lockstead.stores.pool import Pool
from lockstead.stores.port import StoreBase
from lockstead.stores.redis import aio_connection
from lockstead.stores.redis.access import Access, Address
from lockstead.stores.redis.aio_connection import AsyncConnection
from lockstead.stores.redis.connection import Connection, Peer, connected, exchange, exchange_one
from lockstead.stores.redis.encoding import Keys, Request, Words, answer, request
from lockstead.stores.redis.listing import listed
from lockstead.stores.redis.route import Ask, Asking, Route, call, call_many, route, settled
from lockstead.stores.redis.watches import Watches
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee

A = TypeVar("A")
T = TypeVar("T")

GUARANTEE: Final = "one server, or asynchronous replication: a failover may forget the latest locks"


def traits_of(scheme: str) -> Traits:
    """Return the traits of a store on Redis, which are the same for every way to it."""
    return Traits(scheme=scheme, guarantee=GUARANTEE, clock=StoreClock.ONE_CLOCK, tokens=TokenSource.NATIVE)


CONNECTIONS_MAX: Final = 1000
"""Connections in use at once, in a process and in each of its event loops; a server takes 10,000 by default."""

ENROL_LIMIT: Final = 1.0
"""Seconds that a request of the watching thread may take."""


class RedisStore(StoreBase):
    """Records as hashes in Redis. Promises no more than Redis does: see `Traits.guarantee`."""

    def __init__(self, access: Access, url: str, prefix: str) -> None:
        """url: as it may be printed."""
        self._access = access
        self.url = url
        self._keys = Keys(prefix)
        self.traits = traits_of(url.partition(":")[0])
        self._is_open = True
        self._inherited: list[object] = []
        self._begin()

    def _begin(self) -> None:
        self._route: Route = route(self._access)
        self._pool = Pool(self.url, partial(connected, self._access), CONNECTIONS_MAX)
        self._pools = PerLoop(self._pool_of_loop, AsyncPool.aclose)
        self._watches = Watches(
            self._keys, known=self._route.known, find=self._found, connect=self._listener, ask=self._asked
        )

    def _pool_of_loop(self) -> AsyncPool[Peer, AsyncConnection]:
        return AsyncPool(self.url, partial(aio_connection.connected, self._access), CONNECTIONS_MAX)

    # --- blocking ------------------------------------------------------------------------------------------------

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds: one script call, but for a listing."""
        bounds = bounds_of(command, limit)
        if isinstance(command, List):
            return cast(A, self._run(self._listed(command), bounds))
        asked = request(command, self._keys)
        address = self._route.known(asked.keys[0])
        if address is None or limit <= 0:
            return cast(A, self._run(self._carried_out(command), bounds))
        self._watches.asks(command)
        # the usual way, in few steps: the server is known and its reply is the answer. A script would do the same
        self._check_open()
        try:
            said = exchange_one(self._pool, address, asked.packed(), bounds)
        except StoreError as error:
            self._failed(Ask(address, ()), error)
            raise
        if not isinstance(said, bytes):
            following = settled(said, asked, address, self._route)
            said = self._run(following, bounds)
        return cast(A, self._read(command, said))

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Carry out many commands with one sending for each server."""
        try:
            return self._run(self._all_carried_out(commands), Bounds(limit, LISTING_MAX))
        except StoreError as error:
            return [error] * len(commands)

    def _run(self, script: Asking[T], bounds: Bounds) -> T:
        """Drive a script to its end. OutcomeUnknown for replies of another shape than any of Redis's own."""
        self._check_open()

        def answered(ask: Ask) -> list[Any]:
            try:
                return exchange(self._pool, ask, _part(bounds, ask))
            except StoreError as error:
                self._failed(ask, error)
                raise

        try:
            return drive(script, answered)
        except MALFORMED as error:
            raise senseless("Redis", error) from error

    def _failed(self, ask: Ask, error: StoreError) -> bool:
        """Note that a server may be gone, or not be the one to ask any more."""
        if ask.to_sentinel or not isinstance(error, OutcomeUnknown | StoreUnavailable):
            return False
        self._route.failed(ask.address)
        self._pool.drop((ask.address, False))
        return True

    # --- awaiting ------------------------------------------------------------------------------------------------

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command like `perform`, awaiting, from any event loop of asyncio."""
        self._check_open()
        bounds = bounds_of(command, limit)
        pool = await self._pools.get()

        async def answered(ask: Ask) -> list[Any]:
            try:
                return await aio_connection.exchange(pool, ask, _part(bounds, ask))
            except StoreError as error:
                if self._failed(ask, error):
                    await pool.drop((ask.address, False))
                raise

        try:
            return await adrive(self._carried_out(command), answered)
        except MALFORMED as error:
            raise senseless("Redis", error) from error

    # --- scripts -------------------------------------------------------------------------------------------------

    def _carried_out(self, command: Command[Any]) -> Asking[Any]:
        if isinstance(command, List):
            return (yield from self._listed(command))
        self._watches.asks(command)
        said = yield from call(request(command, self._keys), self._route)
        return self._read(command, said)

    def _read(self, command: Command[Any], said: bytes) -> Any:
        """Read an answer, and note it for the subscribers to the record."""
        answered = answer(command, said)
        self._watches.note(command, answered)
        return answered

    def _listed(self, command: List) -> Asking[Listing]:
        return listed(command, self._keys, self._route)

    def _all_carried_out(self, commands: Sequence[Command[Any]]) -> Asking[list[Any]]:
        results: list[Any] = [None] * len(commands)
        single = [number for number, command in enumerate(commands) if not isinstance(command, List)]
        requests = [request(commands[number], self._keys) for number in single]
        for number in single:
            self._watches.asks(commands[number])
        said = yield from call_many(requests, self._route)
        for number, reply in zip(single, said, strict=True):
            try:
                is_failure = isinstance(reply, StoreError)
                results[number] = reply if is_failure else self._read(commands[number], reply)
            except StoreError as error:
                results[number] = error
        for number, command in enumerate(commands):
            if isinstance(command, List):
                try:
                    results[number] = yield from self._listed(command)
                except StoreError as error:
                    results[number] = error
        return results

    # --- watching ------------------------------------------------------------------------------------------------

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Call on_change(is_free) whenever the record changes and it is this process's turn, until it is closed."""
        return self._watches.subscribe(name, on_change)

    def _found(self, record: bytes) -> Address:
        return self._run(self._route.find(record), Bounds(ENROL_LIMIT))

    def _listener(self, address: Address, limit: float) -> Connection:
        return connected(self._access, (address, False), time.monotonic() + limit)

    def _asked(self, requests: Sequence[Request]) -> list[Any]:
        return self._run(call_many(requests, self._route), Bounds(ENROL_LIMIT))

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """What of Redis keeps a promise."""
        from lockstead.stores.redis.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Look at the version, the memory, the persistence and the replicas of every master."""
        from lockstead.stores.redis.doctor import examination

        def send(address: Address, words: Words) -> Any:
            return exchange(self._pool, Ask(address, (words,)), Bounds(limit))[0]

        self._check_open()
        masters = self._run(self._route.masters(), Bounds(limit))
        yield self._access.transport((*self._access.addresses, *masters))
        yield from examination(masters, self._watches.channel, send)

    # --- life ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it: its bytes belong to the parent."""
        self._inherited += [self._pool, self._pools, self._watches]
        self._begin()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self._is_open = False
        self._watches.close()
        self._pool.close()
        self._pools.close()


def _part(bounds: Bounds, ask: Ask) -> Bounds:
    if bounds.is_over:
        raise StoreUnavailable(f"no time is left of {bounds.limit:.3g} s to ask Redis; it was not sent")
    return bounds if ask.share == 1.0 else bounds.part(ask.share)


__all__ = ["RedisStore", "traits_of"]
