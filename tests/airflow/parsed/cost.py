"""Measures, within an Airflow, what a DAG file pays for locks on top of what it imports of Airflow anyway.

build/airflow/3.3/bin/python tests/airflow/parsed/cost.py: milliseconds. Nothing is asserted; run it a few times.
"""

from __future__ import annotations

import time
from pathlib import Path

exec((Path(__file__).parent / "base.py").read_text())  # what a file without a lock imports

began = time.perf_counter()
from airflow_lockstead import LockedTaskGroup  # noqa: E402

imported = time.perf_counter()
with DAG("cost", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)):  # type: ignore[name-defined]  # noqa: F821
    with LockedTaskGroup("first", lock="gs://bucket/locks#apt"):
        one.override(task_id="a")()  # type: ignore[name-defined]  # noqa: F821
    first = time.perf_counter()
    for number in range(20):
        with LockedTaskGroup(f"g{number}", lock="gs://bucket/locks#apt"):
            one.override(task_id="a")()  # type: ignore[name-defined]  # noqa: F821
    more = time.perf_counter()
    for number in range(20):
        with TaskGroup(f"p{number}"):  # type: ignore[name-defined]  # noqa: F821
            one.override(task_id="a")()  # type: ignore[name-defined]  # noqa: F821
    plain = time.perf_counter()
print(
    f"import {1000 * (imported - began):.1f} ms, the first group {1000 * (first - imported):.1f} ms, "
    f"each further {1000 * (more - first) / 20:.2f} ms (a group without a lock: {1000 * (plain - more) / 20:.2f} ms)"
)
