"""Blocks that are interrupted at a random place, by a loss or by Ctrl-C, and what must hold after each of them."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from lockstead import AsyncClient, AsyncLease, Client, Lease, LeaseLost, LossReason, NotAcquired
from lockstead.events import LockEvent
from lockstead.runtime import context
from lockstead.runtime.interrupt import SIGNAL, LeaseLostInterrupt
from lockstead.runtime.keeper import _referred
from lockstead.stores.memory import MemoryStore

LONGEST: float = 60.0
"""Seconds until a block that was not interrupted counts as forgotten: a busy machine may take many of them."""


class Torn(AssertionError):
    """Something that must never happen."""


def quiet(_event: LockEvent) -> None:
    """Hear nothing."""


def lose(lease: Lease | AsyncLease) -> None:
    """Lose a lease now, as the keeper would."""
    lease._engine.keeper.lose(lease._kept, LossReason.TAKEN)


class Losses:
    """Losses at random instants, in blocks of many kinds, in one thread. seen counts what came of them."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._loser = _Loser()
        self.seen: Counter[str] = Counter()

    def run(self, count: int) -> None:
        """Have so many leases lost."""
        kinds: list[Callable[[str], None]] = [
            self._two_guards,
            self._two_leases,
            self._inner_holds,
            self._inner_guards,
            self._finalizers,
            self._starts_threads,
        ]
        for number in range(count):
            kind = kinds[number % len(kinds)]
            key = f"{threading.get_ident()}-{number}"
            try:
                kind(key)
            except LeaseLostInterrupt as escaped:
                if threading.current_thread() is threading.main_thread():
                    raise Torn(f"{kind.__name__}: an interrupt left its block in the main thread") from escaped
                # as `runtime.interrupt` says
                self.seen["left past the exit"] += 1
            self.seen[kind.__name__.strip("_")] += 1
            self._outside()
        self._loser.stop()

    def _outside(self) -> None:
        """Run outside of any block, where nothing may be raised."""
        for _ in range(200):
            pass
        if context.current() is not None:
            raise Torn("a lease is current outside of its block")

    def _soon(self, *leases: Lease) -> None:
        self._loser.lose(self._random.uniform(0.0, 0.003), *leases)

    def _two_guards(self, key: str) -> None:
        lease = self._client.lock(key, ttl=60).acquire()
        with suppress(LeaseLost), lease.guard(), lease.guard():
            self._soon(lease)
            self._cleans_up()

    def _two_leases(self, key: str) -> None:
        outer, inner = (self._client.lock(f"{key}-{name}", ttl=60).acquire() for name in ("outer", "inner"))
        with suppress(LeaseLost), outer.guard(), inner.guard():
            self._soon(inner, outer)
            self._cleans_up()

    def _cleans_up(self) -> None:
        entered = cleaned = False
        try:
            try:
                entered = True
                _busy(LONGEST)
                raise Torn("a block was not interrupted")
            finally:
                _busy(0.002)
                cleaned = True
        finally:
            if entered and not cleaned:
                self.seen["torn"] += 1

    def _inner_holds(self, key: str) -> None:
        self._repeats(key, lambda inner: self._client.lock(inner, ttl=60).hold(interrupt=True))

    def _inner_guards(self, key: str) -> None:
        other = self._client.lock(f"{key}-guarded", ttl=60).acquire()
        self._repeats(key, lambda _inner: other.guard())
        other.release()

    def _repeats(self, key: str, block: Callable[[str], object]) -> None:
        outer = self._client.lock(key, ttl=60).acquire()
        end = time.monotonic() + LONGEST
        with suppress(LeaseLost), outer.guard():
            self._soon(outer)
            while time.monotonic() < end:
                with block(f"{key}-inner"):  # type: ignore[attr-defined] # a context manager
                    pass
            raise Torn("a block was not interrupted")

    def _finalizers(self, key: str) -> None:
        self._lets_go(key, _finalizes)

    def _starts_threads(self, key: str) -> None:
        self._lets_go(key, _starts)

    def _lets_go(self, key: str, work: Callable[[], None]) -> None:
        lease = self._client.lock(key, ttl=60).acquire()
        end = time.monotonic() + LONGEST
        with suppress(LeaseLost), lease.guard():
            self._soon(lease)
            while time.monotonic() < end:
                work()
                for _ in range(200):
                    pass
            raise Torn("a block was not interrupted")


class _Temporary:
    def __del__(self) -> None:
        for _ in range(200):
            pass


def _finalizes() -> None:
    one = _Temporary()
    ref = weakref.ref(one, lambda _ref: sum(range(200)))
    del one
    del ref


def _starts() -> None:
    thread = threading.Thread(target=time.sleep, args=(0.0005,))
    thread.start()
    thread.join()


def _busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(50))


class _Loser:
    """A thread that loses leases on request."""

    def __init__(self) -> None:
        self._wanted: list[tuple[float, tuple[Lease, ...]]] = []
        self._told = threading.Semaphore(0)
        threading.Thread(target=self._run, name="loser", daemon=True).start()

    def lose(self, delay: float, *leases: Lease) -> None:
        self._wanted.append((delay, leases))
        self._told.release()

    def stop(self) -> None:
        self.lose(0.0)

    def _run(self) -> None:
        while self._told.acquire():
            delay, leases = self._wanted.pop()
            if not leases:
                return
            for lease in leases:
                time.sleep(delay)
                lose(lease)
            del leases, lease


async def tasks(count: int, seed: int) -> Counter[str]:
    """Have so many leases lost in blocks of tasks, nested ones with a clean-up that awaits."""
    seen: Counter[str] = Counter()
    dice = random.Random(seed)
    loop = asyncio.get_running_loop()

    async def one(client: AsyncClient, key: str, is_one_lease: bool) -> None:
        outer = await client.lock(f"{key}-outer", ttl=60).acquire()
        inner = outer if is_one_lease else await client.lock(f"{key}-inner", ttl=60).acquire()
        entered = cleaned = False
        try:
            async with outer.guard(), inner.guard():
                loop.call_later(dice.uniform(0, 0.003), lose, inner)
                loop.call_later(dice.uniform(0, 0.006), lose, outer)
                try:
                    entered = True
                    await asyncio.sleep(LONGEST)
                    raise Torn("a block was not interrupted")
                finally:
                    for _ in range(3):
                        await asyncio.sleep(0.001)
                    cleaned = True
        except LeaseLost:
            seen["tasks"] += 1
        seen["torn"] += entered and not cleaned
        await asyncio.sleep(0)
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise Torn("a cancellation of ours was left")

    async with AsyncClient(MemoryStore(), listener=quiet) as client:
        for first in range(0, count, 20):
            await asyncio.gather(*(one(client, f"{first + n}", n % 2 == 0) for n in range(min(20, count - first))))
    return seen


class CtrlCs:
    """Real SIGINTs, each at a random place of what the main thread does with locks."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._is_armed = self._is_over = False
        self._heard = threading.Event()
        self.seen: Counter[str] = Counter()

    def run(self, count: int) -> None:
        """Interrupt so often."""
        before = signal.signal(signal.SIGINT, self._on_sigint)
        shooter = threading.Thread(target=self._shoot, args=(threading.get_ident(),), daemon=True)
        shooter.start()
        try:
            while self.seen["Ctrl-C"] < count:
                key = f"key-{self.seen['Ctrl-C'] // 50}"
                lock = self._client.lock(key, ttl=60)
                lease: Lease | None = None
                try:
                    self._is_armed = True
                    while True:
                        with lock.hold(timeout=0.001):
                            pass
                        with lock.hold(interrupt=True, timeout=0.001):
                            pass
                        lease = lock.acquire(timeout=0.001)
                        with lease.guard():
                            pass
                        lease.release()
                except KeyboardInterrupt:
                    self._is_armed = False
                    self.seen["Ctrl-C"] += 1
                except NotAcquired:
                    # what an interrupted acquisition may have written is looked for and removed, or it expires
                    self._is_armed = False
                    self.seen["not yet free"] += 1
                    lock.break_lease(reason="left over", by="soak", now=True)
                if self._client._engine.keeper._lock._is_owned():  # type: ignore[attr-defined] # of an RLock
                    raise Torn("the keeper's lock is held")
        finally:
            self._is_armed, self._is_over = False, True
            shooter.join()
            signal.signal(signal.SIGINT, before)

    def _on_sigint(self, _signum: int, _frame: object) -> None:
        self._heard.set()
        if self._is_armed:
            raise KeyboardInterrupt

    def _shoot(self, main: int) -> None:
        while not self._is_over:
            time.sleep(self._random.uniform(0, 0.0006))
            signal.pthread_kill(main, signal.SIGINT)
            self._heard.wait(1)
            self._heard.clear()


def settled(client: Client, kept: Lease) -> None:
    """Check that nothing was left behind: no lock held, no thread stuck, no unused lease renewed."""
    kept.check()
    engine = client._engine
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        with suppress(LeaseLost), kept.guard():
            pass  # a block whose exit was not reached leaves the handler to the next one
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        raise Torn("the handler of the signal was not put back")
    end = time.monotonic() + LONGEST
    while True:
        gc.collect()
        others = [
            held.lease_state.lease.name.key for held in engine.keeper._keeping if _referred(held) is not kept._kept
        ]
        stuck = [thread.name for thread in threading.enumerate() if thread.name == "lockstead-interrupt"]
        in_line = [bell for line in list(engine.local_queue._queues.values()) for bell in line if not bell.is_over]
        if not others and not stuck and not in_line:
            break
        if time.monotonic() > end:
            raise Torn(f"left behind: leases {others[:5]}, threads {stuck[:5]}, waiters {len(in_line)}")
        time.sleep(0.05)
    answers: list[bool] = []
    thread = threading.Thread(
        target=lambda: answers.append(client.lock("free", ttl=60).acquire(timeout=LONGEST).release())
    )
    thread.start()
    thread.join(LONGEST)
    if answers != [True]:
        raise Torn("another thread gets no lock any more")
    kept.check()
