"""The values that templates of a key or a purpose may name: `{dist}`, `{partition_key}`, `{tags[team]}`.

The arguments of the function come first, as in Prefect; then the fields of its config; then the fields of the run. The
grammar is that of `lockstead.templates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import dagster

from dagster_lockstead import compat

if TYPE_CHECKING:
    from dagster_lockstead.run_view import RunView

PARTITION: Final = "partition_key"

RANGE: Final = "this run has a range of partitions: acquire a lock for each of them in the body, with lock.try_many"


class Values(Mapping[str, Any]):
    """Names and their values. refused: names without a value here, with the reason, which is raised as ValueError."""

    def __init__(self, known: Mapping[str, Any], refused: Mapping[str, str]) -> None:
        self._known = dict(known)
        self._refused = {name: why for name, why in refused.items() if name not in known}

    def __getitem__(self, name: str) -> Any:
        if name in self._refused:
            raise ValueError(self._refused[name])
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._refused

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._refused})

    def __len__(self) -> int:
        return len(self._known) + len(self._refused)


def of_call(context: Any, arguments: Mapping[str, Any]) -> Values:
    """Return the values for a call of a function. context: that of Dagster, or None."""
    inner = getattr(context, "op_execution_context", context)
    source: Any = compat.step_of(context) or (inner if isinstance(inner, compat.DirectContext) else None)
    if source is None:
        return Values({**_fields(arguments.get("config")), **arguments}, {PARTITION: "there is no run here"})
    run = {
        "run_id": _said(lambda: source.run_id),
        "job_name": _said(lambda: source.job_name),
        "tags": _said(lambda: source.run_tags),
        PARTITION: _said(lambda: source.partition_key),
    }
    known = {name: value for name, value in run.items() if value is not None}
    config = arguments.get("config", _said(lambda: source.op_config))
    is_range = bool(_said(lambda: source.partition_key_range))
    refused = {PARTITION: RANGE if is_range else "this run has no partition"}
    return Values({**known, **_fields(config), **arguments}, refused)


def of_run(view: RunView) -> Values:
    """Return the values for the lock of a whole run."""
    known = {name: getattr(view, name) for name in ("run_id", "job_name", "tags", "run_config", PARTITION)}
    refused = {PARTITION: "this run has no single partition"}
    return Values({name: value for name, value in known.items() if value is not None}, refused)


def _said(ask: Callable[[], Any]) -> Any:
    """Return the result of a call of Dagster; None if it raises, which it does with several classes."""
    with suppress(Exception):
        return ask()
    return None


def _fields(config: Any) -> dict[str, Any]:
    if isinstance(config, dagster.Config):
        return {name: getattr(config, name) for name, _ in config}
    return {name: value for name, value in config.items() if isinstance(name, str)} if isinstance(config, dict) else {}
