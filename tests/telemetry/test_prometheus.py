"""Metrics for Prometheus: what a real cycle shows, read by the real promtool; fork, and the multiprocess mode."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import lockstead
from lockstead import LeaseLost, NotAcquired
from lockstead.events import StoreRequest
from lockstead.listeners import LISTENERS
from lockstead.monitor.names import LockNames
from lockstead.telemetry import prometheus
from lockstead.telemetry.counts import EVENTS_KEPT, EVENTS_MAX, Counting
from tests.servers.base import needed


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """Return a registry with the metrics."""
    one = CollectorRegistry(auto_describe=True)
    prometheus.install(locks=["apt-*=apt", "yum"], registry=one)
    yield one
    prometheus.uninstall()


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Return what a scrape shows, but for buckets that are empty and when what was made."""
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    told = (line.rsplit(" ", 1) for line in lines if "_created" not in line)
    return {name: float(value) for name, value in told}


def of(store: str, **more: str) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted({"store": store, **more}.items())) + "}"


def test_a_cycle_is_counted(registry: CollectorRegistry, client: lockstead.Client) -> None:
    with client.lock("apt-1").hold():
        held = shown(registry)
    after = shown(registry)
    apt = {"store": "memory:", "lock": "apt"}
    assert held[f"lockstead_leases{of(**apt)}"] == 1
    assert after[f"lockstead_leases{of(**apt)}"] == 0
    assert after[f"lockstead_acquired_total{of(**apt, result='granted')}"] == 1
    assert after[f"lockstead_wait_seconds_count{of(**apt)}"] == 1
    assert after[f"lockstead_hold_seconds_count{of(**apt)}"] == 1
    assert after[f"lockstead_hold_seconds_bucket{of(**apt, le='+Inf')}"] == 1
    for command in ("create", "remove"):
        labels = of("memory:", command=command, result="ok")
        assert after[f"lockstead_store_request_seconds_count{labels}"] == 1
        assert 0 < after[f"lockstead_store_request_seconds_sum{labels}"] < 30


def test_failures_are_counted(registry: CollectorRegistry, client: lockstead.Client) -> None:
    lease = client.lock("yum").acquire()
    thread = threading.Thread(target=lambda: client.lock("yum").try_acquire())
    thread.start()
    thread.join(30)
    client.lock("yum").break_lease(reason="test", now=True)
    with suppress(LeaseLost):
        lease.renew()
    client.lock("zip").acquire().release()
    with client.lock("zip").hold(), pytest.raises(NotAcquired):
        client.lock("zip").acquire()
    told = shown(registry)
    yum, other = {"store": "memory:", "lock": "yum"}, {"store": "memory:", "lock": "other"}
    assert told[f"lockstead_acquired_total{of(**yum, result='held')}"] == 1
    assert told[f"lockstead_lost_total{of(**yum, reason='revoked')}"] == 1
    assert told[f"lockstead_acquired_total{of(**other, result='granted')}"] == 2
    assert told[f"lockstead_leases{of(**yum)}"] == 0


def test_promtool_finds_nothing_to_say(registry: CollectorRegistry, client: lockstead.Client) -> None:
    with client.lock("apt-1").hold() as lease:
        lease.renew()
    text = generate_latest(registry)
    assert text.count(b"# TYPE lockstead_") == 7
    done = subprocess.run([needed("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_histogram_adds_up() -> None:
    counting, registry = Counting(LockNames()), CollectorRegistry()
    for took in (0.001, 0.0011, 5.0, 99.0):
        counting(StoreRequest("read", "ok", took), "s")
    registry.register(prometheus.CountsCollector(counting))
    told = shown(registry)
    buckets = {
        le: told["lockstead_store_request_seconds_bucket" + of("s", command="read", result="ok", le=le)]
        for le in ("0.001", "0.0025", "2.5", "5.0", "10.0", "+Inf")
    }
    assert buckets == {"0.001": 1, "0.0025": 2, "2.5": 2, "5.0": 3, "10.0": 3, "+Inf": 4}
    labels = of("s", command="read", result="ok")
    assert told[f"lockstead_store_request_seconds_sum{labels}"] == pytest.approx(104.0021)
    assert told[f"lockstead_store_request_seconds_count{labels}"] == 4


def test_events_are_counted_before_they_are_many_and_never_kept_without_bound() -> None:
    counting = Counting(LockNames())
    for _ in range(EVENTS_MAX - 1):
        counting(StoreRequest("read", "ok", 0.0), "s")
    assert len(counting._events) == EVENTS_MAX - 1
    counting(StoreRequest("read", "ok", 0.0), "s")
    assert len(counting._events) == 0
    with counting._lock:  # as if a scrape had been killed
        for _ in range(EVENTS_KEPT + 1):
            counting(StoreRequest("read", "ok", 0.0), "s")
    assert len(counting._events) == EVENTS_KEPT
    assert sum(counting.counted().requests["s", "read", "ok"].counts) == EVENTS_MAX + EVENTS_KEPT


def test_it_is_installed_once_and_refuses_a_wrong_pattern_first() -> None:
    registry = CollectorRegistry(auto_describe=True)
    with pytest.raises(ValueError, match="a lock label is PATTERN=NAME"):
        prometheus.install(locks=["="], registry=registry)
    assert LISTENERS.every == ()
    prometheus.install(registry=registry)
    prometheus.install(registry=registry)
    assert len(LISTENERS.every) == 1
    prometheus.uninstall()
    prometheus.uninstall()
    assert (LISTENERS.every, generate_latest(registry)) == ((), b"")


def test_a_hold_survives_a_fork_and_the_child_holds_nothing(
    registry: CollectorRegistry, client: lockstead.Client
) -> None:
    leases, holds = (f"lockstead_{what}{of('memory:', lock='yum')}" for what in ("leases", "hold_seconds_count"))
    with client.lock("yum").hold():
        assert shown(registry)[leases] == 1
        pid = os.fork()
        if pid == 0:
            told = shown(registry)
            os._exit(0 if told[leases] == 0 and holds not in told else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (shown(registry)[leases], shown(registry)[holds]) == (0, 1)


def test_the_multiprocess_mode_sums_over_processes(tmp_path: Path) -> None:
    script = """
        import os
        import lockstead
        from lockstead.telemetry import prometheus
        prometheus.install(locks=["*"])
        prometheus.install()
        lock = lockstead.Lock("sqlite:///" + os.environ["DIR"] + "/locks.db#apt")
        lease = lock.acquire()
        pid = os.fork()
        if pid == 0:
            lockstead.Lock("sqlite:///" + os.environ["DIR"] + "/locks.db#yum").acquire().release()
            os._exit(0)
        os.waitpid(pid, 0)
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        print(generate_latest(registry).decode())
        lease.release()
        prometheus.uninstall()
    """
    (tmp_path / "shared").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared"), "DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = dict(re.findall(r'^lockstead_acquired_total\{lock="(\w+)".*\} (.+)$', done.stdout, re.MULTILINE))
    assert counts == {"apt": "1.0", "yum": "1.0"}
    leases = dict(re.findall(r'^lockstead_leases\{lock="(\w+)".*\} (.+)$', done.stdout, re.MULTILINE))
    assert leases == {"apt": "1.0", "yum": "0.0"}
