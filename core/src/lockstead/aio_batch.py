"""AsyncBatch: several locks acquired together, either those that are free now and the rest later, or all or none.

The rules of waiting are in `batch_base`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from math import inf
from types import TracebackType
from typing import Self

from lockstead.acquisition import Acquisition
from lockstead.aio_lease import AsyncLease, ask
from lockstead.aio_rounds import AsyncTurns, ask_all, sleep
from lockstead.batch_base import HeldBatch, in_order
from lockstead.errors import LeaseLost, OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.events import ReleaseFailed
from lockstead.runtime.engine import Engine
from lockstead.settings import Settings
from lockstead.values import Duration, seconds


class AsyncBatch(HeldBatch[AsyncLease]):
    """The leases acquired so far, and the pending keys.

    A context manager: its exit releases the leases that are still held, and raises LeaseLost if a lease was lost and
    the block returned.
    """

    def __init__(self, engine: Engine, settings: Settings, keys: Iterable[str] | Mapping[str, str]) -> None:
        super().__init__(engine, settings, keys)
        self._turns = AsyncTurns()

    async def try_acquire_rest(self) -> list[AsyncLease]:
        """Try once to acquire every pending key, without waiting; return the new leases."""
        asks = self._asks()
        await ask_all(self._engine, asks)
        return self._settled(asks, AsyncLease)

    async def wait_for_more(self, timeout: Duration | None = None) -> list[AsyncLease]:
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
                got = await self.try_acquire_rest()
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
            await sleep(pause)
        return []

    def iter_as_acquired(self, timeout: Duration | None = None) -> AsyncIterator[AsyncLease]:
        """Iterate over the leases of all keys, as they become free; each is released before the next.

        First the held leases, then the rest. A lease that was lost before its turn is acquired again; one that is lost
        in the body raises LeaseLost at the body's end. Raises what `wait_for_more` raises; timeout: seconds for one
        wait. A loop that is left early releases its lease at once; an `async for`, at the end of the batch's own block,
        or without one when the event loop closes its generator.
        """
        return self._turns.began(self._iter_as_acquired(timeout))

    async def _iter_as_acquired(self, timeout: Duration | None) -> AsyncGenerator[AsyncLease]:
        while True:
            for lease in list(self):
                if self._wants_again(lease):
                    await self._give_back(lease)
                elif not lease._is_ended:
                    try:
                        async with lease:
                            yield lease
                    except GeneratorExit:
                        self._left_early(lease)
                        raise
            if not self._wanted:
                return
            if not self.leases:
                await self.wait_for_more(timeout)

    async def release(self, drain: Duration | None = None) -> int:
        """Release every held lease; return how many were removed. The first failure is raised at the end."""
        removed, failure = 0, None
        for lease in reversed(list(self)):
            try:
                removed += await lease.release(drain)
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return removed

    async def _give_up(self) -> None:
        """Release every lease as unused after a failure; the failure of a release is only reported."""
        for lease in reversed(list(self)):
            await self._give_back(lease, unused=True)

    async def _give_back(self, lease: AsyncLease, *, unused: bool = False) -> None:
        try:
            await lease.release(unused=unused)
        except StoreError as failed:
            self._engine.emit(ReleaseFailed(lease.key, lease.holder, failed, lease._lease_state.member))

    async def __aenter__(self) -> Self:
        self._turns.is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._turns.aclose()
        lost: LeaseLost | None = None
        for lease in self._to_leave():
            try:
                await lease._leave(error, None)
            except LeaseLost as raised:
                lost = lost or raised
        if lost is not None:
            raise lost from lost.__cause__


async def try_many(engine: Engine, settings: Settings, keys: Iterable[str]) -> AsyncBatch:
    """Acquire the keys that are free now, without waiting."""
    batch = AsyncBatch(engine, settings, keys)
    try:
        await batch.try_acquire_rest()
    except BaseException:
        await batch._give_up()
        raise
    return batch


async def acquire_all(
    engine: Engine,
    settings: Settings,
    keys: Iterable[str] | Mapping[str, str],
    timeout: Duration | None,
) -> AsyncBatch:
    """Acquire all keys in the order that all callers use, or none."""
    batch = AsyncBatch(engine, settings, keys)
    gives_up_at = inf if timeout is None else engine.clock.now() + seconds(timeout, "timeout")
    try:
        for key in in_order(batch.pending_keys):
            left = max(0.0, gives_up_at - engine.clock.now())
            acquisition = Acquisition(engine, key, batch._settings_of(key), left, reclaim=False)
            lease = await ask(acquisition)
            if lease is None:
                raise acquisition.not_acquired()
            batch._add(lease)
    except BaseException:
        await batch._give_up()
        raise
    return batch
