"""Programs that end right after a lock was given back: `python -m tests.prefect.real.exiting NAME`."""

from __future__ import annotations

import os
import sys

from prefect import flow, task, task_runners

from prefect_lockstead import locked

LOCK = os.environ.get("TEST_LOCK", "sqlite:///nowhere.db#apt")


@flow
@locked(LOCK)
def alone() -> None:
    """Hold the lock in the process that ends."""


@task
@locked(LOCK)
def part() -> None:
    """Hold the lock in a process of a pool."""


def pooled() -> None:
    """Run the task in a process pool, which ends with the flow."""
    runner = task_runners.ProcessPoolTaskRunner(max_workers=1)

    @flow(task_runner=runner)
    def whole() -> None:
        part.submit().result()

    whole()


if __name__ == "__main__":
    {"alone": alone, "pooled": pooled}[sys.argv[1]]()
