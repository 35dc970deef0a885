"""Decides what tests of several folders share: a server that takes seconds to start is started once a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.cassandra.place import CassandraPlace


_terminal: list[pytest.TerminalReporter] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--airflow "2.10 3.3"` choose among the Airflows that are pinned."""
    parser.addoption("--airflow", default="", help="run the tests on these of requirements/airflow-*.txt alone")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember where the results are shown."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        _terminal[:] = [reporter]


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show a failure when it happens: a run that is cut off later has no summary."""
    if report.failed and _terminal:
        _terminal[0].write_line("")
        _terminal[0].write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)", red=True)
        _terminal[0].write_line(report.longreprtext)


@pytest.fixture(scope="session")
def cassandra_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraPlace]:
    """Give a node of Cassandra, with a keyspace for each test."""
    from tests.servers.cassandra.place import CassandraPlace

    place = CassandraPlace(tmp_path_factory.mktemp("cassandra"))
    yield place
    place.stop()
