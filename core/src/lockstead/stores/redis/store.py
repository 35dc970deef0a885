"""How commands reach Redis: one script call each, never repeated; who waits is woken by the release.

Must not know what the fields of a record mean. What goes over the wire is `wire`, what the server does
`scripts`, and which server it is `route`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import (
    Command,
    Create,
    List,
    Listing,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.stores.bounds import LISTING_MAX, Bounds, bounds_of
from lockstead.stores.loops import PerLoop
from lockstead.stores.redis.access import Access, Address, Kind
from lockstead.stores.redis.ear import Ears
from lockstead.stores.redis.link import Link, Links, Stopped
from lockstead.stores.redis.listing import listed
from lockstead.stores.redis.loop import AwaitedLinks
from lockstead.stores.redis.route import Ask, Route, Talk, call, call_many, route, settled, told
from lockstead.stores.redis.wire import Keys, Request, Words, answer, enrol, pass_on, request
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee

A = TypeVar("A")
T = TypeVar("T")

GUARANTEE: Final = "one server, or asynchronous replication: a fail-over may forget the latest locks"


def traits_of(scheme: str) -> Traits:
    """Return the traits of a store on Redis, which are the same for every way to it."""
    return Traits(scheme=scheme, guarantee=GUARANTEE, clock=StoreClock.ONE_CLOCK, tokens=TokenSource.NATIVE, wakes=True)


LOOK_EVERY: Final = 0.05
"""Seconds after which a wait looks whether its caller wants to stop."""

LOOK_AGAIN: Final = 0.02
"""Seconds until a wait on an absent record ends: it may have gone between the caller's read and the wait."""

ENROL_LIMIT: Final = 1.0
"""Seconds that a wait spends on asking to be woken; then its caller polls."""

PLACES_MAX: Final = 1000
"""Locks of which a store remembers since when it waits for them."""

PLACE_KEPT: Final = 30.0
"""Seconds after the last wait for which a place is kept; longer than any pause of a waiter."""


class RedisStore:
    """Records as hashes in Redis. Promises no more than Redis does: see `Traits.guarantee`."""

    def __init__(self, access: Access, url: str, prefix: str) -> None:
        """url: as it may be printed."""
        self._access = access
        self._url = url
        self._keys = Keys(prefix)
        self._traits = traits_of(url.partition(":")[0])
        self._is_routed = access.kind is Kind.CLUSTER
        self._is_open = True
        self._inherited: list[object] = []
        self._begin()

    def _begin(self) -> None:
        self._route: Route = route(self._access)
        self._links = Links(self._access)
        self._looped = PerLoop(partial(AwaitedLinks, self._access), AwaitedLinks.close)
        channel = self._keys.channel(os.urandom(8).hex())
        self._ears = Ears(self._listener, channel, self._unheard)
        # hints alone, for waiting: how a lock's record was when last seen, and since when this process waits for it, so
        # that who was woken in vain does not lose the place
        self._seen: dict[str, Snapshot] = {}
        self._places: dict[str, tuple[bytes, float]] = {}

    def __repr__(self) -> str:
        return f"RedisStore({self.url!r})"

    @property
    def traits(self) -> Traits:
        """What the protocol must know of this store."""
        return self._traits

    @property
    def url(self) -> str:
        """The store's URL without credentials."""
        return self._url

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
        # the usual way: it is known whom to ask, and what is said is the answer. A conversation would say the same
        self._check_open()
        try:
            said = self._links.exchange_one(address, asked.packed(), bounds, is_routed=self._is_routed)
        except StoreError as error:
            self._failed(Ask(address, ()), error)
            raise
        if not isinstance(said, bytes):
            following = settled(said, asked, address, self._route, is_routed=self._is_routed)
            said = self._run(following, bounds)
        return cast(A, self._read(command, said))

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Carry out many commands with one sending for each server."""
        try:
            return self._run(self._all_carried_out(commands), Bounds(limit, LISTING_MAX))
        except StoreError as error:
            return [error] * len(commands)

    def _run(self, talk: Talk[T], bounds: Bounds, is_over: Callable[[float], bool] | None = None) -> T:
        """Drive a conversation to its end."""
        self._check_open()
        try:
            ask = next(talk)
            while True:
                try:
                    replies = self._links.exchange(ask, _part(bounds, ask), is_over)
                except StoreError as error:
                    self._failed(ask, error)
                    ask = talk.throw(error)
                else:
                    ask = told(talk, replies)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _failed(self, ask: Ask, error: StoreError) -> bool:
        """Note that a server may be gone, or not be the one to ask any more."""
        if ask.to_sentinel or not isinstance(error, OutcomeUnknown | StoreUnavailable):
            return False
        self._route.failed(ask.address)
        self._links.drop(ask.address)
        return True

    # --- awaiting ------------------------------------------------------------------------------------------------

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command like `perform`, awaiting, from any event loop of asyncio."""
        self._check_open()
        bounds = bounds_of(command, limit)
        talk = self._carried_out(command)
        links = await self._looped.get()
        try:
            ask = next(talk)
            while True:
                try:
                    replies = await links.exchange(ask, _part(bounds, ask))
                except StoreError as error:
                    if self._failed(ask, error):
                        await links.drop(ask.address)
                    ask = talk.throw(error)
                else:
                    ask = told(talk, replies)
        except StopIteration as stop:
            return stop.value

    # --- conversations -------------------------------------------------------------------------------------------

    def _carried_out(self, command: Command[Any]) -> Talk[Any]:
        if isinstance(command, List):
            return (yield from self._listed(command))
        said = yield from call(request(command, self._keys), self._route, is_routed=self._is_routed)
        return self._read(command, said)

    def _read(self, command: Command[Any], said: bytes) -> Any:
        """Read an answer, and note how the record is."""
        answered = answer(command, said)
        if isinstance(answered, Snapshot):
            self._note(command, answered)
        return answered

    def _note(self, command: Any, seen: Snapshot) -> None:
        name: Name = command.name
        if name.space is not Space.LOCK:
            return
        if len(self._seen) >= PLACES_MAX:
            self._seen.clear()
        self._seen[name.key] = seen
        if self._places and isinstance(command, Create | Replace):
            self._places.pop(name.key, None)

    def _listed(self, command: List) -> Talk[Listing]:
        return listed(command, self._keys, self._route, is_routed=self._is_routed)

    def _called(self, asked: Request) -> Talk[Any]:
        return (yield from call(asked, self._route, is_routed=self._is_routed))

    def _all_carried_out(self, commands: Sequence[Command[Any]]) -> Talk[list[Any]]:
        results: list[Any] = [None] * len(commands)
        single = [number for number, command in enumerate(commands) if not isinstance(command, List)]
        requests = [request(commands[number], self._keys) for number in single]
        said = yield from call_many(requests, self._route, is_routed=self._is_routed)
        for number, reply in zip(single, said, strict=True):
            try:
                is_failure = isinstance(reply, StoreError)
                results[number] = reply if is_failure else answer(commands[number], reply)
            except StoreError as error:
                results[number] = error
        for number, command in enumerate(commands):
            if isinstance(command, List):
                try:
                    results[number] = yield from self._listed(command)
                except StoreError as error:
                    results[number] = error
        return results

    # --- waiting -------------------------------------------------------------------------------------------------

    def wait(self, name: Name, seconds: float, is_over: Callable[[float], bool]) -> bool:
        """Block until a release (or another change) wakes this process, or may have been missed."""
        ends_at = time.monotonic() + seconds
        if seconds <= 0:
            return False
        record = self._keys.record(name)
        bell = self._ears.bells.hang(record)
        try:
            if not self._listens(record, ends_at, is_over):
                return False
            try:
                is_there = self._enrolled(name, min(seconds, ENROL_LIMIT), is_over)
            except Stopped:
                return False
            if is_there is None:
                return True
            if not is_there:
                return not is_over(min(LOOK_AGAIN, seconds))
            while not is_over(0.0):
                left = ends_at - time.monotonic()
                if left <= 0:
                    return False
                if bell.wait(min(left, LOOK_EVERY)):
                    return True
            return False
        finally:
            self._ears.bells.take_down(record, bell)

    def _listens(self, record: bytes, ends_at: float, is_over: Callable[[float], bool]) -> bool:
        """Have a subscription on the server of this record; False if the wait is over before it stands."""
        address = self._run(self._route.find(record), Bounds(ENROL_LIMIT))
        ear = self._ears.at(address)
        while not ear.is_listening.wait(min(LOOK_EVERY, max(0.0, ends_at - time.monotonic()))):
            if ear.has_ended.is_set():
                raise ear.failure or StoreUnavailable("the subscription to Redis ended")
            if is_over(0.0) or time.monotonic() >= ends_at:
                return False
        return True

    def _enrolled(self, name: Name, limit: float, is_over: Callable[[float], bool]) -> bool | None:
        """Ask to be woken. None: it is there and has changed since it was last seen."""
        since, kept_at = self._places.get(name.key, (b"", 0.0))
        if time.monotonic() - kept_at > PLACE_KEPT:
            since = b""
        asked = enrol(name, self._ears.channel, since, self._seen.pop(name.key, None), self._keys)
        said = self._run(self._called(asked), Bounds(limit), is_over)
        word, _, since = said.partition(b" ")
        if word != b"ok":
            return None if word == b"conflict" else False
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        self._places[name.key] = (since, time.monotonic())
        return True

    def _listener(self, address: Address, limit: float) -> Link:
        return self._links.connected(address, Bounds(limit), is_routed=self._is_routed)

    def _unheard(self, record: bytes) -> None:
        """Wake somebody else: nobody here waits any more."""
        name = self._keys.name(record)
        if name is None:
            return
        try:
            self._run(self._called(pass_on(name, self._keys)), Bounds(ENROL_LIMIT))
        except StoreError:
            return  # then the others find out by polling

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
            return self._links.exchange(Ask(address, (words,), is_routed=self._is_routed), Bounds(limit))[0]

        self._check_open()
        masters = self._run(self._route.masters(), Bounds(limit))
        yield self._access.transport((*self._access.addresses, *masters))
        yield from examination(masters, self._ears.channel, send)

    # --- life ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it: its bytes belong to the parent."""
        self._inherited += [self._links, self._looped, self._ears]
        self._begin()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self._is_open = False
        self._ears.close()
        self._links.close()
        self._looped.close()


def _part(bounds: Bounds, ask: Ask) -> Bounds:
    if bounds.is_over:
        raise StoreUnavailable(f"no time is left of {bounds.limit:.3g} s to ask Redis; it was not sent")
    return bounds if ask.share == 1.0 else bounds.part(ask.share)


__all__ = ["RedisStore", "traits_of"]
