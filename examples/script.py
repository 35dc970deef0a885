"""Write a row under a lock, from any number of processes; the table refuses whoever comes too late."""

import sqlite3

import lockstead

# of several machines: "postgresql://host/locks#report" or "gs://bucket/locks#report"
LOCK = "sqlite:///locks.db#report"

lock = lockstead.Lock(LOCK, ttl="1m", purpose="write the report")

with lock.hold(timeout="5m") as lease, sqlite3.connect("report.db") as data:
    floor = lockstead.SqlFenceStore(data)
    floor.create_table()
    lockstead.FenceGuard(floor).admit(lease.sequencer())  # LeaseLost: a later holder was here
    data.execute("CREATE TABLE IF NOT EXISTS report (number INTEGER, token BIGINT)")
    data.execute("INSERT INTO report SELECT COUNT(*) + 1, ? FROM report", (lease.sequencer().token,))
