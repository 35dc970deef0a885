"""How several locks are taken as one wish, blocking: what is free now, the rest later, or all or nothing.

The rules of waiting stand in `batch_base`; the awaiting twin is `aio_batch`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import filterfalse
from types import TracebackType
from typing import Final, Self

from lockstead.batch_base import AT_ONCE, Ask, HeldBatch, in_order
from lockstead.errors import LeaseLost, OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.events import ReleaseFailed
from lockstead.lease import Lease, ask, leave
from lockstead.operations import Acquisition
from lockstead.runtime.engine import Engine
from lockstead.runtime.local_queue import NULL_WAKER
from lockstead.runtime.run import run
from lockstead.settings import Settings
from lockstead.values import Duration, seconds

SLOW: Final = 0.005
"""Seconds from which on an answer is worth a thread: a file is asked key by key, a service for several at a time."""


class Batch(HeldBatch[Lease]):
    """Several locks that were asked for together: the leases had so far, and the keys still wanted.

    A context manager: leaving it gives back what is still held, and raises LeaseLost if a lease was lost meanwhile
    and the block returned.
    """

    def try_acquire_rest(self) -> list[Lease]:
        """Ask once for every key that was not had yet, without waiting; give the new leases."""
        asks = self._asks()
        _Round(self._engine, asks).run()
        return self._settled(asks, Lease)

    def wait_for_more(self, timeout: Duration | None = None) -> list[Lease]:
        """Wait until at least one more lease is ours, with random pauses; [] when no key is left to ask for.

        A pause is `backoff_min` to `backoff_max` long. Nobody waits while holding: ValueError if a lease of this
        batch is still held and nothing else is free now. NotAcquired after `timeout` seconds, forever by default;
        StoreUnavailable or OutcomeUnknown if the store is silent at the end.
        """
        clock = self._engine.clock
        started_at = clock.now()
        gives_up_at = None if timeout is None else started_at + seconds(timeout, "timeout")
        silence: StoreError | None = None
        while self._wanted:
            try:
                got = self.try_acquire_rest()
            except (StoreUnavailable, OutcomeUnknown) as error:
                silence, got = error, []
            else:
                silence = None
            if got:
                return got
            self._refuse_to_wait()
            pause = self._pause(gives_up_at)
            if pause is None:
                raise self._wait_is_over(started_at, silence)
            time.sleep(pause)
        return []

    def iter_as_acquired(self, timeout: Duration | None = None) -> Iterator[Lease]:
        """Go through all keys, in the order in which they become free; give back each lease before the next.

        First what is held, then the rest. A lease that was lost before its turn came is asked for anew; one that is
        lost in the body raises LeaseLost at the body's end. Raises what `wait_for_more` raises; timeout: seconds for
        one wait.
        """
        while True:
            for lease in list(self):
                if self._wants_again(lease):
                    self._give_back(lease)
                elif not lease._is_ended:
                    try:
                        with lease:
                            yield lease
                    except GeneratorExit:
                        self._left_early(lease)
                        raise
            if not self._wanted:
                return
            if not self.leases:
                self.wait_for_more(timeout)

    def release(self, drain: Duration | None = None) -> int:
        """Release every lease that is still held; how many we removed. The first failure is raised at the end."""
        removed, failure = 0, None
        for lease in reversed(list(self)):
            try:
                removed += lease.release(drain)
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return removed

    def _give_up(self) -> None:
        """Release everything, unused, after a failure, which is the one that counts."""
        for lease in reversed(list(self)):
            self._give_back(lease, unused=True)

    def _give_back(self, lease: Lease, *, unused: bool = False) -> None:
        try:
            lease.release(unused=unused)
        except StoreError as failed:
            self._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost: LeaseLost | None = None
        for lease in self._to_leave():
            try:
                leave(lease, error, None)
            except LeaseLost as raised:
                lost = lost or raised
        if lost is not None:
            raise lost from lost.__cause__


def try_many(engine: Engine, settings: Settings, keys: Iterable[str]) -> Batch:
    """Take as many of the keys as are free now, without waiting."""
    batch = Batch(engine, settings, keys)
    try:
        batch.try_acquire_rest()
    except BaseException:
        batch._give_up()
        raise
    return batch


def acquire_all(engine: Engine, settings: Settings, keys: Iterable[str], timeout: Duration | None) -> Batch:
    """Take all keys, one after the other in the one order that everybody takes them in, or none."""
    batch = Batch(engine, settings, keys)
    gives_up_at = None if timeout is None else engine.clock.now() + seconds(timeout, "timeout")
    try:
        for key in in_order(batch.pending_keys):
            left = None if gives_up_at is None else max(0.0, gives_up_at - engine.clock.now())
            acquisition = Acquisition(engine, key, settings, left, reclaim=False)
            lease = ask(acquisition)
            if lease is None:
                raise acquisition.not_acquired()
            batch._add(lease)
    except BaseException:
        batch._give_up()
        raise
    return batch


class _Round:
    """Asks several keys, a few at a time, on the caller's thread and, where answers are slow, on the engine's."""

    def __init__(self, engine: Engine, asks: list[Ask]) -> None:
        self._engine = engine
        self._asks = asks
        self._left: deque[Ask] = deque(asks)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._helpers = 0
        self._in_helpers: set[Ask] = set()
        self._is_given_up = False

    def run(self) -> None:
        """Ask all, and come back when every answer is there; interrupted, leave nothing behind."""
        clock = self._engine.clock
        try:
            while self._left:
                began_at = clock.now()
                self._ask(self._left.popleft())
                if clock.now() - began_at > SLOW and not self._helpers:
                    self._call_helpers()
            with self._lock:
                self._changed.wait_for(lambda: not self._helpers)
        except BaseException as error:
            with self._lock:
                self._is_given_up = True
                self._left.clear()
                ours = [*filterfalse(self._in_helpers.__contains__, self._asks)]
            for one in ours:
                one.acquisition.failed(error)
            raise

    def _ask(self, one: Ask) -> None:
        engine = self._engine
        try:
            one.outcome = run(one.script, engine.store, engine.clock, one.acquisition.limits, NULL_WAKER)
        except Exception as error:  # noqa: BLE001 - it belongs to this key, and is raised when all have answered
            one.error = error

    def _call_helpers(self) -> None:
        wanted = min(AT_ONCE - 1, len(self._left))
        with self._lock:
            self._helpers += wanted
        for _ in range(wanted):
            if not self._engine.calls.submit(self._help, queue=False):
                self._helped()

    def _help(self) -> None:
        try:
            while (one := self._taken()) is not None:
                self._ask(one)
                with self._lock:
                    self._in_helpers.discard(one)
                    is_given_up = self._is_given_up
                if is_given_up:
                    # nobody takes this answer: who waited for it was interrupted
                    one.acquisition.failed(KeyboardInterrupt())
        finally:
            self._helped()

    def _taken(self) -> Ask | None:
        with self._lock:
            if not self._left:
                return None
            one = self._left.popleft()
            self._in_helpers.add(one)
            return one

    def _helped(self) -> None:
        with self._lock:
            self._helpers -= 1
            self._changed.notify_all()
