"""Which Airflows the tests of this folder run on, and that each is started once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gcs_emulator import GcsServer
from tests.airflow.scenes import Scenes
from tests.servers.airflow import Airflow
from tests.servers.airflow_parts import ROOT

PINNED = [path.stem.removeprefix("airflow-") for path in (ROOT / "requirements").glob("airflow-*.txt")]
VERSIONS = sorted(PINNED, key=lambda name: tuple(map(int, name.split("."))))
"""All that are pinned, the oldest first."""

NEWEST = VERSIONS[-1]


def chosen(config: pytest.Config) -> list[str]:
    """Return the versions that the tests shall run on, the oldest first: those that were asked for, or all."""
    words = str(config.getoption("--airflow")).split()
    return [name for name in VERSIONS if name in words] if words else VERSIONS


def side_by_side(names: list[str], group: str = "airflow") -> list[Any]:
    """Return versions as parameters; tests of different ones may run at the same time, those of one group may not."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"{group} {name}")) for name in names]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every Airflow, or on the one that was asked for; scenes may have one of their own."""
    if "airflow" in metafunc.fixturenames:
        group = "scenes" if "scenes" in metafunc.fixturenames else "airflow"
        versions = side_by_side(chosen(metafunc.config), group)
        metafunc.parametrize("airflow", versions, indirect=True, scope="session")


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    """Return a Cloud Storage that takes one change of an object a second, as the real one does."""
    with GcsServer(buckets=["bucket"]) as server, pytest.MonkeyPatch.context() as patched:
        server.faults.one_mutation_per_second = True
        patched.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture(scope="session")
def airflow(
    request: pytest.FixtureRequest, gcs: GcsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    """Return a running Airflow; pytest sorts the tests so that only one runs at a time."""
    home = tmp_path_factory.mktemp(f"airflow-{request.param}-")
    told = {
        "AIRFLOW_CONN_ELSEWHERE": json.dumps({"conn_type": "lockstead", "host": f"sqlite:///{home}/elsewhere.db"}),
        "STORAGE_EMULATOR_HOST": gcs.url,
        # no triggerer of these tests dies while a lease has so little time
        "AIRFLOW__LOCKSTEAD__KEEPER_TTL_MIN": "10",
    }
    with Airflow(request.param, home, parallelism=6, told=told) as running:
        yield running


@pytest.fixture(scope="session")
def scenes(request: pytest.FixtureRequest, airflow: Airflow) -> Iterator[Scenes]:
    """Play the scenes of all modules that look at some, at once: a module names them by `played`."""
    looking = [item for item in request.session.items if "scenes" in getattr(item, "fixturenames", ())]
    modules = dict.fromkeys(item.module for item in looking if isinstance(item, pytest.Function))
    started = Scenes(airflow, [scene for module in modules for scene in module.played(airflow)])
    yield started
    started.close()


@pytest.fixture
def newest(airflow: Airflow) -> None:
    """Leave out what is looked at on the newest Airflow only."""
    if airflow.version.name != NEWEST:
        pytest.skip(f"looked at on {NEWEST}")
