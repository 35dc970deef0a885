"""Which line of code is named as the one that acquired a lock, and what is repaired in a forked child."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from lockstead.runtime import callers, fork


def called_in(module: object, work: Callable[[], Any]) -> Any:
    """Call from a function of a module of that name."""
    made: dict[str, Any] = {"__name__": module, "work": work}
    exec("def call(): return work()", made)
    return made["call"]()


def here() -> FrameType:
    return sys._getframe(1)


@pytest.mark.parametrize(
    "module", ["lockstead.lock", "airflow_lockstead", "dagster_lockstead.x", "prefect_lockstead", "re"]
)
def test_frames_between_caller_and_engine_are_skipped(module: str) -> None:
    frame = called_in(module, callers.caller)
    assert frame is not None
    assert frame.f_code is called_in.__code__


@pytest.mark.parametrize("module", ["lockstead_of_somebody", "airflow.x", "mine", 7, None])
def test_all_others_are_named(module: object) -> None:
    frame = called_in(module, callers.caller)
    assert frame is not None
    assert frame.f_code.co_name == "call"


def test_frames_of_python_and_lockstead_only_have_no_caller() -> None:
    made: dict[str, Any] = {"__name__": "lockstead.made", "caller": callers.caller, "seen": []}
    exec("def run(): seen.append(caller())", made)
    thread = threading.Thread(target=made["run"])
    thread.start()
    thread.join(60)
    assert made["seen"] == [None]
    assert callers.where(None) is None
    assert callers.backtrace(None) is None


def test_a_caller_is_named_by_file_and_line() -> None:
    frame = here()
    assert callers.where(frame) == f"{__file__}:{frame.f_lineno}"
    for host in ("airflow.models", "anyio", "click.core", "dagster", "prefect.engine"):
        assert callers.where(called_in(host, callers.caller)) is None
    assert callers.where(called_in("mine", callers.caller)) == "<string>:1"


def test_a_backtrace_names_every_caller_the_innermost_first() -> None:
    said = callers.backtrace(called_in("mine", callers.caller))
    assert said is not None
    first, second, third = said.splitlines()[:3]
    assert first == "<string>:1 in call"
    assert second.startswith(f"{__file__}:")
    assert second.endswith(" in called_in")
    assert third.endswith(" in test_a_backtrace_names_every_caller_the_innermost_first")


class Inherited:
    """State that must be repaired in a child, and may fail there."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.was_called = False

    def after_fork(self) -> None:
        self.was_called = True
        if self.error is not None:
            raise self.error


def test_a_forked_child_repairs_all_and_then_reports_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fork, "_INHERITED", weakref.WeakSet[Any]())
    fork._before()
    fork._in_child()
    several = [Inherited(ValueError("odd")), Inherited(), Inherited()]
    for one in several:
        fork.watch(one)
    fork._before()
    with pytest.raises(ValueError, match="odd"):
        fork._in_child()
    assert all(one.was_called for one in several)
    several[0].error = None
    fork._before()
    fork._in_child()
