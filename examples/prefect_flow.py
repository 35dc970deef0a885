"""A flow that holds a lock, and its task: `python prefect_flow.py`, or a deployment of `report`."""

import sqlite3

from prefect import flow, task

import lockstead
from prefect_lockstead import locked

# of several machines: "postgresql://host/locks#report" or "gs://bucket/locks#report"
LOCK = "sqlite:///locks.db#report"


@task
def collect() -> int:
    return 7


@flow(retries=2)
@locked(LOCK, ttl="5m", purpose="write the report")
def report() -> None:
    number = collect()
    lease = lockstead.current_lease()
    with sqlite3.connect("report.db") as data:
        floor = lockstead.SqlFenceStore(data)
        floor.create_table()
        lockstead.FenceGuard(floor).admit(lease.sequencer())  # LeaseLost: a later holder was here
        data.execute("CREATE TABLE IF NOT EXISTS report (number INTEGER, token BIGINT)")
        data.execute("INSERT INTO report VALUES (?, ?)", (number, lease.sequencer().token))


if __name__ == "__main__":
    report()
