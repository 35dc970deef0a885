"""An asset whose materialization holds a lock: `dagster asset materialize -f dagster_asset.py --select report`."""

import sqlite3

import dagster as dg

import lockstead
from dagster_lockstead import LockResource, locked

# of several machines: "postgresql://host/locks" or "gs://bucket/locks"
STORE = "sqlite:///locks.db"


@dg.asset
@locked("report", ttl="5m", purpose="write the report")
def report() -> None:
    lease = lockstead.current_lease()
    with sqlite3.connect("report.db") as data:
        floor = lockstead.SqlFenceStore(data)
        floor.create_table()
        lockstead.FenceGuard(floor).admit(lease.sequencer())  # LeaseLost: a later holder was here
        data.execute("CREATE TABLE IF NOT EXISTS report (number INTEGER, token BIGINT)")
        data.execute("INSERT INTO report VALUES (?, ?)", (7, lease.sequencer().token))


defs = dg.Definitions(assets=[report], resources={"lock": LockResource(store=STORE)})
