"""Prefect's `LockManager` protocol: locks for transactions and result stores on any store of lockstead.

Who holds a record is read from the store, where the holder's name is the owner of the lease. `lease_registry` has the
leases of this process. Must not import Prefect unless a block is named.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from lockstead import LocksteadError, NotAcquired, Settings, StoreRefused, urls
from lockstead.values import Duration, seconds
from prefect_lockstead import aio_record, record, run_context
from prefect_lockstead.lease_registry import REGISTRIES, LeaseRegistry, released, warn
from prefect_lockstead.places import Place

if TYPE_CHECKING:
    from lockstead.views import LockInfo
    from prefect_lockstead.blocks import LocksteadStore

_LOGGER: Final = logging.getLogger("prefect_lockstead")


class LocksteadLockManager:
    """Locks the records of transactions on any store: `ResultStore(lock_manager=LocksteadLockManager("gs://b/locks"))`.

    store: the URL of a store, a `LocksteadStore`, or the name of a saved one. A record stays locked while its process
    lives and renews, or for hold_timeout seconds if that is given, and at most for the ttl after a death. A loss
    interrupts nothing: Prefect checks the lock before it writes. Safe to share, to copy and to pickle; a pickle has
    the URL or the block with its password in clear, but only the name of a saved store. Managers of the same store and
    ttl are equal.
    """

    def __init__(self, store: str | LocksteadStore, *, ttl: Duration | None = None) -> None:
        if not isinstance(store, str) and not hasattr(store, "place"):
            raise TypeError(f"store must be a URL, a LocksteadStore or the name of one, not {type(store).__name__}")
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
        self._records: LeaseRegistry | None = REGISTRIES.of(self._name)

    # --- the protocol ------------------------------------------------------------------------------------------------

    def acquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Acquire the lock, waiting forever by default; False if another holder has it after acquire_timeout seconds.

        True at once if this holder has it already. RuntimeError if the caller would wait for itself forever.
        """
        return record.acquire(self, key, holder, acquire_timeout, hold_timeout)

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Acquire the lock, awaiting; as `acquire_lock`."""
        return await aio_record.acquire(self, key, holder, acquire_timeout, hold_timeout)

    def release_lock(self, key: str, holder: str) -> None:
        """Release the lock, if it was not released, lost or expired before; ValueError if this holder never had it.

        If the store does not answer, a warning is logged: the ttl frees the key.
        """
        records, mine = self._open(), (key, holder)
        if records.give_back(mine):
            return
        try:
            holding = self._seen(key)
            if holding is None:
                return
            if holding.owner == _owner(holder):
                self._release_of_another_process(key, holder)
                return
        except LocksteadError as error:
            warn(mine, error)
            return
        if not records.was_given_back(mine):
            raise ValueError(
                f"No lock held by {holder} for transaction with key {key}: it is held by {holding.owner!r}"
            )

    def is_locked(self, key: str) -> bool:
        """Return whether the lock is held, by one read of the store."""
        return self._seen(key) is not None

    def is_lock_holder(self, key: str, holder: str) -> bool:
        """Return whether this holder has the lock, by the store and, if this process renews it, by its own clock."""
        holding = self._seen(key)
        if holding is None or holding.owner != _owner(holder):
            return False
        lease = self._open().lease((key, holder))
        return lease is None or (lease.is_held and lease.holder == holding.holder)

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Wait until the lock is free, without acquiring it; False if it is still held after timeout seconds."""
        return record.lock_of(self, key).wait_until_free(timeout)

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until the lock is free, awaiting; as `wait_for_lock`."""
        return await (await aio_record.lock_of(self, key)).wait_until_free(timeout)

    # --- opening and closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it for further use. Locks that are still held are dropped with its last copy, and expire."""
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
        # a pickle of a block contains the password, which is a field of it, in clear too
        place = None if isinstance(self._store, str) and ":" not in self._store else self._place
        if place is not None and (urls.has_password(place.url) or place.client is not None):
            _LOGGER.warning(
                "the lock manager is pickled with a password or key of its store: "
                "save a LocksteadStore and pass its name instead"
            )
        return {"store": self._store, "ttl": self._ttl}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._store, self._ttl = state["store"], state["ttl"]
        self._begin()

    def __repr__(self) -> str:
        return f"<LocksteadLockManager {'closed' if self._records is None else 'open'}>"

    def _open(self) -> LeaseRegistry:
        if self._records is None:
            raise StoreRefused("the lock manager is closed: create another one")
        return self._records

    def _settings(self, place: Place, holder: str | None) -> dict[str, Any]:
        run = run_context.owner() if holder is not None and place.settings.get("purpose") is None else None
        own = {
            "ttl": self._ttl,
            "owner": None if holder is None else _owner(holder),
            # the holder's name comes from Prefect and does not identify the run for people
            "purpose": None if run is None else f"a transaction of {run}",
        }
        return {**place.settings, **{name: value for name, value in own.items() if value is not None}}

    def _seen(self, key: str) -> LockInfo | None:
        lock = record.lock_of(self, key)
        holding = lock.inspect()
        self._open().keep_open(lock)
        return None if holding is None or holding.is_expired else holding

    def _release_of_another_process(self, key: str, holder: str) -> None:
        # the holder itself releases, so this takes nothing from another; the next holder sees a clean end
        with suppress(NotAcquired):
            released(record.lock_of(self, key, holder).acquire(record.RECLAIM_LIMIT, reclaim=True))


def _owner(holder: str) -> str:
    """Return the owner name of a holder in the store: its name, quoted if it is not printable."""
    if not holder:
        raise ValueError("the holder's name is empty")
    return holder if holder.isprintable() and holder.strip() else quote(holder)
