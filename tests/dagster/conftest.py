"""What lies below runs in the environment of one Dagster (`make dagster`), which other environments have not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.dagster.taking import Place

collect_ignore_glob = [] if find_spec("dagster") else ["test_*", "real/*"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and give it time: a run is some processes, each of which imports Dagster."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.dagster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session", autouse=True)
def _dagsters_handlers() -> None:
    """Let SIGTERM interrupt, as in every process of Dagster's: its runs leave it so, and tests compare handlers."""
    from dagster._utils.interrupts import setup_interrupt_handlers

    setup_interrupt_handlers()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a store and a folder of the test's own, and say them to the bodies."""
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder for an instance of Dagster's."""
    made = tmp_path / "home"
    made.mkdir()
    (made / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    return made


@pytest.fixture
def instance(home: Path) -> Iterator[Any]:
    """Return the instance that the programs use."""
    import dagster as dg

    with dg.DagsterInstance.from_config(str(home)) as made:
        yield made
