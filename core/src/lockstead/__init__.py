"""Distributed locks for work that runs in many places at once.

A task takes a *lease* on a name before its critical section, a keeper renews it in the background, and the section is
aborted cleanly when the lease can no longer be trusted. A fencing token stops whoever was too slow to notice.

    lock = lockstead.Lock("gs://my-bucket/locks/apt", ttl="5m", purpose="publish APT packages")
    with lock.hold(timeout=600) as lease:
        build()
        lease.check()
        publish(token=lease.sequencer().token)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lockstead.current import current_lease
from lockstead.errors import (
    LeaseLost,
    LocksteadError,
    LossReason,
    NotAcquired,
    OutcomeUnknown,
    PreviousLeaseUnclean,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from lockstead.lock import Client, Lock, connect
from lockstead.settings import Settings
from lockstead.values import LeaseOutcome, LeaseTicket, PreviousLease, Sequencer

if TYPE_CHECKING:
    from lockstead.aio_batch import AsyncBatch
    from lockstead.aio_election import AsyncElection
    from lockstead.aio_lease import AsyncLease
    from lockstead.aio_lock import AsyncClient, AsyncLock, connect_async
    from lockstead.aio_semaphore import AsyncSemaphore
    from lockstead.aio_term import AsyncTerm
    from lockstead.batch import Batch
    from lockstead.election import Election
    from lockstead.fencing import FenceGuard, GcsFenceStore, SqlFenceStore
    from lockstead.lease import Lease
    from lockstead.listeners import add_listener, remove_listener
    from lockstead.runtime.interrupt import LeaseLostInterrupt
    from lockstead.semaphore import Semaphore
    from lockstead.term import Term
    from lockstead.views import AuditEntry, BreakResult, Contender, Leader, LockInfo, Permits, PruneResult

__version__ = "0.1.0"

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncElection",
    "AsyncLease",
    "AsyncLock",
    "AsyncSemaphore",
    "AsyncTerm",
    "AuditEntry",
    "Batch",
    "BreakResult",
    "Client",
    "Contender",
    "Election",
    "FenceGuard",
    "GcsFenceStore",
    "Leader",
    "Lease",
    "LeaseLost",
    "LeaseLostInterrupt",
    "LeaseOutcome",
    "LeaseTicket",
    "Lock",
    "LockInfo",
    "LocksteadError",
    "LossReason",
    "NotAcquired",
    "OutcomeUnknown",
    "Permits",
    "PreviousLease",
    "PreviousLeaseUnclean",
    "PruneResult",
    "Semaphore",
    "Sequencer",
    "Settings",
    "SqlFenceStore",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Term",
    "__version__",
    "add_listener",
    "connect",
    "connect_async",
    "current_lease",
    "remove_listener",
]


_WHEN_NAMED = {
    "AsyncBatch": "aio_batch",
    "AsyncClient": "aio_lock",
    "AsyncElection": "aio_election",
    "AsyncTerm": "aio_term",
    "AsyncLease": "aio_lease",
    "AsyncLock": "aio_lock",
    "AsyncSemaphore": "aio_semaphore",
    "AuditEntry": "views",
    "Contender": "views",
    "Batch": "batch",
    "BreakResult": "views",
    "Election": "election",
    "FenceGuard": "fencing",
    "Leader": "views",
    "LockInfo": "views",
    "Lease": "lease",
    "GcsFenceStore": "fencing",
    "Permits": "views",
    "PruneResult": "views",
    "Semaphore": "semaphore",
    "SqlFenceStore": "fencing",
    "LeaseLostInterrupt": "runtime.interrupt",
    "Term": "term",
    "add_listener": "listeners",
    "connect_async": "aio_lock",
    "remove_listener": "listeners",
}
"""What naming a lock does not need, and where it stands: asyncio alone takes longer to import than all the rest."""


def __getattr__(name: str) -> Any:
    """Import what is named for the first time."""
    if name not in _WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"lockstead.{_WHEN_NAMED[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
