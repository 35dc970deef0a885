"""The waiters of one store: a thread with an event loop takes their queue places, watches for all, and calls them.

A waiter observes who is ahead of it and watches only that place, and its own; the first waiter watches the record. So a
release wakes one waiter, and the others send nothing. A watch begins at the revision after the observation, so that
nothing is missed in between; when it breaks (a member died, the revision was compacted), its waiter observes again.
Must not know what a lock is.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from typing import Any, Final, TypeAlias

from lockstead.stores.bounds import Bounds
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.aio_client import ANSWER_MAX, AsyncClient
from lockstead.stores.etcd.members import Members
from lockstead.stores.etcd.queue import Observation, Queue
from lockstead.stores.etcd.scripts import Operation, ask
from lockstead.stores.etcd.watches import Span, Watch, Watches
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions, join, started
from lockstead.values import SHARED, TURN, Name

LIMIT: Final = 5.0
"""Maximum seconds for one request of a waiter."""

REQUESTS_MAX: Final = 8
"""Concurrent requests; a slow one delays only its own waiter."""

RETRIES_SOON: Final = 0.02
"""Seconds until a place is tried again that is not in the queue, or whose waiter is acquiring the lock."""

TICK: Final = 1.0
"""Seconds between two checks whether the session must be renewed."""

PAUSE_MIN: Final = 0.02
PAUSE_MAX: Final = 5.0
"""Seconds until a waiter observes again after a failure."""

IDLE_MAX: Final = 10.0
"""Seconds without a subscription after which the thread ends."""

CLOSES_WITHIN: Final = 2.0
"""Seconds that `close` waits for the thread to end."""

Key: TypeAlias = "tuple[Name, str]"
"""A record and a waiter; "" for a subscription without a queue place."""

_NEW: Final = "not observed yet"


class Listener:
    """The subscriptions of one store. Its thread lives while there are any; replaced in a forked child."""

    def __init__(self, queue: Queue, members: Members) -> None:
        self.queue = queue
        self.members = members
        self.subscriptions = Subscriptions[Key](self._ended)
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._inherited: _Worker | None = None
        self._is_open = True

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """See `SupportsWatch.subscribe`."""
        return self._added((name.topic, ""), on_change)

    def enqueue(self, name: Name, waiter_id: str, on_turn: OnChange) -> Subscription:
        """See `SupportsFifoQueue.enqueue`."""
        self.queue.enter(name, waiter_id)  # now, because a `leave` that follows must know of it
        return self._added((name, waiter_id), on_turn)

    def _added(self, key: Key, on_change: OnChange) -> Subscription:
        subscription, _ = self.subscriptions.add(key, on_change)
        with self._lock:
            worker = self._worker
            if worker is None and self._is_open:
                worker = self._worker = self._started()
        if worker is not None:
            worker.tell(worker.begin, key)
            if worker.states.get(key, _NEW) is None:
                on_change(bool(key[1]))  # observed before, so the worker will not call again
        return subscription

    def _started(self) -> _Worker | None:
        worker = _Worker(self)
        if started(worker.thread):
            return worker
        worker.loop.close()
        return None

    def _ended(self, key: Key) -> None:
        """Note that a key has no subscription left. Takes no lock: the garbage collector may call this."""
        worker = self._worker
        if worker is not None:
            worker.tell(worker.end, key)

    def let_go(self, worker: _Worker) -> bool:
        """Forget an idle worker; return False if it has subscriptions again."""
        with self._lock:
            if self.subscriptions:
                return False
            if self._worker is worker:
                self._worker = None
            return True

    def forget(self) -> None:
        """Forget the worker in a forked child, which has no such thread."""
        # kept, because its collection would unregister sockets from the selector, which the parent shares
        self._inherited, self._worker = self._worker, None

    def close(self) -> None:
        """End the thread, and wait a short time for it."""
        with self._lock:
            self._is_open = False
            worker, self._worker = self._worker, None
        if worker is not None:
            with suppress(RuntimeError):  # the loop is closed
                worker.loop.call_soon_threadsafe(worker.loop.stop)
            join(worker.thread, CLOSES_WITHIN)


class _Worker:
    """The thread of a listener, and the state of its event loop."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.loop = asyncio.SelectorEventLoop()
        self.thread = threading.Thread(target=self._run, name="lockstead-etcd", daemon=True)
        self.client = AsyncClient(listener.members)
        self.watches = Watches(listener.members)
        # the record as observed by waiters whose turn it is: its revision, None if it is absent, or if they are slots
        self.states: dict[Key, str | None] = {}
        self._waiters: dict[Key, _Waiter] = {}
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._beating = asyncio.Lock()

    def tell(self, call: Callable[[Key], None], key: Key) -> None:
        """Have the worker call this. May be called from any thread; takes no lock."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call, key, context=Context())

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with suppress(RuntimeError), asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._until_idle())  # RuntimeError if `close` stops the loop

    async def _until_idle(self) -> None:
        """Renew the session while there are places, until there was no subscription for some time."""
        listener, idle = self.listener, 0.0
        try:
            while idle < IDLE_MAX or not listener.let_go(self):
                await asyncio.sleep(TICK)
                idle = 0.0 if listener.subscriptions else idle + TICK
                self.watches.follow()
                if listener.queue.places:
                    with suppress(Exception):  # whatever it is, it is tried again
                        await self.beat()
        finally:
            await self.client.aclose()

    def begin(self, key: Key) -> None:
        """Start watching, or queueing, for the subscriptions of a key."""
        if key not in self._waiters and key in self.listener.subscriptions:
            waiter = self._waiters[key] = _Waiter(self, key)
            waiter.task = self.loop.create_task(waiter.run())
            waiter.task.add_done_callback(lambda _task: self._over(waiter))

    def end(self, key: Key) -> None:
        """Stop what `begin` started, unless there is a new subscription."""
        waiter = self._waiters.get(key)
        if waiter is not None and key not in self.listener.subscriptions:
            self._over(waiter)
            waiter.end()

    def _over(self, waiter: _Waiter) -> None:
        if self._waiters.get(waiter.key) is waiter:
            del self._waiters[waiter.key]
            self.states.pop(waiter.key, None)

    async def carried(self, script: Operation[Any]) -> Any:
        """Run a script, as soon as there is room for it."""
        async with self._room:
            return await self.client.run(script, Bounds(LIMIT, ANSWER_MAX))

    async def beat(self) -> None:
        """Renew or create the session, once for all callers."""
        async with self._beating:  # without `_room`: it keeps the places of all waiters
            await self.client.run(self.listener.queue.beat(), Bounds(LIMIT))

    def saw(self, waiter: _Waiter, state: str | None, *, is_group: bool = False) -> None:
        """Note the record as observed by a waiter whose turn it is, and call it if that has changed.

        The first observation of a group of readers counts as a change: a reader need not wait for its end. Slots are
        observed only if any of them may have changed.
        """
        if self._waiters.get(waiter.key) is not waiter:
            return
        is_slot = waiter.key[0].is_slot
        before = self.states.get(waiter.key, _NEW)
        # before the call, so that a new subscriber is called here or by `_added`
        self.states[waiter.key] = None if is_slot else state
        if is_slot or (state != before and (state is None or before != _NEW or is_group)):
            self.listener.subscriptions.changed(waiter.key, is_free=state is None and bool(waiter.key[1]))

    def saw_others(self, waiter: _Waiter) -> None:
        """Note that it is not this waiter's turn, so that it is called once it is, whatever the record is then."""
        if self._waiters.get(waiter.key) is waiter:
            self.states.pop(waiter.key, None)


class _Waiter:
    """The task that serves the subscriptions to one key."""

    def __init__(self, worker: _Worker, key: Key) -> None:
        self.key = key
        self.task: asyncio.Task[None] | None = None
        self._name, waiter_id = key
        self._worker = worker
        self._queue = worker.listener.queue
        self._place = self._queue.find(self._name, waiter_id) if waiter_id else None
        self._waker = asyncio.Event()
        self._watches: dict[Span, Watch] = {}
        self._has_ended = bool(waiter_id) and self._place is None

    @property
    def _is_over(self) -> bool:
        return self._has_ended or (self._place is not None and self._place.has_left)

    def end(self) -> None:
        """End it soon. A request in flight is not cancelled, so that its outcome is known."""
        self._has_ended = True
        self._waker.set()

    async def run(self) -> None:
        """Observe and watch until there is no subscription, or the waiter has left the queue."""
        pause = PAUSE_MIN
        while not self._is_over:
            began_at, is_in_turn = time.monotonic(), False
            # any error: callers also poll, and get it from their own requests
            with suppress(Exception):
                is_in_turn = await self._watched()
            if not is_in_turn and not self._is_over:
                pause = PAUSE_MIN if time.monotonic() - began_at > PAUSE_MAX else min(PAUSE_MAX, 2 * pause)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        self._watch((), 0)

    async def _watched(self) -> bool:
        """Observe once, and watch until that must be repeated; return False if nothing ahead has changed."""
        seen = await self._observed()
        if seen is None:
            return True
        worker, record = self._worker, self._record()
        ahead = record if seen.ahead is None else (seen.ahead, None)
        own = () if self._place is None else ((self._queue.root.place(*self._place.id), None),)
        self._watch((ahead, *own), seen.revision + 1)
        if ahead == record:
            found = seen.record
            is_group = found is not None and found.fields.get("mode") == SHARED
            worker.saw(self, None if found is None else found.changed, is_group=is_group)
        else:
            worker.saw_others(self)
        while True:
            await self._waker.wait()
            self._waker.clear()
            watch, others = self._watches[ahead], [self._watches[span] for span in own]
            if self._is_over or (watch.has_changed and ahead != record):
                return True
            if any(one.is_broken for one in self._watches.values()) or any(one.has_changed for one in others):
                return False
            if watch.has_changed:
                watch.has_changed = False
                worker.saw(self, watch.state)

    def _record(self) -> Span:
        root, name = self._queue.root, self._name
        if name.is_slot:  # those of the key: numbers, which are below the turn
            return root.base(name) + "/", root.base(replace(name, part=TURN))
        base = root.base(name) + ":"
        return base, encoding.end_of(base)

    async def _observed(self) -> Observation | None:
        """Observe the record, with a place in the queue who is ahead; return None if the waiter has left."""
        worker, queue, place = self._worker, self._queue, self._place
        if place is None:
            seen: Observation = await worker.carried(_record_observed(self._record()))
            return seen
        while not self._is_over:
            if place.created is None and not place.is_acquiring:
                worker.saw_others(self)
                await worker.beat()
                await worker.carried(queue.take(place))
            if place.created is not None and not place.is_acquiring:
                seen = await worker.carried(queue.look(place))
                if seen.is_in_queue:
                    return seen
                place.created = None
            await asyncio.sleep(RETRIES_SOON)
        return None

    def _watch(self, spans: Iterable[Span], revision: int) -> None:
        """Watch these from a revision on, and nothing else. Watches that have not changed are kept."""
        watches = self._worker.watches
        kept = {span: self._watches[span] for span in spans if span in self._watches}
        kept = {span: watch for span, watch in kept.items() if not watch.has_changed and not watch.is_broken}
        for watch in self._watches.values():
            if watch.span not in kept:
                watches.remove(watch)
        self._watches = {span: kept.get(span) or watches.add(span, revision, self._waker) for span in spans}


def _record_observed(record: Span) -> Operation[Observation]:
    start, end = record
    body = yield from ask(encoding.range_of("Range", encoding.between(start, end or ""), keys_only=True))
    found = body.get("kvs")
    return Observation(True, None, encoding.kv_of(found[0]) if found else None, int(body["header"]["revision"]))
