"""How several locks are asked for as one wish: which are still wanted, how long to pause, when not to wait.

The rule that keeps two batches from waiting for each other: nobody waits while holding. A batch asks for more at any
time, but it waits only when it holds nothing; and a caller that wants all locks at once takes them in one order, the
same for everybody. Must not know whether its caller blocks or awaits: that is in `batch` and `aio_batch`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from lockstead.acquisition import Acquisition
from lockstead.errors import NotAcquired, OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.acquire import Contended, Grant
from lockstead.runtime.engine import Engine, seconds_text
from lockstead.runtime.held import HeldLease
from lockstead.settings import Settings
from lockstead.values import Name, checked_key

L = TypeVar("L", bound=HeldLease)

AT_ONCE: Final = 8
"""How many keys of a batch are asked for at the same time."""


def wished(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of a batch, each once; TypeError or ValueError for what are not keys."""
    if isinstance(keys, str):
        raise TypeError(f"keys are several: write [{keys!r}] for one")
    return tuple(dict.fromkeys(checked_key(key) for key in keys))


def in_order(keys: Iterable[str]) -> list[str]:
    """Return keys in the one order in which everybody takes several locks: by their UTF-8 bytes, in any language."""
    return sorted(wished(keys), key=lambda key: key.encode("utf-8", "surrogatepass"))


class Ask:
    """One look at one key: what it asks, and what came of it. Written by one thread, read when that is over."""

    __slots__ = ("acquisition", "error", "key", "outcome", "script")

    def __init__(self, engine: Engine, key: str, settings: Settings, *, look_first: bool) -> None:
        self.key = key
        self.acquisition = Acquisition(engine, key, settings, 0.0, reclaim=False, is_patient=True)
        self.script = self.acquisition.script(was_first=not look_first, in_time=True)
        self.outcome: Grant | Contended | None = None
        self.error: BaseException | None = None


class HeldBatch(Generic[L]):
    """What blocking and awaiting batches have in common: the leases had so far, and the keys still wanted.

    A batch belongs to one thread or task; its leases may be shared. Not made by users: see `Client.try_many`. Waiting
    is fair to nobody: who comes back at the right moment gets a key.
    """

    def __init__(self, engine: Engine, settings: Settings, keys: Iterable[str]) -> None:
        engine.refuse_if_closed()
        self._engine = engine
        self._settings = settings
        self._keys = wished(keys)
        self._wanted = set(self._keys)
        self._had: list[L] = []
        self._left: list[L] = []
        self._contended: NotAcquired | None = None
        self._has_asked = False
        self._longest = settings.backoff_min
        engine.warn_once(", ".join(self._keys[:3]), settings)

    @property
    def pending_keys(self) -> tuple[str, ...]:
        """The keys that were not had yet, in the order they were given."""
        return tuple(key for key in self._keys if key in self._wanted)

    @property
    def leases(self) -> Mapping[str, L]:
        """The leases that were had and not given back, by key; one that was lost stays until it is given back."""
        return {lease.key: lease for lease in self._had if not lease._is_ended}

    def __iter__(self) -> Iterator[L]:
        return iter(self.leases.values())

    def __getitem__(self, key: str) -> L:
        return self.leases[key]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._keys)}: {len(self.leases)} held, {len(self._wanted)} waiting>"

    def _add(self, lease: L) -> None:
        self._wanted.discard(lease.key)
        self._had.append(lease)

    def _wants_again(self, lease: L) -> bool:
        """Return whether a lease was lost before its turn came; its key is then asked for anew."""
        if lease.is_held or lease._is_ended:
            return False
        self._wanted.add(lease.key)
        return True

    def _left_early(self, lease: L) -> None:
        """Note that `iter_as_acquired` was left in this lease's turn: it raises nothing there if it was lost."""
        if lease.lost_reason is not None:
            self._left.append(lease)

    def _to_leave(self) -> list[L]:
        """Return the leases to leave at the end of the batch's own block: what is still held, and what was lost."""
        return [*reversed(list(self)), *self._left]

    # --- one round -----------------------------------------------------------------------------------------------

    def _asks(self) -> list[Ask]:
        """Return what one round asks, in random order: two batches must not meet at every key."""
        keys = random.sample(self.pending_keys, len(self._wanted))
        asks = [Ask(self._engine, key, self._settings, look_first=self._has_asked) for key in keys]
        self._has_asked = True
        return asks

    def _settled(self, asks: list[Ask], kind: type[L]) -> list[L]:
        """Take what a round brought, and give its leases. Only then raise what else it brought.

        A key that was refused is StoreRefused at once. A store that is silent about a key is asked again with the
        next round, and is raised only if it was silent about all.
        """
        got: list[L] = []
        errors: list[BaseException] = []
        for one in asks:
            if one.outcome is None:
                error = one.error or StoreUnavailable("the round ended before it was tried")
                one.acquisition.failed(error)
                errors.append(error)
                continue
            lease = one.acquisition.ended(one.outcome, kind)
            if lease is None:
                self._contended = one.acquisition.not_acquired()
            else:
                got.append(lease)
                self._add(lease)
        grave = next((error for error in errors if not isinstance(error, StoreUnavailable | OutcomeUnknown)), None)
        if grave is not None:
            raise grave
        if errors and len(errors) == len(asks):
            raise errors[0]
        if got:
            self._longest = self._settings.backoff_min
        return got

    # --- waiting -------------------------------------------------------------------------------------------------

    def _refuse_to_wait(self) -> None:
        """Refuse to wait while holding, and to wait for what this very thread or task holds."""
        held = next((lease for lease in self if lease.is_held), None)
        if held is not None:
            raise ValueError(
                f"the batch still holds {held.key!r}: release what you have before you wait for the rest, "
                "or two batches may wait for each other forever; try_acquire_rest() asks without waiting"
            )
        for key in self._wanted:
            self._engine.refuse_self_wait(Name(key))

    def _pause(self, gives_up_at: float | None) -> float | None:
        """Draw the next pause, seconds; None if the time is over."""
        self._engine.refuse_if_closed()
        least, most = self._settings.backoff_min, self._settings.backoff_max
        drawn = random.uniform(least, max(least, self._longest))
        # decorrelated jitter: the next pause is drawn from up to three times this one
        self._longest = min(most, max(least, drawn) * 3)
        if gives_up_at is None:
            return drawn
        left = gives_up_at - self._engine.clock.now()
        return min(drawn, left) if left > 0 else None

    def _wait_is_over(self, started_at: float, silence: StoreError | None) -> Exception:
        """Return the error of a wait that ended with keys still wanted; silence is what the last round ended with."""
        waited = self._engine.clock.now() - started_at
        one = self._contended
        if one is None or silence is not None:
            return silence or NotAcquired("the time to wait is over", waited=waited)
        left, all_ = len(self._wanted), len(self._keys)
        return NotAcquired(
            f"{left} of {all_} locks are held by others after {seconds_text(waited)}; one of them: {one}",
            key=one.key,
            holder=one.holder,
            purpose=one.purpose,
            held_for=one.held_for,
            waited=waited,
        )
