"""Changes of records, for all subscribers of one store: by messages to a channel of this process's own.

A process is listed once for each record that it watches, however many subscribe. A change takes the one that came first
off the list and publishes to its channel: it is listed again as soon as it is known that the record is there. One
thread for each server listens there, and makes the requests that list it. What is lost on the way costs a poll. Must
not know scripts, nor what a record means.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import Command, Conflict, Create, Read, Replace, Snapshot
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Address
from lockstead.stores.redis.connection import Connection, connected
from lockstead.stores.redis.driver import Driver
from lockstead.stores.redis.encoding import Keys, Request, enrol, pass_on
from lockstead.stores.redis.messages import Messages
from lockstead.stores.redis.route import Route, call_many
from lockstead.stores.redis.scripts import CHANGED
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions, join, started
from lockstead.values import Name

LISTENS_WITHIN: Final = 5.0
"""Seconds in which a connection must listen; meanwhile subscribers poll."""

ASK_LIMIT: Final = 1.0
"""Seconds that a request of this module may take."""

ENROLS_AGAIN: Final = 20.0
"""Seconds after which a process enrols again: the list of a record lasts for a minute after the last one came."""

ASKS_WITHIN: Final = 0.2
"""Seconds in which a process that was notified of a release asks for the lock; else the next one is notified."""

LOOK_MIN: Final = 0.1
LOOK_MAX: Final = 1.0
"""Seconds until an absent record, of which there are no messages, is looked at again."""

PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 5.0
"""Seconds until the next try after the connection was lost or refused."""

IDLES: Final = 30.0
"""Seconds without any subscription after which a connection is closed."""

ENROLS_AT_ONCE: Final = 500
"""Requests that are sent together."""

PLACE_KEPT: Final = 30.0
"""Seconds after the last enrolment for which a place is kept; longer than any pause of a waiter."""

FORGETS_ABOVE: Final = 1000
"""Places that are remembered beyond twice as many as there are records that are subscribed to."""

_GRANTS: Final = (Create, Replace)
_CHANGED: Final = CHANGED.encode()


class Watches:
    """The subscriptions of one process to the records of one store. Safe to share; replaced in a forked child."""

    def __init__(self, keys: Keys, access: Access, route: Route, driver: Driver) -> None:
        self.subscriptions = Subscriptions[Name]()
        self.channel = keys.channel(os.urandom(8).hex())
        self.keys = keys
        self._access = access
        self._route = route
        self._driver = driver
        self.lock = threading.Lock()
        self.is_open = True
        self.listeners: dict[Address | None, Listener] = {}
        self.homes: dict[Name, Listener] = {}
        # notified of a release, and has not asked for the lock yet: until when it may
        self.notified: dict[Name, float] = {}
        # how a record was when last seen, so that a change before the enrolment is noticed; taken by that
        self.seen: dict[Name, Snapshot] = {}
        # since when this process waits, so that one that was notified in vain does not lose its place
        self.places: dict[Name, tuple[bytes, float]] = {}

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Return a subscription to a record, as `stores.port.SupportsWatch` wants it."""
        subscription, _ = self.subscriptions.add(name.topic, on_change)
        self.place(name.topic)
        return subscription

    def asks(self, command: Command[Any]) -> None:
        """Note what this process asks: if it asks for a lock, no other process need be notified."""
        if self.notified and isinstance(command, _GRANTS):
            self.notified.pop(command.name, None)

    def note(self, command: Command[Any], answered: object) -> None:
        """Note what this process was answered: if a record exists, its subscribers are to be enrolled."""
        if isinstance(command, _GRANTS):
            if isinstance(answered, Conflict):
                self._saw(command.name.topic)
            elif self.places:  # the next waiter here came later
                self.places.pop(command.name.topic, None)
        elif isinstance(command, Read) and isinstance(answered, Snapshot) and command.name.space.is_lock:
            if len(self.seen) >= FORGETS_ABOVE:
                self.seen.clear()
            self.seen[command.name.topic] = answered
            self._saw(command.name.topic)

    def _saw(self, name: Name) -> None:
        if name not in self.subscriptions:
            return
        listener = self.homes.get(name)
        if listener is not None and not listener.watches(name):
            listener.absent.pop(name, None)
            self.place(name)

    def place(self, name: Name) -> None:
        """Have a record watched on its server. Makes no request: one whose server is not known is looked for."""
        address = self.known(name)
        with self.lock:
            if not self.is_open:
                return
            listener = self.listeners.get(address)
            if listener is None:
                listener = Listener(self, address)
                if not started(listener.thread):
                    listener.end()
                    return
                self.listeners[address] = listener
            self.homes[name] = listener
            listener.fresh.add(name)
            listener.wake()

    def known(self, name: Name) -> Address | None:
        """Return the server of a record, if that need not be asked first."""
        return self._route.known(self.keys.record(name))

    def find(self, name: Name) -> Address:
        """Return the server of a record. Raises StoreError."""
        return self._driver.run(self._route.find(self.keys.record(name)), Bounds(ASK_LIMIT))

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Return for each request the answer of its script, or its StoreError."""
        return self._driver.run(call_many(requests, self._route), Bounds(ASK_LIMIT))

    def connect(self, address: Address) -> Connection:
        """Return a connection to listen on. Raises StoreError."""
        return connected(self._access, (address, False), time.monotonic() + LISTENS_WITHIN)

    def since(self, name: Name) -> bytes:
        """Return the place of this process among the waiters for a record; empty if it has none."""
        place, kept_at = self.places.get(name, (b"", 0.0))
        return place if time.monotonic() - kept_at < PLACE_KEPT else b""

    def keep_place(self, name: Name, since: bytes) -> None:
        """Keep a place for when this process enrols again."""
        now = time.monotonic()
        if len(self.places) > 2 * len(self.subscriptions) + FORGETS_ABOVE:
            kept = [(one, place) for one, place in self.places.copy().items() if now - place[1] < PLACE_KEPT]
            self.places = dict(kept[-FORGETS_ABOVE:])
        self.places[name] = since, now

    def close(self) -> None:
        """End the threads and their connections; waits for them shortly."""
        with self.lock:
            self.is_open = False
            listeners = [*self.listeners.values()]
            for listener in listeners:
                listener.wake()
        for listener in listeners:
            join(listener.thread, 2.0)


class Listener:
    """The thread that listens on one server. Without an address, the one that finds out which server it is."""

    def __init__(self, watches: Watches, address: Address | None) -> None:
        self.address = address
        # to be enrolled at once; under the lock, like `wake`
        self.fresh: set[Name] = set()
        # enrolled until, in the order of these instants; not enrolled, and when to try again
        self._enrolled: dict[Name, float] = {}
        self._loose: dict[Name, float] = {}
        # of these: which were absent, and how long the next pause is
        self.absent: dict[Name, float] = {}
        self._watches = watches
        self._subscriptions = watches.subscriptions
        self._ear, self._wakes = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._wakes, False)
        self.thread = threading.Thread(target=self._run, name="lockstead-redis-watch", daemon=True)

    def watches(self, name: Name) -> bool:
        """Return whether this process is enrolled for a record, and there is where it is to be."""
        return name in self._enrolled and self._watches.known(name) in (None, self.address)

    def wake(self) -> None:
        """Have the thread look what there is to do."""
        with suppress(BlockingIOError):
            os.write(self._wakes, b"w")

    def end(self) -> None:
        """Close what wakes the thread."""
        os.close(self._ear)
        os.close(self._wakes)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = PAUSE_MIN
        while not self._may_end():
            began_at = time.monotonic()
            try:
                self._find()
                self._listen()
            except Exception:  # noqa: BLE001 - whatever it is, subscribers poll, and it is tried again
                self._lost()
                pause = PAUSE_MIN if time.monotonic() - began_at > PAUSE_MAX else min(PAUSE_MAX, pause * 2)
                self._rest(pause * random.uniform(0.5, 1.0))
        self._lost()
        self.end()

    def _may_end(self) -> bool:
        """Return whether the thread is not needed; then it is forgotten: the next subscription starts another."""
        watches = self._watches
        with watches.lock:
            if watches.is_open and self.fresh:
                return False
            if watches.listeners.get(self.address) is self:
                del watches.listeners[self.address]
            return True

    def _rest(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while self._watches.is_open and (left := ends_at - time.monotonic()) > 0:
            self._wait(self._poll(), left)

    def _find(self) -> None:
        """Hand over what is on another server. Raises StoreError where it cannot be found out."""
        watches = self._watches
        with watches.lock:
            fresh = [*self.fresh]
        for name in fresh:
            if name in self._subscriptions and watches.find(name) == self.address:
                continue
            with watches.lock:
                self.fresh.discard(name)
            if name in self._subscriptions:
                watches.place(name)
            else:
                self._forget(name)

    def _listen(self) -> None:
        """Listen until there was no subscription for long. Raises when the connection is lost."""
        if self.address is None or not self.fresh:
            return
        connection = self._watches.connect(self.address)
        try:
            # a process that enrols before it listens is taken for dead
            self._serve(Messages(connection, self._watches.channel, LISTENS_WITHIN))
        finally:
            connection.close()

    def _serve(self, messages: Messages) -> None:
        poll = self._poll()
        poll.register(messages, select.POLLIN | select.POLLPRI)
        used_at = time.monotonic()
        came: Sequence[bytes] = messages.first
        while self._watches.is_open:
            self._notify(came)
            now = time.monotonic()
            # one who was just woken needs the interpreter: nothing is done here that is not due
            if self.fresh or self._next_at(now) <= now:
                self._pass_on_late(now)  # before it enrols again, or it would be the next one itself
                self._enrol(now)
                now = time.monotonic()
            if self._enrolled or self._loose or self.fresh:
                used_at = now
            elif now - used_at > IDLES:
                return
            came = messages.read() if self._wait(poll, self._next_at(now) - now) else ()

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        return poll

    def _wait(self, poll: select.poll, seconds: float) -> bool:
        """Wait until this thread is woken, or something came from the server: True."""
        is_readable = False
        for descriptor, _ in poll.poll(max(0, int(seconds * 1000) + 1)):
            if descriptor != self._ear:
                is_readable = True
                continue
            with suppress(BlockingIOError):
                os.read(self._ear, 4096)
        return is_readable

    def _next_at(self, now: float) -> float:
        """Return the instant of what is to be done next."""
        first = next(iter(self._enrolled.values()), now + IDLES)
        return min((first, *self._loose.values(), *self._watches.notified.copy().values()))

    # --- messages ------------------------------------------------------------------------------------------------

    def _notify(self, messages: Sequence[bytes]) -> None:
        """Call the subscribers of what has changed; where there are none any more, have another process notified."""
        watches = self._watches
        others: list[Name] = []
        for message in messages:
            is_free = not message.endswith(_CHANGED)
            name = watches.keys.name(message.removesuffix(_CHANGED))
            if name is None:
                continue
            name = name.topic
            self._enrolled.pop(name, None)
            if name not in self._subscriptions:
                self._forget(name)
                others.append(name)
                continue
            if name.is_slot:  # its subscribers are called once it is enrolled again: other slots change meanwhile
                self._loose[name] = 0.0
                continue
            if is_free:
                # most who are notified get it: whoever enrolled now would be taken for a waiter when it is given back
                watches.notified[name] = self._loose[name] = time.monotonic() + ASKS_WITHIN
                self.absent[name] = LOOK_MIN
            else:
                self._loose[name] = 0.0
                self.absent.pop(name, None)
            self._subscriptions.changed(name, is_free)
        self._pass_on(others)

    def _pass_on_late(self, now: float) -> None:
        """Pass on the notifications that no waiter of this process has used."""
        notified = self._watches.notified
        late = [name for name, until in notified.copy().items() if until <= now]
        self._pass_on([name for name in late if notified.pop(name, None) is not None])

    def _pass_on(self, names: Sequence[Name]) -> None:
        if names:
            with suppress(StoreError):  # then the others find out by polling
                self._watches.ask([pass_on(name, self._watches.keys) for name in names])

    # --- enrolling -----------------------------------------------------------------------------------------------

    def _enrol(self, now: float) -> None:
        """Enrol for what is new, what was notified, and what would be forgotten. Raises StoreError if nothing comes."""
        watches = self._watches
        with watches.lock:
            fresh, self.fresh = self.fresh, set()
        late = {name for name, at in self._loose.items() if at <= now}
        late.update(name for name, _ in takewhile(lambda entry: entry[1] <= now, self._enrolled.items()))
        wanted: list[Name] = []
        for name in fresh | late:
            if name in self._subscriptions:
                wanted.append(name)
                # until it is answered: so none is forgotten where the connection is lost
                self._loose[name] = now
            else:
                self._forget(name)
        for first in range(0, len(wanted), ENROLS_AT_ONCE):
            names = wanted[first : first + ENROLS_AT_ONCE]
            replies = watches.ask([self._request(name) for name in names])
            for name, reply in zip(names, replies, strict=True):
                self._answered(name, reply, is_fresh=name in fresh)
            failures = [reply for reply in replies if isinstance(reply, OutcomeUnknown | StoreUnavailable)]
            if len(failures) == len(names):
                raise failures[0]

    def _request(self, name: Name) -> Request:
        watches = self._watches
        return enrol(name, watches.channel, watches.since(name), watches.seen.pop(name, None), watches.keys)

    def _answered(self, name: Name, reply: Any, *, is_fresh: bool) -> None:
        """Note what came of an enrolment, and call the subscribers of a record that has changed meanwhile."""
        watches, now = self._watches, time.monotonic()
        word, _, since = reply.partition(b" ") if isinstance(reply, bytes) else (b"", b"", b"")
        self._enrolled.pop(name, None)
        if word == b"absent":
            before = self.absent.get(name)
            pause = self.absent[name] = LOOK_MIN if before is None else min(LOOK_MAX, 2 * before)
            self._loose[name] = now + pause
            if is_fresh or before is None:
                self._subscriptions.changed(name, is_free=True)
        elif word in (b"ok", b"changed") and since.isdigit():
            self._loose.pop(name, None)
            self._enrolled[name] = now + ENROLS_AGAIN
            watches.homes[name] = self
            watches.keep_place(name, since)
            if self.absent.pop(name, None) is not None or word == b"changed":
                self._subscriptions.changed(name)
        else:  # subscribers poll
            self._loose[name] = now + PAUSE_MAX
        if watches.known(name) != self.address:
            self._forget(name)
            watches.place(name)

    def _forget(self, name: Name) -> None:
        for names in (self._enrolled, self._loose, self.absent):
            names.pop(name, None)
        if self._watches.homes.get(name) is self:
            self._watches.homes.pop(name, None)

    def _lost(self) -> None:
        """Have everything enrolled anew, and call all subscribers: they may have missed something."""
        names = {*self._enrolled, *self._loose}
        for one in (self._enrolled, self._loose, self.absent):
            one.clear()
        with self._watches.lock:
            self.fresh |= {name for name in names if name in self._subscriptions}
        for name in names:
            self._subscriptions.changed(name)
