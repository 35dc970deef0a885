"""The common part of blocking and awaiting batches: which keys are pending, how long to pause, when not to wait.

Two batches never wait for each other, because none waits while it holds a lease: a batch may try more keys at any
time, but waits only when it holds nothing, and a caller that wants all locks at once acquires them in the same order
as every other. Must not know whether its caller blocks or awaits: that is in `batch` and `aio_batch`.
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
"""Maximum number of concurrent requests of a batch."""


def distinct(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of a batch, each once; TypeError or ValueError for invalid ones."""
    if isinstance(keys, str):
        raise TypeError(f"keys are several: write [{keys!r}] for one")
    return tuple(dict.fromkeys(checked_key(key) for key in keys))


def in_order(keys: Iterable[str]) -> list[str]:
    """Return keys in the order in which every client acquires several locks: by their UTF-8 bytes."""
    return sorted(distinct(keys), key=lambda key: key.encode("utf-8", "surrogatepass"))


class Ask:
    """One attempt for one key, and its result. Written by one thread, and read after that."""

    __slots__ = ("acquisition", "error", "key", "outcome", "script")

    def __init__(self, engine: Engine, key: str, settings: Settings, *, look_first: bool) -> None:
        self.key = key
        self.acquisition = Acquisition(engine, key, settings, 0.0, reclaim=False, is_patient=True)
        self.script = self.acquisition.script(was_first=not look_first, in_time=True)
        self.outcome: Grant | Contended | None = None
        self.error: BaseException | None = None


class HeldBatch(Generic[L]):
    """The common base of blocking and awaiting batches: the leases acquired so far, and the pending keys.

    A batch belongs to one thread or task; its leases may be shared. Not made by users: see `Client.try_many`. There
    is no order among waiting batches: the first to try after a release acquires the key.
    """

    def __init__(self, engine: Engine, settings: Settings, keys: Iterable[str] | Mapping[str, str]) -> None:
        """keys: names, or a mapping from each name to its mode."""
        engine.refuse_if_closed()
        self._engine = engine
        self._settings = settings
        self._keys = distinct(keys)
        modes = keys if isinstance(keys, Mapping) else {}
        self._own_settings = {key: settings.in_mode(mode) for key, mode in modes.items()}
        self._wanted = set(self._keys)
        self._had: list[L] = []
        self._left: list[L] = []
        self._contended: NotAcquired | None = None
        self._has_asked = False
        self._longest = settings.backoff_min
        engine.warn_once(", ".join(self._keys[:3]), settings)

    @property
    def pending_keys(self) -> tuple[str, ...]:
        """Return the keys that were not acquired yet, in the order of the call."""
        return tuple(key for key in self._keys if key in self._wanted)

    @property
    def leases(self) -> Mapping[str, L]:
        """Return the leases that were acquired and not released, by key; a lost one stays until it is released."""
        return {lease.key: lease for lease in self._had if not lease._is_ended}

    def __iter__(self) -> Iterator[L]:
        return iter(self.leases.values())

    def __getitem__(self, key: str) -> L:
        return self.leases[key]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._keys)}: {len(self.leases)} held, {len(self._wanted)} waiting>"

    def _settings_of(self, key: str) -> Settings:
        return self._own_settings.get(key, self._settings)

    def _add(self, lease: L) -> None:
        self._wanted.discard(lease.key)
        self._had.append(lease)

    def _wants_again(self, lease: L) -> bool:
        """Return whether a lease was lost before its turn came; its key is then acquired again."""
        if lease.is_held or lease._is_ended:
            return False
        self._wanted.add(lease.key)
        return True

    def _left_early(self, lease: L) -> None:
        """Note that `iter_as_acquired` was left in this lease's turn: no error is raised there if it was lost."""
        if lease.lost_reason is not None:
            self._left.append(lease)

    def _to_leave(self) -> list[L]:
        """Return the leases to release at the end of the batch's block: those still held, and those lost."""
        return [*reversed(list(self)), *self._left]

    # --- one round -----------------------------------------------------------------------------------------------

    def _asks(self) -> list[Ask]:
        """Return the attempts of one round, in random order, so that two batches do not meet at every key."""
        keys = random.sample(self.pending_keys, len(self._wanted))
        asks = [Ask(self._engine, key, self._settings_of(key), look_first=self._has_asked) for key in keys]
        self._has_asked = True
        return asks

    def _settled(self, asks: list[Ask], kind: type[L]) -> list[L]:
        """Add the results of a round, and yield its leases. Its errors are raised only after that.

        A rejected key raises StoreRefused at once. A key without an answer is tried again in the next round; the
        error is raised only if no key got an answer.
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
        """Raise an error instead of waiting while holding, or for a key that this thread or task holds."""
        held = next((lease for lease in self if lease.is_held), None)
        if held is not None:
            raise ValueError(
                f"the batch still holds {held.key!r}: release what you have before you wait for the rest, "
                "or two batches may wait for each other forever; try_acquire_rest() asks without waiting"
            )
        for key in self._wanted:
            self._engine.refuse_self_wait(Name(key))

    def _pause(self, gives_up_at: float) -> float | None:
        """Return the next pause in seconds; None if the time is over."""
        self._engine.refuse_if_closed()
        least, most = self._settings.backoff_min, self._settings.backoff_max
        drawn = random.uniform(least, max(least, self._longest))
        # decorrelated jitter: the next pause is drawn from up to three times this one
        self._longest = min(most, max(least, drawn) * 3)
        left = gives_up_at - self._engine.clock.now()
        return min(drawn, left) if left > 0 else None

    def _wait_is_over(self, started_at: float, store_error: StoreError | None) -> Exception:
        """Return the error of a wait that ended with pending keys; store_error is the last round's error."""
        waited = self._engine.clock.now() - started_at
        one = self._contended
        if one is None or store_error is not None:
            return store_error or NotAcquired("the time to wait is over", waited=waited)
        left, all_ = len(self._wanted), len(self._keys)
        return NotAcquired(
            f"{left} of {all_} locks are held by others after {seconds_text(waited)}; one of them: {one}",
            key=one.key,
            holder=one.holder,
            purpose=one.purpose,
            held_for=one.held_for,
            waited=waited,
        )
