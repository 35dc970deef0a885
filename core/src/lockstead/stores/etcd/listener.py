"""The waiters of one store: a thread with an event loop takes their places, watches for all of them, and calls them.

A waiter looks who is ahead of it and watches only that one, and its own place; the first watches the record. So a
release wakes one waiter and asks nothing of the others. A watch begins at the revision that follows the look, so that
nothing is missed in between; when it breaks (a member died, the revision was compacted), its waiter looks again. Must
not know what a lock is.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, TypeAlias

from lockstead.stores.bounds import Bounds
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.aio_client import ANSWER_MAX, AsyncClient
from lockstead.stores.etcd.members import Members
from lockstead.stores.etcd.queue import Queue, Sight
from lockstead.stores.etcd.scripts import Operation, ask
from lockstead.stores.etcd.watches import Span, Watch, Watches
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions
from lockstead.values import Name

LIMIT: Final = 5.0
"""Seconds for one request of a waiter, at most."""

REQUESTS_MAX: Final = 8
"""Requests that are under way at a time; each keeps nobody but its own waiter waiting."""

ASKS_SOON: Final = 0.02
"""Seconds until a place is looked after whose waiter asks for the lock itself."""

TICK: Final = 1.0
"""Seconds between two looks whether the session is to be renewed."""

PAUSE_MIN: Final = 0.02
PAUSE_MAX: Final = 5.0
"""Seconds until a waiter looks again after a look or a watch has failed."""

IDLES: Final = 10.0
"""Seconds without any subscription after which the thread ends."""

CLOSES_WITHIN: Final = 2.0
"""Seconds that `close` waits for the thread."""

Key: TypeAlias = "tuple[Name, str]"
"""A record and a waiter, "" for those who only watch."""

_NEW: Final = "not looked at yet"


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
        """Return a subscription to a record, as `stores.port.SupportsWatch` wants it."""
        return self._added((name, ""), on_change)

    def enqueue(self, name: Name, waiter_id: str, on_turn: OnChange) -> Subscription:
        """Return a subscription to a waiter's turn, as `stores.port.SupportsFifoQueue` wants it."""
        self.queue.enter(name.key, waiter_id)  # here: a `leave` that follows has to know of it
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
                on_change(bool(key[1]))  # its absence was found before, and is not notified again
        return subscription

    def _started(self) -> _Worker | None:
        worker = _Worker(self)
        try:
            worker.thread.start()
        except RuntimeError:  # there is no thread: subscribers poll
            worker.loop.close()
            return None
        return worker

    def _ended(self, key: Key) -> None:
        """Note that nobody subscribes any more. Takes no lock, for the garbage collector may come here."""
        worker = self._worker
        if worker is not None:
            worker.tell(worker.end, key)

    def let_go(self, worker: _Worker) -> bool:
        """Forget a thread that has nothing to do; False if it has."""
        with self._lock:
            if self.subscriptions:
                return False
            if self._worker is worker:
                self._worker = None
            return True

    def forget(self) -> None:
        """Forget the thread, in a forked child, where it is not."""
        # kept: what is collected with it would end the watches of the parent, whose selector it shares
        self._inherited, self._worker = self._worker, None

    def close(self) -> None:
        """End the thread; waits for it shortly."""
        with self._lock:
            self._is_open = False
            worker, self._worker = self._worker, None
        if worker is not None:
            with suppress(RuntimeError):  # it has just ended
                worker.loop.call_soon_threadsafe(worker.loop.stop)
            if worker.thread is not threading.current_thread():
                worker.thread.join(CLOSES_WITHIN)


class _Worker:
    """The thread of a listener, and what belongs to its event loop."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.loop = asyncio.SelectorEventLoop()
        self.thread = threading.Thread(target=self._run, name="lockstead-etcd", daemon=True)
        self.client = AsyncClient(listener.members)
        self.watches = Watches(listener.members)
        # what is known of the record by those whose turn it is: its revision, None if it is absent
        self.states: dict[Key, str | None] = {}
        self._waiters: dict[Key, _Waiter] = {}
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._beating = asyncio.Lock()

    def tell(self, call: Callable[[Key], None], key: Key) -> None:
        """Have the thread call. From any thread; takes no lock."""
        with suppress(RuntimeError):  # it has just ended
            self.loop.call_soon_threadsafe(call, key, context=Context())

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self.loop
        try:
            with suppress(RuntimeError):  # stopped by `close`
                loop.run_until_complete(self._until_idle())
            loop.run_until_complete(_cancelled())
            loop.run_until_complete(self.client.aclose())
        finally:
            loop.close()

    async def _until_idle(self) -> None:
        """Renew the session while there are places, until nobody has subscribed for long."""
        listener, idle = self.listener, 0.0
        while idle < IDLES or not listener.let_go(self):
            await asyncio.sleep(TICK)
            idle = 0.0 if listener.subscriptions else idle + TICK
            self.watches.follow()
            if listener.queue.places:
                with suppress(Exception):  # whatever it is, it is tried again
                    await self.beat()

    def begin(self, key: Key) -> None:
        """Begin to watch, or to queue, for the subscriptions of a key."""
        if key not in self._waiters and key in self.listener.subscriptions:
            waiter = self._waiters[key] = _Waiter(self, key)
            waiter.task = self.loop.create_task(waiter.run())
            waiter.task.add_done_callback(lambda _task: self._over(waiter))

    def end(self, key: Key) -> None:
        """End what `begin` began, unless somebody subscribes again."""
        waiter = self._waiters.get(key)
        if waiter is not None and key not in self.listener.subscriptions:
            self._over(waiter)
            waiter.end()

    def _over(self, waiter: _Waiter) -> None:
        if self._waiters.get(waiter.key) is waiter:
            del self._waiters[waiter.key]
            self.states.pop(waiter.key, None)

    async def carried(self, script: Operation[Any]) -> Any:
        """Carry out a script, when there is room for it."""
        async with self._room:
            return await self.client.run(script, Bounds(LIMIT, ANSWER_MAX))

    async def beat(self) -> None:
        """See to it that there is a session that lives: one caller does, and others wait for it."""
        async with self._beating:  # not behind the requests of a thousand waiters, whose places it keeps
            await self.client.run(self.listener.queue.beat(), Bounds(LIMIT))

    def saw(self, waiter: _Waiter, state: str | None) -> None:
        """Note what the record is like for one whose turn it is, and call it if that has changed."""
        if self._waiters.get(waiter.key) is not waiter:
            return
        before = self.states.get(waiter.key, _NEW)
        # the state first: a subscriber that comes meanwhile is called by one of both
        self.states[waiter.key] = state
        if state != before and (state is None or before != _NEW):
            self.listener.subscriptions.changed(waiter.key, is_free=state is None and bool(waiter.key[1]))

    def saw_others(self, waiter: _Waiter) -> None:
        """Note that it is not the turn of one: whatever the record is like then, it is called."""
        if self._waiters.get(waiter.key) is waiter:
            self.states.pop(waiter.key, None)


async def _cancelled() -> None:
    """Cancel all other tasks of the loop, and await their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Waiter:
    """What is done for the subscriptions to one key."""

    def __init__(self, worker: _Worker, key: Key) -> None:
        self.key = key
        self.task: asyncio.Task[None] | None = None
        self._name, waiter_id = key
        self._worker = worker
        self._queue = worker.listener.queue
        self._place = self._queue.find(self._name.key, waiter_id) if waiter_id else None
        self._waker = asyncio.Event()
        self._watches: dict[Span, Watch] = {}
        self._has_ended = bool(waiter_id) and self._place is None

    @property
    def _is_over(self) -> bool:
        return self._has_ended or (self._place is not None and self._place.has_left)

    def end(self) -> None:
        """End it soon. A request that is under way is not cancelled, so that its outcome is known."""
        self._has_ended = True
        self._waker.set()

    async def run(self) -> None:
        """Look and watch until nobody subscribes, or the waiter has left the queue."""
        pause = PAUSE_MIN
        while not self._is_over:
            began_at, is_in_turn = time.monotonic(), False
            # whatever goes wrong: callers poll, and their requests say what it is
            with suppress(Exception):
                is_in_turn = await self._watched()
            if not is_in_turn and not self._is_over:
                pause = PAUSE_MIN if time.monotonic() - began_at > PAUSE_MAX else min(PAUSE_MAX, 2 * pause)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        self._watch((), 0)

    async def _watched(self) -> bool:
        """Look once, and watch until there is a reason to look again; False if nothing ahead has changed."""
        sight = await self._sight()
        if sight is None:
            return True
        worker, record = self._worker, self._record()
        ahead = record if sight.ahead is None else (sight.ahead, None)
        own = () if self._place is None else ((self._queue.root.place(*self._place.id), None),)
        self._watch((ahead, *own), sight.revision + 1)
        if ahead == record:
            worker.saw(self, None if sight.record is None else sight.record.changed)
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
        base = self._queue.root.base(self._name) + ":"
        return base, encoding.end_of(base)

    async def _sight(self) -> Sight | None:
        """Look at what stands ahead and at the record, with a place in the queue; None if the waiter has left."""
        worker, queue, place = self._worker, self._queue, self._place
        if place is None:
            sight: Sight = await worker.carried(_looked(self._record()))
            return sight
        while not self._is_over:
            if place.is_asking:
                await asyncio.sleep(ASKS_SOON)
                continue
            if place.created is None:
                worker.saw_others(self)
                await worker.beat()
                await worker.carried(queue.take(place))
                continue
            sight = await worker.carried(queue.look(self._name, place))
            if sight.is_in_queue:
                return sight
            place.created = None
            await asyncio.sleep(ASKS_SOON)
        return None

    def _watch(self, spans: Iterable[Span], revision: int) -> None:
        """Watch these from a revision on, and nothing else. One that is watched without a change is watched on."""
        watches = self._worker.watches
        kept = {span: self._watches[span] for span in spans if span in self._watches}
        kept = {span: watch for span, watch in kept.items() if not watch.has_changed and not watch.is_broken}
        for watch in self._watches.values():
            if watch.span not in kept:
                watches.remove(watch)
        self._watches = {span: kept.get(span) or watches.add(span, revision, self._waker) for span in spans}


def _looked(record: Span) -> Operation[Sight]:
    start, end = record
    body = yield from ask(encoding.range_of("Range", start, end or "", keys_only=True))
    found = body.get("kvs")
    return Sight(True, None, encoding.kv_of(found[0]) if found else None, int(body["header"]["revision"]))
