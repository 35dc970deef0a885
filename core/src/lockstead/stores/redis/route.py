"""Which server a request goes to, and what follows where that one sends it elsewhere.

Scripts only: they yield `Ask`s, are sent replies, and are driven by a store, blocking or awaiting. A request that
is answered NOSCRIPT, MOVED or ASK was not applied, so asking again is not a repetition. Must not know what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final, TypeAlias, TypeVar
from zlib import crc32

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.script import Script
from lockstead.stores.kept import MALFORMED
from lockstead.stores.redis.access import Access, Address, Kind
from lockstead.stores.redis.encoding import Request
from lockstead.stores.redis.errors import code_of, refusal
from lockstead.stores.redis.resp import ServerError, Words
from lockstead.stores.servers import endpoint

T = TypeVar("T")

SLOTS: Final = 16384
"""Slots of a Cluster."""

STEPS_MAX: Final = 8
"""Times that one request may be sent on, from node to node."""


@frozen
class Ask:
    """Commands for one server, sent together. share: the part of the time left that this may take.

    to_sentinel: it is asked as a Sentinel.
    """

    address: Address
    commands: tuple[Words, ...]
    share: float = 1.0
    to_sentinel: bool = False


Asking: TypeAlias = Script[Ask, list[Any], T]
"""A script that is answered with the replies to its commands, in their order."""


class Route:
    """Knows which server is responsible for a key: here, the one there is. Shared by threads. what: for messages."""

    def __init__(self, what: str, server: Address | None = None) -> None:
        self._what = what
        self._server = server

    def known(self, key: bytes) -> Address | None:  # noqa: ARG002 - for those that overwrite it
        """Return the server for a key, if that need not be asked first."""
        return self._server

    def find(self, key: bytes) -> Asking[Address]:
        """Return the server for a key."""
        return self.known(key) or (yield from self._asked(key))

    def _asked(self, key: bytes) -> Asking[Address]:
        """Ask for the server for a key that is not known."""
        raise NotImplementedError

    def masters(self) -> Asking[tuple[Address, ...]]:
        """Return every server on which there are records."""
        return ((yield from self.find(b"")),)

    def layout(self) -> Asking[tuple[tuple[Address, ...], str]]:
        """Return these servers in order, and a text that changes when one gets keys of another."""
        return (yield from self.masters()), ""

    def failed(self, address: Address) -> None:
        """Note that a server was not to be reached, or is not the one to ask."""

    def moved(self, key: bytes, address: Address) -> None:  # noqa: ARG002 - as above
        """Note that another server is responsible for a key. StoreRefused where there is but one."""
        self.asks(address)

    def asks(self, address: Address) -> None:  # noqa: ARG002 - as above
        """Allow that another server is asked once. StoreRefused where there is but one."""
        raise StoreRefused(f"{self._what} is a node of a Redis Cluster; write redis+cluster://")


def route(access: Access) -> Route:
    """Return the route to the servers of an access."""
    match access.kind:
        case Kind.SERVER:
            return Route(endpoint(access.addresses[0]), access.addresses[0])
        case Kind.SENTINEL:
            return BySentinel(access.addresses, access.service)
        case Kind.CLUSTER:
            return ByCluster(access.addresses)


class BySentinel(Route):
    """Sentinels know the master. Asked when none is known, or when the known one fails."""

    def __init__(self, sentinels: Sequence[Address], service: str) -> None:
        super().__init__(f"the service {service!r}")
        self._sentinels = tuple(sentinels)
        self._service = service

    def failed(self, address: Address) -> None:
        """Ask the Sentinels next time."""
        if self._server == address:
            self._server = None

    def _asked(self, key: bytes) -> Asking[Address]:  # noqa: ARG002 - they have one master
        words = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service.encode())
        nobody = f"no Sentinel says where the master of {self._service!r} is"
        sentinel, master = yield from _in_turn(self._sentinels, words, self._named, nobody, to_sentinel=True)
        # a Sentinel that answers is asked first the next time: others may be down
        self._sentinels = (sentinel, *(one for one in self._sentinels if one != sentinel))
        self._server = master
        return master

    def _named(self, reply: Any, sentinel: Address) -> Address:
        if reply is None:
            raise StoreRefused(
                f"the Sentinels know no service {self._service!r}; name it as their `sentinel monitor` does"
            )
        if isinstance(reply, ServerError):
            if code_of(reply) == "no command":
                raise StoreRefused(f"{endpoint(sentinel)} is not a Sentinel; write redis://, or correct the address")
            raise refusal(reply, endpoint(sentinel))
        try:
            return reply[0].decode(), int(reply[1])
        except MALFORMED:
            raise StoreRefused(f"{endpoint(sentinel)} does not name a master as a Sentinel does") from None


def _in_turn(
    servers: Sequence[Address],
    words: Words,
    read: Callable[[Any, Address], T],
    nobody: str,
    *,
    to_sentinel: bool = False,
) -> Asking[tuple[Address, T]]:
    """Ask servers one after the other until one says what `read` takes; return that server, and what was read.

    Each has a fair share of the time. Raises StoreRefused if any refuses, else StoreUnavailable, which says nobody.
    """
    failed: StoreError | None = None
    for count, server in enumerate(servers):
        share = 1.0 / (len(servers) - count + 1)
        try:
            reply = (yield Ask(server, (words,), share, to_sentinel))[0]
            return server, read(reply, server)
        except StoreError as error:
            failed = failed if isinstance(failed, StoreRefused) else error
    if isinstance(failed, StoreRefused):
        raise failed
    raise StoreUnavailable(f"{nobody} ({failed})")


class ByCluster(Route):
    """The nodes of a Cluster know which slots each of them has."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        super().__init__("the Cluster")
        self._seeds = tuple(seeds)
        self._slots: dict[int, Address] = {}
        self._is_stale = True

    def known(self, key: bytes) -> Address | None:
        """Return the master of a key's slot, if the slots are known."""
        return None if self._is_stale else self._slots.get(slot_of(key))

    def _asked(self, key: bytes) -> Asking[Address]:
        yield from self._refreshed()
        slot = slot_of(key)
        address = self._slots.get(slot)
        if address is None:
            raise StoreUnavailable(f"no node of the Cluster has slot {slot}: the Cluster is not complete")
        return address

    def masters(self) -> Asking[tuple[Address, ...]]:
        """Return every master that has slots, as they are now."""
        yield from self._refreshed()
        return tuple(dict.fromkeys(self._slots.values()))

    def layout(self) -> Asking[tuple[tuple[Address, ...], str]]:
        """Return every master that has slots, and a digest of who has which."""
        masters = yield from self.masters()
        ranges = [
            (owner, len(list(slots))) for owner, slots in groupby(self._slots[slot] for slot in sorted(self._slots))
        ]
        return tuple(sorted(masters)), f"{crc32(repr(ranges).encode()):x}"

    def failed(self, address: Address) -> None:  # noqa: ARG002 - as every route
        """Ask for the slots the next time."""
        self._is_stale = True

    def moved(self, key: bytes, address: Address) -> None:
        """Note where the slot is now; the others may have moved as well."""
        self._slots[slot_of(key)] = address

    def asks(self, address: Address) -> None:
        """Allow it: the slot is on its way there."""

    def _refreshed(self) -> Asking[None]:
        nodes = tuple(dict.fromkeys((*self._slots.values(), *self._seeds)))
        nobody = "no node of the Cluster says which slots it has"
        _, self._slots = yield from _in_turn(nodes, (b"CLUSTER", b"SLOTS"), _slots, nobody)
        self._is_stale = False


def _slots(reply: Any, asked: Address) -> dict[int, Address]:
    if isinstance(reply, ServerError):
        raise refusal(reply, endpoint(asked))
    slots: dict[int, Address] = {}
    try:
        for first, last, master, *_replicas in reply:
            # a node that does not know its own address says nothing: it is the one that was asked
            address = (master[0].decode() if master[0] else asked[0], int(master[1]))
            slots.update(dict.fromkeys(range(max(0, first), min(SLOTS, last + 1)), address))
    except MALFORMED:
        raise StoreRefused(f"{endpoint(asked)} does not name its slots as a Redis Cluster does") from None
    if not slots:
        raise StoreUnavailable(f"{endpoint(asked)} knows of no slots")
    return slots


def slot_of(key: bytes) -> int:
    """Return the slot of a key in a Cluster."""
    from redis.crc import key_slot

    slot: int = key_slot(key)
    return slot


# --- scripts -----------------------------------------------------------------------------------------------------


def call(request: Request, along: Route) -> Asking[Any]:
    """Carry out one script call, and return the answer of the script."""
    address = along.known(request.keys[0]) or (yield from along.find(request.keys[0]))
    (reply,) = yield Ask(address, (request.by_digest(),))
    return (yield from _settled(reply, request, address, along)) if isinstance(reply, ServerError) else reply


def call_many(requests: Sequence[Request], along: Route) -> Asking[list[Any]]:
    """Carry out many, those for one server together. Returns for each the answer of its script, or its StoreError."""
    by_server: dict[Address, list[int]] = {}
    results: list[Any] = [None] * len(requests)
    for number, request in enumerate(requests):
        try:
            address = yield from along.find(request.keys[0])
        except StoreError as error:
            results[number] = error
            continue
        by_server.setdefault(address, []).append(number)
    replied: list[tuple[int, Address, Any]] = []
    for count, (address, numbers) in enumerate(by_server.items()):
        commands = tuple(requests[number].by_digest() for number in numbers)
        # a fair share: a server that does not answer takes no time from the others
        share = 1.0 / (len(by_server) - count)
        try:
            replies = yield Ask(address, commands, share)
        except StoreError as error:
            for number in numbers:
                results[number] = error
            continue
        answers = dict(zip(numbers, replies, strict=True))
        errors = [number for number, reply in answers.items() if isinstance(reply, ServerError)]
        unknown = [number for number in errors if code_of(answers[number]) == "NOSCRIPT"]
        if unknown:
            with suppress(StoreError):  # what is not answered is asked again below, each by itself
                again = yield Ask(address, _taught([requests[number] for number in unknown]), share)
                answers.update(zip(unknown, again, strict=True))
        replied += [(number, address, reply) for number, reply in answers.items()]
    # all were asked: a redirection to a server that does not answer delays no other answer
    for number, address, reply in replied:
        try:
            results[number] = yield from _settled(reply, requests[number], address, along)
        except StoreError as error:
            results[number] = error
    return results


def _taught(requests: Sequence[Request]) -> tuple[Words, ...]:
    """Return the calls of requests whose scripts a server does not know: the first of each script teaches it."""
    taught: set[bytes] = set()
    commands: list[Words] = []
    for request in requests:
        commands.append(request.by_digest() if request.script.digest in taught else request.in_full())
        taught.add(request.script.digest)
    return tuple(commands)


def _settled(reply: Any, request: Request, address: Address, along: Route) -> Asking[Any]:
    """Follow a reply until it is an answer."""
    key = request.keys[0]
    for _ in range(STEPS_MAX):
        if not isinstance(reply, ServerError):
            return reply
        commands: tuple[Words, ...]
        match code_of(reply):
            case "NOSCRIPT":
                commands = (request.in_full(),)
            case "MOVED":
                address = _target(reply, address)
                along.moved(key, address)
                commands = (request.by_digest(),)
            case "ASK":
                address = _target(reply, address)
                along.asks(address)
                commands = ((b"ASKING",), request.in_full())
            case code:
                if code in ("READONLY", "CLUSTERDOWN", "MASTERDOWN"):
                    along.failed(address)
                raise refusal(reply, endpoint(address))
        reply = (yield Ask(address, commands))[-1]
    raise StoreUnavailable(f"{request.what} was sent from node to node; the Cluster is moving slots")


def _target(reply: ServerError, asked: Address) -> Address:
    """Read where MOVED and ASK send us."""
    target = str(reply).split()[-1]
    host, _, port = target.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise StoreRefused(f"{endpoint(asked)} sends us to no address; is it a node of a Redis Cluster?")
    return host.strip("[]") or asked[0], int(port)
