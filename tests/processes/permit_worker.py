"""A process that takes permits again and again, and notes when it held one: `python -m ... URL FOLDER PERMITS`."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import lockstead
from lockstead.events import LockEvent
from lockstead.stores.bootclock import boot_now

SETTINGS = {"ttl": 2, "backoff_min": 0.01, "backoff_max": 0.2}
TICK = 0.005


def _quiet(_event: LockEvent) -> None:
    """Ignore an event."""


def hold(semaphore: lockstead.Semaphore, note: Path, number: int, seconds: float) -> None:
    """Hold a permit for some seconds; each line of the note is an instant at which it was held."""
    with semaphore.hold(timeout=60) as lease, note.open("a", buffering=1) as lines:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            at = boot_now()
            lease.check()  # held now, so it was held at that instant, too
            lines.write(f"{number} {lease.slot} {at:.6f}\n")
            time.sleep(TICK)


def main(url: str, folder: Path, permits: int) -> None:
    """Take permits until killed."""
    dice, number = random.Random(), 0
    note = folder / f"{os.getpid()}.held"
    with lockstead.connect(url, listener=_quiet) as client:
        semaphore = client.semaphore("api", permits, on_mismatch="follow", **SETTINGS)
        while True:
            number += 1
            try:
                hold(semaphore, note, number, dice.uniform(0.0, 0.8))
            except (lockstead.LeaseLost, lockstead.NotAcquired, lockstead.StoreError):
                continue


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
