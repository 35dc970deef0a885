"""How Prefect's own transactions and result stores lock records on any store: its `LockManager` protocol.

Who holds a record is read in the store, where the holder's name is the owner of the lease. What this process keeps of
it stands in `kept`. Must not import Prefect unless a block is named.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from urllib.parse import quote

from lockstead import (
    Lock,
    LocksteadError,
    NotAcquired,
    OutcomeUnknown,
    Settings,
    StoreRefused,
    StoreUnavailable,
    urls,
)
from lockstead.values import Duration, checked_key, seconds
from prefect_lockstead import hosting
from prefect_lockstead.kept import SHARED, Record, Records, released, warn
from prefect_lockstead.places import Place

if TYPE_CHECKING:
    from lockstead import AsyncLock
    from lockstead.views import LockInfo
    from prefect_lockstead.blocks import LocksteadStore

_LOGGER: Final = logging.getLogger("prefect_lockstead")

RECLAIM_LIMIT: Final = 1.0
"""Seconds for which what the same holder left behind is asked for, before looking again who keeps it."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """Take the lock within so many seconds. reclaim: from an earlier process of the same holder."""

    limit: float | None
    reclaim: bool = False
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class _Wait:
    """Wait for so many seconds until nobody holds it."""

    limit: float | None


_Steps: TypeAlias = "Generator[_Ask | _Wait, NotAcquired | None, bool]"
"""What to do to get a lock; sent why it was not had, None if nobody knows. Gives whether it is held already."""


class LocksteadLockManager:
    """Locks the records of transactions on any store: `ResultStore(lock_manager=LocksteadLockManager("gs://b/locks"))`.

    store: the URL of a store, a `LocksteadStore`, or the name of a saved one. A record is locked for as long as its
    process lives and renews, or hold_timeout seconds if that is given; after its death for ttl at most. Nothing is
    interrupted when a lock is lost: Prefect asks before it writes, and is told. Safe to share, to copy and to pickle;
    a pickle holds the URL or the block with its password in clear; one of a saved store's name holds the name alone.
    Managers of the same store and ttl are equal.
    """

    def __init__(self, store: str | LocksteadStore, *, ttl: Duration | None = None) -> None:
        if not isinstance(store, str) and not hasattr(store, "place"):
            raise TypeError(f"store is a URL, a LocksteadStore or the name of one, not {type(store).__name__}")
        if isinstance(store, str) and ":" in store:
            urls.check_store(store)
        self._store = store
        self._ttl = None if ttl is None else seconds(ttl, "ttl")
        if self._ttl is not None:
            Settings.make(ttl=self._ttl)
        self._begin()

    def _begin(self) -> None:
        self._place: Place | None = None
        said = self._store
        if not isinstance(said, str):
            self._place = said.place
            said = f"{self._place.url} {id(self._place.client)}"
        elif ":" in said:
            self._place = Place(said)
        self._name = hashlib.sha256(said.encode()).hexdigest()
        self._records: Records | None = SHARED.of(self._name)

    # --- the protocol ------------------------------------------------------------------------------------------------

    def acquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Take the lock, waiting forever by default; False if others hold it after acquire_timeout seconds.

        True at once for who holds it already. RuntimeError instead of waiting for oneself forever.
        """
        records, record = self._open(), (key, holder)
        steps = _steps(records, record, acquire_timeout, hold_timeout)
        try:
            step = next(steps)
            while True:
                lock, refused = self._lock(key, holder), None
                try:
                    if isinstance(step, _Wait):
                        lock.wait_until_free(step.limit)
                    else:
                        lease = lock.acquire(step.limit, reclaim=step.reclaim)
                        records.stay_open(lock)
                        records.keep(record, lease, hold_timeout)
                        return True
                except (NotAcquired, StoreUnavailable, OutcomeUnknown) as error:
                    refused = _refusal(step, error, acquire_timeout)
                step = steps.send(refused)
        except StopIteration as ended:
            return bool(ended.value)

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Take the lock, awaiting; as `acquire_lock`."""
        records, record = self._open(), (key, holder)
        steps = _steps(records, record, acquire_timeout, hold_timeout)
        try:
            step = next(steps)
            while True:
                lock, refused = await self._alock(key, holder), None
                try:
                    if isinstance(step, _Wait):
                        await lock.wait_until_free(step.limit)
                    else:
                        lease = await lock.acquire(step.limit, reclaim=step.reclaim)
                        records.stay_open(lock)
                        records.keep(record, lease, hold_timeout)
                        return True
                except (NotAcquired, StoreUnavailable, OutcomeUnknown) as error:
                    refused = _refusal(step, error, acquire_timeout)
                step = steps.send(refused)
        except StopIteration as ended:
            return bool(ended.value)

    def release_lock(self, key: str, holder: str) -> None:
        """Release the lock. Again, or once it was lost or has expired, is nothing; ValueError if it never was ours.

        A store that stays silent is a warning: the ttl frees the key.
        """
        records, record = self._open(), (key, holder)
        if records.give_back(record):
            return
        try:
            holding = self._seen(key)
            if holding is None:
                return
            if holding.owner == _owner(holder):
                self._release_of_another_process(key, holder)
                return
        except LocksteadError as error:
            warn(record, error)
            return
        if not records.was_given_back(record):
            raise ValueError(
                f"No lock held by {holder} for transaction with key {key}: it is held by {holding.owner!r}"
            )

    def is_locked(self, key: str) -> bool:
        """Return whether anybody holds it, as far as one look into the store can tell."""
        return self._seen(key) is not None

    def is_lock_holder(self, key: str, holder: str) -> bool:
        """Return whether this holder holds it, by the store and, where this process renews it, by its own clock."""
        holding = self._seen(key)
        if holding is None or holding.owner != _owner(holder):
            return False
        lease = self._open().lease((key, holder))
        return lease is None or (lease.is_held and lease.holder == holding.holder)

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Wait until nobody holds it, and do not take it; False if somebody still does after timeout seconds."""
        return self._lock(key).wait_until_free(timeout)

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until nobody holds it, awaiting; as `wait_for_lock`."""
        return await (await self._alock(key)).wait_until_free(timeout)

    # --- opening and closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Use it no more. What is still held is believed no longer once its last copy is closed, and expires."""
        self._records = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LocksteadLockManager):
            return NotImplemented
        return (self._name, self._ttl) == (other._name, other._ttl)

    def __hash__(self) -> int:
        return hash((self._name, self._ttl))

    def __getstate__(self) -> dict[str, Any]:
        # a block has its password as a field, and a pickle of it holds that in clear, too
        place = None if isinstance(self._store, str) and ":" not in self._store else self._place
        if place is not None and (urls.has_password(place.url) or place.client is not None):
            _LOGGER.warning(
                "the lock manager is pickled with a password or key of its store: "
                "save a LocksteadStore and give its name instead"
            )
        return {"store": self._store, "ttl": self._ttl}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._store, self._ttl = state["store"], state["ttl"]
        self._begin()

    def __repr__(self) -> str:
        return f"<LocksteadLockManager {'closed' if self._records is None else 'open'}>"

    def _open(self) -> Records:
        if self._records is None:
            raise StoreRefused("the lock manager was closed: make another one")
        return self._records

    def _lock(self, key: str, holder: str | None = None) -> Lock:
        self._open()
        if self._place is None:
            from prefect_lockstead import blocks

            self._place = blocks.resolve_store(str(self._store))
        place = self._place.of_key(_key(key))
        return Lock(place.url, client=place.client, **self._settings(place, holder))

    async def _alock(self, key: str, holder: str | None = None) -> AsyncLock:
        from lockstead import AsyncLock

        self._open()
        if self._place is None:
            from prefect_lockstead import blocks

            self._place = await blocks.aresolve_store(str(self._store))
        place = self._place.of_key(_key(key))
        return AsyncLock(place.url, client=place.client, **self._settings(place, holder))

    def _settings(self, place: Place, holder: str | None) -> dict[str, Any]:
        run = hosting.owner() if holder is not None and place.settings.get("purpose") is None else None
        own = {
            "ttl": self._ttl,
            "owner": None if holder is None else _owner(holder),
            # the holder's name is Prefect's, and tells nobody which run it is
            "purpose": None if run is None else f"a transaction of {run}",
        }
        return {**place.settings, **{name: value for name, value in own.items() if value is not None}}

    def _seen(self, key: str) -> LockInfo | None:
        lock = self._lock(key)
        holding = lock.inspect()
        self._open().stay_open(lock)
        return None if holding is None or holding.is_expired else holding

    def _release_of_another_process(self, key: str, holder: str) -> None:
        # who holds it says that it is over, so this takes nothing from anybody; the next finds a clean end
        with suppress(NotAcquired):
            released(self._lock(key, holder).acquire(RECLAIM_LIMIT, reclaim=True))


def _steps(records: Records, record: Record, acquire_timeout: float | None, hold_timeout: float | None) -> _Steps:
    """Decide, step by step, how a lock is taken by this holder."""
    if records.keeps_on(record, hold_timeout):
        return True
    ends_at = None if acquire_timeout is None else time.monotonic() + acquire_timeout
    key, holder = record
    # once without waiting: the one who holds it may be an earlier process of the same holder
    refused = yield _Ask(0.0, is_first=True)
    while (left := _left(ends_at)) is None or left > 0:
        if records.keeps_on(record, hold_timeout):
            return True
        if refused is not None and refused.holder == _owner(holder):
            limit = RECLAIM_LIMIT if left is None else min(RECLAIM_LIMIT, left)
            refused = yield _Ask(limit, reclaim=True)
            continue
        refused = yield _Ask(left)
        left = _left(ends_at)
        if refused is None or (left is not None and left <= 0):
            continue
        # refused before its time: this very thread or task holds it by another name
        if left is None and not records.ends_by_itself(key):
            raise RuntimeError(f"{refused}: a transaction inside another one of the same key would wait forever")
        yield _Wait(left)
        refused = yield _Ask(0.0, is_first=True)
    return False


def _left(ends_at: float | None) -> float | None:
    return None if ends_at is None else ends_at - time.monotonic()


def _refusal(step: _Ask | _Wait, error: LocksteadError, acquire_timeout: float | None) -> NotAcquired | None:
    """Return why a lock was not had, or raise what ends the asking."""
    if isinstance(error, NotAcquired):
        return error
    # a silent store is waited out by whoever waits; a first try is not his whole wait
    if isinstance(step, _Ask) and step.is_first and acquire_timeout != 0:
        return None
    raise error


def _owner(holder: str) -> str:
    """Return the owner that a holder is in the store: its name, quoted where it could not be shown."""
    if not holder:
        raise ValueError("the holder is empty; name who asks for the lock")
    return holder if holder.isprintable() and holder.strip() else quote(holder)


def _key(key: str) -> str:
    """Return the key of a record: its name, or a digest of one that is too long or not printable."""
    try:
        return checked_key(key)
    except ValueError:
        return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
