"""Airflow's own statistics get the measures of locks: what its exporter sends, for tasks and its own processes."""

from __future__ import annotations

import os
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.airflow.conftest import NEWEST, chosen
from tests.servers.airflow_parts import Version

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

SCRIPT = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import airflow
    from airflow.configuration import conf
    from airflow_lockstead import connection, measuring
    from airflow_lockstead.spec import LockSpec

    # as Airflow itself does when it starts a task, and its triggerer
    try:
        if sys.argv[1] == "task":
            from airflow.sdk.observability import stats
            from airflow.sdk.observability.metrics import stats_utils
        else:
            from airflow.observability import stats
            from airflow.observability.metrics import stats_utils
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    except ImportError:
        pass
    spec = LockSpec(lock=f"sqlite:///{os.environ['AIRFLOW_HOME']}/locks.db#apt-1")
    connection.lock(spec)
    lock = connection.lock(spec)
    with lock.hold() as lease:
        lease.renew()
    from opentelemetry import metrics
    metrics.get_meter_provider().force_flush()  # Airflow 2 leaves what a short process did not send in time
"""


@contextmanager
def collector() -> Iterator[tuple[int, list[bytes]]]:
    """Run what receives exported metrics; yield its port and the bodies."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], bodies
        finally:
            server.shutdown()
            thread.join()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test on every Airflow, or on the one that was asked for. Only the newest has two statistics."""
    names = chosen(metafunc.config)
    cases = [(name, "task") for name in names] + [(name, "triggerer") for name in names if name == NEWEST]
    metafunc.parametrize(("name", "process"), cases)


def test_airflows_statistics_get_the_measures_of_locks(name: str, process: str, tmp_path: Path) -> None:
    with collector() as (port, bodies):
        told = {
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__OTEL_PORT": str(port),
            "AIRFLOW__METRICS__OTEL_INTERVAL_MILLISECONDS": "60000",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{port}/v1/metrics",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
            "LOCKSTEAD_LOCK_LABELS": "apt-*=packages",
        }
        done = subprocess.run(
            [str(Version(name).python), "-c", textwrap.dedent(SCRIPT), process],
            env=told,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    sent = b"".join(bodies)
    missing = [
        what
        for what in ("wait", "acquired", "hold", "renewals", "store_request")
        if f"lockstead.{what}".encode() not in sent
    ]
    assert missing == [], (len(bodies), done.stderr[-3000:])
    for tag in (b"packages", b"granted", b"create", b"sqlite_///"):
        assert tag in sent
    assert b"apt-1" not in sent
