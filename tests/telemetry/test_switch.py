"""Telemetry is switched on by an environment variable, and what cannot be switched on stops nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import lockstead
from lockstead.listeners import LISTENERS, add_listener, remove_listener
from lockstead.telemetry import install_from_environment, otel, prometheus


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    otel.uninstall()
    prometheus.uninstall()
    assert LISTENERS.every == ()


@pytest.mark.parametrize(("names", "listeners"), [("otel", 2), ("prometheus", 1), (" otel, prometheus,", 3), ("", 0)])
def test_the_variable_names_what_is_installed(names: str, listeners: int) -> None:
    said: list[str] = []
    for _ in range(2):
        install_from_environment({"LOCKSTEAD_TELEMETRY": names, "LOCKSTEAD_LOCK_LABELS": "apt-*=apt,*"}, said.append)
    assert (len(LISTENERS.every), said) == (listeners, [])


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"LOCKSTEAD_TELEMETRY": "statsd"}, "'statsd' is not switched on: it is not one of otel, prometheus"),
        ({"LOCKSTEAD_TELEMETRY": "prometheus", "LOCKSTEAD_LOCK_LABELS": "="}, "a lock label is PATTERN=NAME"),
    ],
)
def test_what_cannot_be_installed_is_one_line(environment: dict[str, str], line: str) -> None:
    said: list[str] = []
    install_from_environment(environment, said.append)
    assert len(said) == 1
    assert line in said[0]
    assert LISTENERS.every == ()


def test_the_command_line_works_without_what_it_was_asked_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lockstead.cli", "run", f"sqlite:///{tmp_path}/locks.db#apt", "--", "echo", "done"],
        env={**os.environ, "LOCKSTEAD_TELEMETRY": "prometheus,nothing"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "LOCKSTEAD_TELEMETRY: 'nothing' is not switched on" in done.stderr
    assert done.stderr.count("\n") == 1


def test_opentelemetry_instrument_finds_what_to_call() -> None:
    (found,) = entry_points(group="opentelemetry_instrumentor", name="lockstead")
    instrumentor = found.load()()
    instrumentor.instrument(skip_dep_check=True)
    assert len(LISTENERS.every) == 2
    instrumentor.uninstrument()
    assert LISTENERS.every == ()


def test_parsing_loads_none_of_it() -> None:
    script = (
        "import sys, lockstead\n"
        "lock = lockstead.Lock('memory:#apt')\n"
        "heavy = ('lockstead.telemetry', 'prometheus_client', 'opentelemetry')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_command_line_shows_the_trace_of_a_holder(tmp_path: Path) -> None:
    url, trace = f"sqlite:///{tmp_path}/locks.db#apt", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def listen(*_: object) -> None:
        """Hear nothing."""

    def inspect(*options: str) -> str:
        command = [sys.executable, "-m", "lockstead.cli", "inspect", url, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout

    add_listener(listen, traceparent=lambda *_: trace)
    try:
        with lockstead.Lock(url).hold():
            assert json.loads(inspect("--json"))["traceparent"] == trace
            assert trace in inspect()
    finally:
        remove_listener(listen)


@pytest.mark.parametrize(
    ("package", "module", "message"),
    [
        ("opentelemetry", "otel", "traces need: pip install 'lockstead[otel]'"),
        ("prometheus_client", "prometheus", "metrics for Prometheus need: pip install 'lockstead[prometheus]'"),
    ],
)
def test_without_its_package_one_line_says_what_to_install(package: str, module: str, message: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; import lockstead.telemetry.{module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip().endswith(message)
