"""AsyncBatch: several locks that are taken as one wish: what is free now, the rest later, or all or nothing.

The rules of waiting stand in `batch_base`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType
from typing import Self

from lockstead.aio_lease import AsyncLease, ask
from lockstead.aio_rounds import AsyncTurns, ask_all, sleep
from lockstead.batch_base import HeldBatch, in_order
from lockstead.errors import LeaseLost, OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.events import ReleaseFailed
from lockstead.operations import Acquisition
from lockstead.runtime.engine import Engine
from lockstead.settings import Settings
from lockstead.values import Duration, seconds


class AsyncBatch(HeldBatch[AsyncLease]):
    """Several locks that were asked for together: the leases had so far, and the keys still wanted.

    A context manager: leaving it gives back what is still held, and raises LeaseLost if a lease was lost meanwhile
    and the block returned.
    """

    def __init__(self, engine: Engine, settings: Settings, keys: Iterable[str]) -> None:
        super().__init__(engine, settings, keys)
        self._turns = AsyncTurns()

    async def try_acquire_rest(self) -> list[AsyncLease]:
        """Ask once for every key that was not had yet, without waiting; return the new leases."""
        asks = self._asks()
        await ask_all(self._engine, asks)
        return self._settled(asks, AsyncLease)

    async def wait_for_more(self, timeout: Duration | None = None) -> list[AsyncLease]:
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
                got = await self.try_acquire_rest()
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
            await sleep(pause)
        return []

    def iter_as_acquired(self, timeout: Duration | None = None) -> AsyncIterator[AsyncLease]:
        """Go through all keys, in the order in which they become free; give back each lease before the next.

        First what is held, then the rest. A lease that was lost before its turn came is asked for anew; one that is
        lost in the body raises LeaseLost at the body's end. Raises what `wait_for_more` raises; timeout: seconds for
        one wait. A loop that is left early gives its lease back there; one that awaits, when the batch's own block
        ends, or without one when the event loop comes to end its generator.
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
        """Release every lease that is still held; how many we removed. The first failure is raised at the end."""
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
        """Release everything, unused, after a failure, which is the one that counts."""
        for lease in reversed(list(self)):
            await self._give_back(lease, unused=True)

    async def _give_back(self, lease: AsyncLease, *, unused: bool = False) -> None:
        try:
            await lease.release(unused=unused)
        except StoreError as failed:
            self._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))

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
    """Take as many of the keys as are free now, without waiting."""
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
    keys: Iterable[str],
    timeout: Duration | None,
) -> AsyncBatch:
    """Take all keys, one after the other in the one order that everybody takes them in, or none."""
    batch = AsyncBatch(engine, settings, keys)
    gives_up_at = None if timeout is None else engine.clock.now() + seconds(timeout, "timeout")
    try:
        for key in in_order(batch.pending_keys):
            left = None if gives_up_at is None else max(0.0, gives_up_at - engine.clock.now())
            acquisition = Acquisition(engine, key, settings, left, reclaim=False)
            lease = await ask(acquisition)
            if lease is None:
                raise acquisition.not_acquired()
            batch._add(lease)
    except BaseException:
        await batch._give_up()
        raise
    return batch
