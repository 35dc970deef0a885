"""Two tasks under one lease: a file for the folder of your DAGs, or `python airflow_dag.py` in it."""

import sqlite3
from datetime import UTC, datetime

from airflow.sdk import DAG, task  # Airflow 2: from airflow import DAG; from airflow.decorators import task

import lockstead
from airflow_lockstead import LockedTaskGroup

# of several machines: "postgresql://host/locks#report" or "gs://bucket/locks#report"
LOCK = "sqlite:///locks.db#report"

with (
    DAG("report", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False) as dag,
    LockedTaskGroup("report", lock=LOCK, ttl="5m", purpose="write the report"),
):

    @task
    def collect() -> int:
        return 7

    @task
    def write(number: int) -> None:
        lease = lockstead.current_lease()
        with sqlite3.connect("report.db") as data:
            floor = lockstead.SqlFenceStore(data)
            floor.create_table()
            lockstead.FenceGuard(floor).admit(lease.sequencer())  # LeaseLost: a later holder was here
            data.execute("CREATE TABLE IF NOT EXISTS report (number INTEGER, token BIGINT)")
            data.execute("INSERT INTO report VALUES (?, ?)", (number, lease.sequencer().token))

    write(collect())

if __name__ == "__main__":
    dag.test()
