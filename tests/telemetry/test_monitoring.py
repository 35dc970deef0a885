"""The files of examples/monitoring, loaded by the real programs of Prometheus. Grafana itself is not run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from lockstead.errors import LossReason
from lockstead.events import Acquired, Lost, NotGranted, Released, RenewalFailed, Renewed, StoreRequest
from lockstead.monitor.names import LockNames
from lockstead.monitor.openmetrics import Metrics
from lockstead.monitor.rounds import Round
from lockstead.telemetry.counts import Counting
from lockstead.telemetry.prometheus import CountsCollector
from lockstead.views import LockInfo
from tests.runtime.faulty import until
from tests.servers.base import Server, needed

FILES = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD = json.loads((FILES / "grafana.json").read_text())


def families(*collectors: Any) -> set[str]:
    """Return the names of the samples of some collectors."""
    return {sample.name for one in collectors for metric in one.collect() for sample in metric.samples}


def used(text: str) -> set[str]:
    return set(re.findall(r"\blockstead_\w+", text))


def filled() -> tuple[Metrics, Counting]:
    """Return the metrics of a reaper that saw 10,000 locks, and of a program that used as many."""
    metrics, counting = Metrics(LockNames.parse(["*"])), Counting(LockNames.parse(["*"]))
    store = metrics.of("redis://h/0")
    store.leads = lambda: True
    store.began(1000.0)
    for number in range(10_000):
        key = f"apt-{number}"
        store.saw(
            LockInfo(
                key=key, holder="a/1", owner="a", incarnation="1", ttl=60.0, acquired_epoch=990.0, alert_epoch=995.0,
                expires_epoch=1050.0,
            )
        )  # fmt: skip
        work(counting, key)
    store.ended(Round("redis://h/0", 1, 1000.0, 1.0, 10_000, None))
    store.reap("apt-1")
    return metrics, counting


def work(counting: Counting, key: str) -> None:
    """Do everything once that is measured."""
    counting(Acquired(key, "a", 1, 0.2), "redis://h/0")
    counting(Renewed(key, "a", 1.0), "redis://h/0")
    counting(RenewalFailed(key, "a", ValueError(), 1.0), "redis://h/0")
    counting(NotGranted(key, "b", "timeout", 2.0), "redis://h/0")
    counting(StoreRequest("create", "ok", 0.001), "redis://h/0")
    counting(StoreRequest("create", "unavailable", 0.001), "redis://h/0")
    counting(Released(key, "a", True, ""), "redis://h/0")
    counting(Lost(key, "c", LossReason.TAKEN, 1, ""), "redis://h/0")


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    for check in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            [needed("promtool"), *check], cwd=FILES, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    alerts = re.findall(r"- alert: (\w+)", (FILES / "alerts.yml").read_text())
    fires = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", (FILES / "alerts_test.yml").read_text())
    assert set(alerts) == set(fires)
    assert len(alerts) == 7


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_every_metric_that_is_used_is_one_that_is_shown(name: str) -> None:
    metrics, counting = filled()
    assert used((FILES / name).read_text()) - families(metrics, CountsCollector(counting)) == set()


class Prometheus(Server):
    """A Prometheus that scrapes one port every three seconds."""

    def __init__(self, directory: Path, scraped: int) -> None:
        super().__init__(directory)
        shutil.copy(FILES / "alerts.yml", directory / "alerts.yml")
        (directory / "prometheus.yml").write_text(
            "global: {scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 3s}\n"
            "rule_files: [alerts.yml]\n"
            f"scrape_configs: [{{job_name: lockstead, static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]}}]\n"
        )

    def command(self) -> list[str]:
        return [
            needed("prometheus"),
            f"--config.file={self.directory}/prometheus.yml",
            f"--storage.tsdb.path={self.directory}/data",
            f"--web.listen-address={self.address}",
        ]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except OSError:  # no port yet, or not ready
            return False

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            return json.load(reply)["data"]


def queries() -> Iterator[tuple[str, str]]:
    """Yield each panel's title and query, as Grafana asks when everything is chosen."""
    chosen: Mapping[str, str] = {"$store": ".*", "$lock": ".*", "$__rate_interval": "1m"}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in chosen.items():
                query = query.replace(name, value)
            yield panel["title"], query


@pytest.mark.server
def test_a_real_prometheus_scrapes_ten_thousand_locks_in_time_and_answers_every_panel(tmp_path: Path) -> None:
    metrics, counting = filled()
    registry = CollectorRegistry()
    registry.register(metrics)
    registry.register(CountsCollector(counting))
    scraped, server = start_http_server(0, "127.0.0.1", registry), None
    try:
        server = Prometheus(tmp_path / "prometheus", scraped[0].server_port).start()

        def value(query: str) -> list[Any]:
            return list(server.ask("query", query=query)["result"])

        until(lambda: bool(value('count_over_time(up{job="lockstead"}[1m]) >= 2')), 90)
        for number in range(500):
            work(counting, f"apt-{number}")
        asked = list(queries())
        assert len(asked) > 15
        until(lambda: all(value(query) for _, query in asked), 90)
        (took,) = value('min_over_time(scrape_duration_seconds{job="lockstead"}[1m])')
        assert float(took["value"][1]) < 1.0
        groups = server.ask("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    finally:
        if server is not None:
            server.stop()
        scraped[0].shutdown()
        scraped[0].server_close()
        scraped[1].join()


def test_the_dashboard_is_whole() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in panels)
    assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {"${datasource}"}
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
