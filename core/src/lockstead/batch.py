# Generated from aio_batch.py by `make blocking`: edit that file instead.
"""Batch: several locks acquired together, either those that are free now and the rest later, or all or none.

The rules of waiting are in `batch_base`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from types import TracebackType
from typing import Self

from lockstead.acquisition import Acquisition
from lockstead.batch_base import HeldBatch, in_order
from lockstead.errors import LeaseLost, OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.events import ReleaseFailed
from lockstead.lease import Lease, ask
from lockstead.rounds import Turns, ask_all, sleep
from lockstead.runtime.engine import Engine
from lockstead.settings import Settings
from lockstead.values import Duration, seconds


class Batch(HeldBatch[Lease]):
    """The leases acquired so far, and the pending keys.

    A context manager: its exit releases the leases that are still held, and raises LeaseLost if a lease was lost and
    the block returned.
    """

    def __init__(self, engine: Engine, settings: Settings, keys: Iterable[str] | Mapping[str, str]) -> None:
        super().__init__(engine, settings, keys)
        self._turns = Turns()

    def try_acquire_rest(self) -> list[Lease]:
        """Try once to acquire every pending key, without waiting; return the new leases."""
        asks = self._asks()
        ask_all(self._engine, asks)
        return self._settled(asks, Lease)

    def wait_for_more(self, timeout: Duration | None = None) -> list[Lease]:
        """Wait until at least one more lease is acquired, with random pauses; [] if no key is pending.

        A pause is `backoff_min` to `backoff_max` long. Batches avoid hold-and-wait: ValueError if a lease of this batch
        is still held and no other key is free. NotAcquired after `timeout` seconds, forever by default;
        StoreUnavailable or OutcomeUnknown if the store does not answer at the end.
        """
        clock = self._engine.clock
        started_at = clock.now()
        gives_up_at = inf if timeout is None else started_at + seconds(timeout, "timeout")
        store_error: StoreError | None = None
        while self._wanted:
            try:
                got = self.try_acquire_rest()
            except (StoreUnavailable, OutcomeUnknown) as error:
                store_error, got = error, []
            else:
                store_error = None
            if got:
                return got
            self._refuse_to_wait()
            pause = self._pause(gives_up_at)
            if pause is None:
                raise self._wait_is_over(started_at, store_error)
            sleep(pause)
        return []

    def iter_as_acquired(self, timeout: Duration | None = None) -> Iterator[Lease]:
        """Iterate over the leases of all keys, as they become free; each is released before the next.

        First the held leases, then the rest. A lease that was lost before its turn is acquired again; one that is lost
        in the body raises LeaseLost at the body's end. Raises what `wait_for_more` raises; timeout: seconds for one
        wait. A loop that is left early releases its lease at once; an `for`, at the end of the batch's own block,
        or without one when the event loop closes its generator.
        """
        return self._turns.began(self._iter_as_acquired(timeout))

    def _iter_as_acquired(self, timeout: Duration | None) -> Iterator[Lease]:
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
        """Release every held lease; return how many were removed. The first failure is raised at the end."""
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
        """Release every lease as unused after a failure; the failure of a release is only reported."""
        for lease in reversed(list(self)):
            self._give_back(lease, unused=True)

    def _give_back(self, lease: Lease, *, unused: bool = False) -> None:
        try:
            lease.release(unused=unused)
        except StoreError as failed:
            self._engine.emit(ReleaseFailed(lease.key, lease.holder, failed, lease._lease_state.member))

    def __enter__(self) -> Self:
        self._turns.is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.close()
        lost: LeaseLost | None = None
        for lease in self._to_leave():
            try:
                lease._leave(error, None)
            except LeaseLost as raised:
                lost = lost or raised
        if lost is not None:
            raise lost from lost.__cause__


def try_many(engine: Engine, settings: Settings, keys: Iterable[str]) -> Batch:
    """Acquire the keys that are free now, without waiting."""
    batch = Batch(engine, settings, keys)
    try:
        batch.try_acquire_rest()
    except BaseException:
        batch._give_up()
        raise
    return batch


def acquire_all(
    engine: Engine,
    settings: Settings,
    keys: Iterable[str] | Mapping[str, str],
    timeout: Duration | None,
) -> Batch:
    """Acquire all keys in the order that all callers use, or none."""
    batch = Batch(engine, settings, keys)
    gives_up_at = inf if timeout is None else engine.clock.now() + seconds(timeout, "timeout")
    try:
        for key in in_order(batch.pending_keys):
            left = max(0.0, gives_up_at - engine.clock.now())
            acquisition = Acquisition(engine, key, batch._settings_of(key), left, reclaim=False)
            lease = ask(acquisition)
            if lease is None:
                raise acquisition.not_acquired()
            batch._add(lease)
    except BaseException:
        batch._give_up()
        raise
    return batch
