"""How a process hears that it is its turn: one subscription a server, and a thread that listens to it.

A release publishes to one waiter's channel. What is lost on the way costs a poll. Must not know scripts, nor what a
record means.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import filterfalse
from operator import attrgetter
from typing import Final

from lockstead.errors import StoreError
from lockstead.stores.redis.access import Address
from lockstead.stores.redis.link import Link

CONNECT_LIMIT: Final = 5.0
"""Seconds in which a subscription must stand; meanwhile waiters poll."""


class Bell:
    """Rings once, for one who waits: a lock that is held until then, with less on the way than in an Event."""

    __slots__ = ("_silence", "has_rung")

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()
        self.has_rung = False

    def ring(self) -> None:
        """Wake the waiter. Nothing the second time; not safe to call from two threads at once."""
        if not self.has_rung:
            self.has_rung = True
            self._silence.release()

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds` (at least 0); True as soon as it rings."""
        return self._silence.acquire(timeout=seconds)


class Bells:
    """Who waits in this process, by the key of the record. Safe to share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[bytes, list[Bell]] = {}

    def hang(self, record: bytes) -> Bell:
        """Return a bell that rings for a record until it is taken down."""
        bell = Bell()
        with self._lock:
            self._bells.setdefault(record, []).append(bell)
        return bell

    def take_down(self, record: bytes, bell: Bell) -> None:
        """End what `hang` began."""
        with self._lock:
            bells = self._bells[record]
            bells.remove(bell)
            if not bells:
                del self._bells[record]

    def ring(self, record: bytes) -> bool:
        """Ring for one who waits for a record; False if nobody does."""
        with self._lock:
            bell = next(filterfalse(attrgetter("has_rung"), self._bells.get(record, ())), None)
            if bell is not None:
                bell.ring()
        return bell is not None

    def wake_all(self) -> None:
        """Ring for everybody: they may have missed something."""
        with self._lock:
            for bells in self._bells.values():
                for bell in bells:
                    bell.ring()


class Ear:
    """Listens on one server, in a thread of its own, from the first wait until it is closed or the connection ends."""

    def __init__(
        self,
        connect: Callable[[float], Link],
        channel: bytes,
        bells: Bells,
        unheard: Callable[[bytes], None],
    ) -> None:
        """connect makes a connection within a limit; unheard is told of a record for which nobody waits here."""
        self._connect = connect
        self._channel = channel
        self._bells = bells
        self._unheard = unheard
        self._link: Link | None = None
        self._is_closed = False
        self.is_listening = threading.Event()
        """Set once the subscription stands. Whoever enrols before that is taken for dead."""
        self.has_ended = threading.Event()
        self.failure: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="lockstead-redis-ear", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            link = self._link = self._connect(CONNECT_LIMIT)
            if self._is_closed:
                return
            link.listen(self._channel)
            self.is_listening.set()
            while True:
                record = link.heard()
                if record is not None and not self._bells.ring(record):
                    self._unheard(record)
        except StoreError as error:
            self.failure = error
        except Exception:  # noqa: BLE001, S110 - the connection ended, however it did: who waits polls and listens anew
            pass
        finally:
            self.is_listening.clear()
            self.has_ended.set()
            if self._link is not None:
                self._link.close()
            self._bells.wake_all()

    def close(self) -> None:
        """End the subscription, and the thread with it. Does not wait for a connection that is being made."""
        self._is_closed = True
        link = self._link
        if link is not None:
            link.hang_up()
            if threading.current_thread() is not self._thread:
                self._thread.join(1.0)


class Ears:
    """The subscriptions of one store, one for each server on which it waits. Safe to share."""

    def __init__(
        self, connect: Callable[[Address, float], Link], channel: bytes, unheard: Callable[[bytes], None]
    ) -> None:
        self.bells = Bells()
        self.channel = channel
        self._connect = connect
        self._unheard = unheard
        self._lock = threading.Lock()
        self._ears: dict[Address, Ear] = {}

    def at(self, address: Address) -> Ear:
        """Return the subscription on a server, a new one where none listens."""
        with self._lock:
            ear = self._ears.get(address)
            if ear is None or ear.has_ended.is_set():

                def connect(limit: float) -> Link:
                    return self._connect(address, limit)

                ear = self._ears[address] = Ear(connect, self.channel, self.bells, self._unheard)
            return ear

    def close(self) -> None:
        """End all subscriptions; who waits is woken."""
        with self._lock:
            ears = list(self._ears.values())
            self._ears.clear()
        for ear in ears:
            ear.close()
        self.bells.wake_all()
