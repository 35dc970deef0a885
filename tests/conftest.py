"""What tests of several folders share: a server that takes seconds to start is started once a worker.

And that no run ends without a word of what it was at: a failure is shown when it happens, a process that stands still
is ended, and what had begun when a run was cut off is named.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tests.servers.cassandra.place import CassandraPlace


FROZEN_AFTER: Final = 60
"""Seconds after a test's time-out until its process is ended from below: then not even its time-out could run."""

_terminal: list[pytest.TerminalReporter] = []
_stderr: list[int] = []
_under_way: dict[str, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--airflow "2.10 3.3"` choose among the pinned Airflows, and `--first-case` one case of each test."""
    parser.addoption("--airflow", default="", help="run the tests on these of requirements/airflow-*.txt alone")
    parser.addoption("--first-case", action="store_true", help="of a test with parameters, run the first case alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all but the first case of each test, if that is asked for."""
    if not config.getoption("--first-case"):
        return
    cases: dict[str, pytest.Item] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], item)
    first = {id(item) for item in cases.values()}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in first])
    items[:] = [item for item in items if id(item) in first]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember where the results are shown."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        _terminal[:] = [reporter]


def pytest_configure(config: pytest.Config) -> None:
    """Hear SIGINT, and remember where a process that stands still may say so: a test's own output is caught."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell starts what runs in its background so; Dagster makes SIGTERM the same, and children inherit both
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert sys.__stderr__ is not None
    _stderr[:] = [os.dup(sys.__stderr__.fileno())]
    if find_spec("hypothesis"):
        # a keeper's thread may draw from `random` while a strategy does not
        for message in ("Do not use the .random. module", "Generating overly large repr"):
            config.addinivalue_line("filterwarnings", f"ignore:{message}:hypothesis.errors.HypothesisWarning")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a process that stands still whole (it waits while it holds the interpreter's lock), and show where.

    And put the handlers of signals back that a command left which a test ran in its own process. Those of others stay:
    Dagster installs its own once a process, and for good.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + FROZEN_AFTER, exit=True, file=_stderr[0])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in handlers.items():
            left = getattr(signal.getsignal(number), "__module__", None)
            if handler is not None and str(left).startswith("lockstead."):
                signal.signal(number, handler)


def pytest_enter_pdb() -> None:
    """Let who looks into a test take their time."""
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note what begins."""
    _under_way[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note what is over."""
    _under_way.pop(nodeid, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what had begun and was never over."""
    for nodeid, began in _under_way.items():
        terminalreporter.write_line(f"NOT OVER {nodeid}, begun {time.monotonic() - began:.0f} s ago", red=True)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show a failure when it happens: a run that is cut off later has no summary."""
    if report.failed and _terminal:
        _terminal[0].write_line("")
        _terminal[0].write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)", red=True)
        _terminal[0].write_line(report.longreprtext)


@pytest.fixture(scope="session")
def cassandra_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraPlace]:
    """Return a node of Cassandra, with a keyspace for each test."""
    from tests.servers.cassandra.place import CassandraPlace

    place = CassandraPlace(tmp_path_factory.mktemp("cassandra"))
    yield place
    place.stop()
