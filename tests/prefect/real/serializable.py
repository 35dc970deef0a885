"""A process that dies inside a serializable transaction: `python serializable.py STORE_URL FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.transactions import IsolationLevel, transaction

from prefect_lockstead.manager import LocksteadLockManager


def store_of(url: str, folder: Path, manager: object | None = None) -> ResultStore:
    """Return a result store whose records lie in a folder and are locked by ours, or by another manager."""
    return ResultStore(
        result_storage=LocalFileSystem(basepath=str(folder)),
        lock_manager=manager or LocksteadLockManager(url, ttl="2s"),
    )


def main() -> None:
    """Enter the transaction and stay in it."""
    url, folder = sys.argv[1], Path(sys.argv[2])
    store = store_of(url, folder)
    with transaction(key="killed", store=store, isolation_level=IsolationLevel.SERIALIZABLE):
        print("inside", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
