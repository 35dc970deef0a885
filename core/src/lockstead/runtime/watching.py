"""The subscription of a script. It is kept across all pauses, so that no change is missed between them.

In a store with a queue, a waiter for the lock subscribes to its turn.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from lockstead.protocol.commands import Pause, Paused
from lockstead.stores.port import Subscription, SupportsFifoQueue, SupportsWatch
from lockstead.values import Name


class Rings(Protocol):
    """A waker that a change rings."""

    @property
    def is_gone(self) -> bool:
        """Return whether no waiter can ever wait again, since its event loop is closed."""
        ...

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        ...

    def take(self) -> bool:
        """Return whether it was rung, and reset it."""
        ...


class _Changes:
    """The changes reported since the last pause. The store refers to it, so it must not refer to the subscription.

    It drops a waker whose loop was closed: otherwise the store would keep its task alive, and that the subscription.
    """

    __slots__ = ("has_changed", "is_free", "is_heeded", "waker")

    def __init__(self, waker: Rings) -> None:
        self.waker: Rings | None = waker
        self.has_changed = self.is_free = self.is_heeded = False

    def changed(self, is_free: bool) -> None:
        """Note a change, and end the pause if one is in progress."""
        if is_free:
            self.is_free = True
        self.has_changed = True
        waker = self.waker
        if waker is not None and (self.is_heeded or waker.is_gone):
            waker.ring()
            if waker.is_gone:
                self.waker = None


class Watching:
    """The subscription of one script. Closed by `close`, or when it is no longer referenced."""

    __slots__ = ("_changes", "_queue", "_store", "_subscribed", "_subscription", "_waker")

    def __init__(self, store: object, waker: Rings) -> None:
        self._store = store if isinstance(store, SupportsWatch) else None
        self._queue = store if isinstance(store, SupportsFifoQueue) else None
        self._waker = waker
        self._changes = _Changes(waker)
        self._subscribed: tuple[Name, str] | None = None
        self._subscription: Subscription | None = None

    def begin(self, command: Pause) -> bool:
        """Begin a pause; return True if the change that it waits for has happened already.

        After a request with an unknown outcome a change does not end the pause, and the change that the request itself
        made is forgotten.
        """
        if not command.wake_on_change:
            self.close()
            return False
        self._subscribe(command.name, command.waiter_id)
        changes = self._changes
        changes.is_heeded = True  # set before reading has_changed, so that a change in between is not missed
        return changes.has_changed

    def _subscribe(self, name: Name, waiter_id: str) -> None:
        if self._store is None or (self._subscription is not None and self._subscribed == (name, waiter_id)):
            return
        self.close()
        self._subscribed = (name, waiter_id)
        on_change = self._changes.changed
        # a store that cannot be watched is polled: its error is raised by the next read
        with suppress(Exception):
            if self._queue is not None and waiter_id:
                self._subscription = self._queue.enqueue(name, waiter_id, on_change)
            else:
                self._subscription = self._store.subscribe(name, on_change)

    def end(self, command: Pause, seconds: float) -> Paused:
        """End a pause; return its length and what ended it."""
        changes = self._changes
        changes.is_heeded = False
        changed, is_free = changes.has_changed, changes.is_free
        changes.has_changed = changes.is_free = False
        return Paused(seconds, self._waker.take() or changed, is_free and bool(command.waiter_id))

    def close(self) -> None:
        """End the subscription. Does not block."""
        subscription, self._subscription = self._subscription, None
        self._changes = _Changes(self._waker)
        if subscription is not None:
            subscription.close()
