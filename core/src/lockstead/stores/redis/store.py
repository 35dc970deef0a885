"""The store on Redis: each command is one call of a Lua script, never repeated.

Requests are encoded by `encoding`, executed on the server by `scripts`, and sent to the server that `route` chooses.
Must not know what the fields of a record mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import StoreError
from lockstead.protocol.commands import (
    Command,
    List,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.stores.bounds import LISTING_MAX, Bounds
from lockstead.stores.driven import DrivenStore
from lockstead.stores.kept import outcome
from lockstead.stores.loops import PerLoop
from lockstead.stores.redis.access import Access, Address
from lockstead.stores.redis.aio_driver import AsyncDriver
from lockstead.stores.redis.driver import Driver
from lockstead.stores.redis.encoding import Keys, answer, request
from lockstead.stores.redis.listing import listed
from lockstead.stores.redis.resp import Words
from lockstead.stores.redis.route import Ask, Asking, call, call_many, route
from lockstead.stores.redis.watches import Watches
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee

GUARANTEE: Final = "one server, or asynchronous replication: a failover may forget the latest locks"


def traits_of(scheme: str) -> Traits:
    """Return the traits of a store on Redis: one server, Sentinel and Cluster have the same."""
    return Traits(scheme=scheme, guarantee=GUARANTEE, clock=StoreClock.ONE_CLOCK, tokens=TokenSource.NATIVE)


class RedisStore(DrivenStore[Driver, AsyncDriver]):
    """Records as strings in Redis. Promises no more than Redis does: see `Traits.guarantee`."""

    def __init__(self, access: Access, url: str, prefix: str) -> None:
        """url: without credentials, see `Store.url`."""
        self._access = access
        self.url = url
        self._keys = Keys(prefix)
        self.traits = traits_of(url.partition(":")[0])
        super().__init__()

    def _begin(self) -> None:
        self._route = route(self._access)
        self._driver = Driver(self.url, self._access, self._route)
        self._drivers = PerLoop(partial(AsyncDriver, self.url, self._access, self._route), AsyncDriver.aclose)
        self._watches = Watches(self._keys, self._access, self._route, self._driver)

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Carry out many commands with one pipeline for each server."""
        try:
            return self._driver.run(self._script_of_many(commands), Bounds(limit, LISTING_MAX))
        except StoreError as error:
            return [error] * len(commands)

    # --- scripts -------------------------------------------------------------------------------------------------

    def _script(self, command: Command[Any], _bounds: Bounds) -> Asking[Any]:
        if isinstance(command, List):
            return (yield from listed(command, self._keys, self._route))
        self._watches.asks(command)
        return self._read(command, (yield from call(request(command, self._keys), self._route)))

    def _read(self, command: Command[Any], reply: bytes) -> Any:
        """Decode a reply, and note it for the subscribers to the record."""
        answered = answer(command, reply)
        self._watches.note(command, answered)
        return answered

    def _script_of_many(self, commands: Sequence[Command[Any]]) -> Asking[list[Any]]:
        results: list[Any] = [None] * len(commands)
        single = [number for number, command in enumerate(commands) if not isinstance(command, List)]
        requests = [request(commands[number], self._keys) for number in single]
        for number in single:
            self._watches.asks(commands[number])
        replies = yield from call_many(requests, self._route)
        for number, reply in zip(single, replies, strict=True):
            is_failure = isinstance(reply, StoreError)
            results[number] = reply if is_failure else outcome(self._read, commands[number], reply)
        for number, command in enumerate(commands):
            if isinstance(command, List):
                try:
                    results[number] = yield from listed(command, self._keys, self._route)
                except StoreError as error:
                    results[number] = error
        return results

    # --- watching ------------------------------------------------------------------------------------------------

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Call on_change(is_free) whenever the record changes and it is this process's turn, until it is closed."""
        return self._watches.subscribe(name, on_change)

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """Return what in this store is behind a guarantee."""
        from lockstead.stores.redis.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Check the version, the memory, the persistence and the replicas of every master."""
        from lockstead.stores.redis.doctor import examination

        def send(address: Address, words: Words) -> Any:
            return self._driver.exchange(Bounds(limit), Ask(address, (words,)))[0]

        masters = self._driver.run(self._route.masters(), Bounds(limit))
        yield self._access.transport((*self._access.addresses, *masters))
        yield from examination(masters, self._watches.channel, send)

    # --- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self._watches.close()
        super().close()
