"""Compatibility with Airflow 2.10 and later: where each version has its classes, and what it supports.

Must not know locks. No other module of this package checks a version or tries alternative imports. Names are imported
on first use: a DAG file that only makes a group must not import triggers, hooks and notifiers.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType

_PLACES: Final = {
    # for DAG files
    "DAG": ("airflow.sdk", "airflow.models.dag"),
    "BaseOperator": ("airflow.sdk", "airflow.models.baseoperator"),
    "BaseSensorOperator": ("airflow.sdk", "airflow.sensors.base"),
    "MappedOperator": ("airflow.sdk.definitions.mappedoperator", "airflow.models.mappedoperator"),
    "MappedTaskGroup": ("airflow.sdk.definitions.taskgroup", "airflow.utils.task_group"),
    "TaskGroup": ("airflow.sdk", "airflow.utils.task_group"),
    "XComArg": ("airflow.sdk", "airflow.models.xcom_arg"),
    "task": ("airflow.sdk", "airflow.decorators"),
    "_TaskGroupFactory": ("airflow.sdk.definitions.decorators.task_group", "airflow.decorators.task_group"),
    # for running tasks and triggers
    "BaseHook": ("airflow.sdk.bases.hook", "airflow.hooks.base"),
    "BaseNotifier": ("airflow.sdk.bases.notifier", "airflow.notifications.basenotifier"),
    "BaseOperatorLink": ("airflow.sdk", "airflow.models.baseoperatorlink"),
    "BaseTrigger": ("airflow.triggers.base",),
    "TaskSuccessEvent": ("airflow.triggers.base",),
    "TriggerEvent": ("airflow.triggers.base",),
    "_sentinel": ("airflow.models.base",),
    "conf": ("airflow.configuration",),
    # exceptions; Airflow 3.0 has a module airflow.sdk.exceptions without these
    "AirflowException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowFailException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowNotFoundException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowRescheduleException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowSensorTimeout": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowSkipException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "TaskDeferred": ("airflow.sdk.exceptions", "airflow.exceptions"),
}
"""Each name, and the modules that may define it, the newest first."""

HEALTH_LIMIT: Final = 2.0
"""Timeout in seconds for the API server's health page."""


def __getattr__(name: str) -> Any:
    """Return a name from the module that defines it in this Airflow; ImportError, naming the modules, if none does."""
    if name == "HAS_TASK_SDK":
        found: Any = _exists("airflow.sdk")
    elif name in _PLACES:
        found = _found(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def _found(name: str) -> Any:
    for place in _PLACES[name]:
        if not _exists(place):
            continue
        try:
            return getattr(import_module(place), name)
        except AttributeError:
            continue
    raise ImportError(
        f"this Airflow has no {name} in {' or '.join(_PLACES[name])}; lockstead needs Airflow 2.10 or later"
    )


@cache
def _exists(module: str) -> bool:
    """Return whether a module exists, without importing it: an error *within* it must not look like its absence."""
    try:
        return module in sys.modules or find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def stats() -> Any:
    """Return Airflow's statistics: what has `incr` and `timing` in this process.

    Airflow 3.2 and later has a copy for tasks and one for its own processes, and sets up one of them in each.
    """
    for place in ("airflow.sdk.observability.stats", "airflow.observability.stats"):
        shared = sys.modules.get(place.replace(".observability.", "._shared.observability.metrics."))
        if shared is not None and getattr(shared, "_factory", None) is not None:
            return import_module(place)
    if _exists("airflow.sdk.observability.stats"):
        return import_module("airflow.sdk.observability.stats")
    return import_module("airflow.stats").Stats


@cache
def provider_keys() -> frozenset[str]:
    """Return the keys that this Airflow accepts from a provider, according to its own schema."""
    import json
    from importlib.resources import files

    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    return frozenset(schema["properties"])


def comms_mutex() -> AbstractContextManager[object] | None:
    """Return the mutex of this task's channel to its supervisor; None if there is no such channel.

    Call it in a running task: the channel is made when the task starts. If an exception is raised between a request and
    its reply, the next request gets that reply; so code that interrupts a task must hold this mutex meanwhile.
    """
    if not _exists("airflow.sdk.execution_time.task_runner"):
        return None
    channel = getattr(import_module("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None)
    mutex = getattr(channel, "_thread_lock", None) or getattr(channel, "lock", None)
    return mutex if hasattr(mutex, "__enter__") else None


def fail_for_good(ti: Any, error: Exception) -> bool:
    """Report to Airflow that this try failed without a retry, while its body still runs; then exit with code 0.

    Any thread may call it. Returns False if this cannot be reported: then Airflow decides by the exit code. May block
    while the body is waiting for a reply of the supervisor.
    """
    if not _exists("airflow.sdk.execution_time.task_runner"):
        ti.handle_failure(error=error, test_mode=False, force_fail=True)
        return True
    comms = import_module("airflow.sdk.execution_time.comms")
    said = comms.TaskState(state="failed", end_date=datetime.now(tz=UTC))
    channel = import_module("airflow.sdk.execution_time.task_runner").SUPERVISOR_COMMS
    if hasattr(channel, "send"):
        channel.send(said)
        return True
    mutex = comms_mutex()
    if mutex is None:
        return False
    with mutex:
        channel.send_request(log=logging.getLogger("task"), msg=said)
    return True


async def state_of(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """Return the state of a task of a run, in the triggerer; None if this Airflow cannot provide it."""
    from asgiref.sync import sync_to_async

    comms = "airflow.sdk.execution_time.comms"
    if _exists(comms) and not hasattr(import_module(comms), "CommsDecoder"):
        return None  # the channel of a 3.0 triggerer cannot be used from a thread
    state: str | None = await sync_to_async(state_now)(dag_id, run_id, task_id, map_index)
    return state


def state_now(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """Return the state of a task of a run, in a running task; None if there is no such task or it has no state."""
    if not _exists("airflow.sdk.execution_time.task_runner"):
        found = import_module("airflow.models.taskinstance").TaskInstance.get_task_instance(
            dag_id, run_id, task_id, map_index
        )
        return None if found is None or found.state is None else str(found.state)
    ask = import_module("airflow.sdk.execution_time.task_runner").RuntimeTaskInstance.get_task_states
    said = ask(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id]).get(run_id, {})
    state = said.get(task_id if map_index < 0 else f"{task_id}_{map_index}")
    return None if state is None else str(getattr(state, "value", state))


def triggerer_is_there() -> bool | None:
    """Return whether a triggerer runs, according to Airflow's health page or job table; None if that is unknown.

    May block for about `HEALTH_LIMIT` seconds. Never raises.
    """
    try:
        return _triggerer_by_page() if _exists("airflow.sdk") else _triggerer_by_table()
    except Exception:  # noqa: BLE001 - the result is only a hint in a log, so no task may fail because of it
        return None


def _triggerer_by_page() -> bool | None:
    import json
    from urllib.request import urlopen

    conf = __getattr__("conf")
    site = (conf.get("api", "base_url", fallback="") or "/").rstrip("/")
    usual = f"{site if '://' in site else f'http://localhost:8080{site}'}/execution/"
    # the URL that tasks use for the API server; browsers may use another
    server, found, rest = conf.get("core", "execution_api_server_url", fallback=usual).rpartition("/execution")
    if not found or rest.strip("/") or not server.startswith("http"):
        return None
    with urlopen(f"{server}/api/v2/monitor/health", timeout=HEALTH_LIMIT) as answer:  # noqa: S310 - http
        said = json.load(answer)
    return said["triggerer"]["status"] == "healthy" if said["metadatabase"]["status"] == "healthy" else None


def _triggerer_by_table() -> bool:
    job = import_module("airflow.jobs.job").most_recent_job("TriggererJob")
    return job is not None and bool(job.is_alive())


def site_path() -> str:
    """Return the prefix of all paths of Airflow's UI: "", or for example "/airflow" behind a proxy that adds it."""
    conf = __getattr__("conf")
    section = "api" if _exists("airflow.sdk") else "webserver"
    return urlsplit(conf.get(section, "base_url", fallback="") or "").path.rstrip("/")


def execute_words(task: Any) -> dict[str, Any]:
    """Return the keyword arguments that mark a call of `execute` as made by Airflow, for a task resumed by such a call.

    Airflow 2 warns about or refuses a call of `execute` without them; later versions need none.
    """
    if _exists("airflow.sdk"):
        return {}
    return {f"{type(task).__name__}__sentinel": __getattr__("_sentinel")}


def runs_inline() -> bool:
    """Return whether this task and its triggers run in the process of `dag.test()`.

    There the tasks run one after the other: a trigger that waits for a later task would wait forever.
    """
    if _exists("airflow.sdk.execution_time.supervisor"):
        runner = import_module("airflow.sdk.execution_time.task_runner")
        channel = getattr(runner, "SUPERVISOR_COMMS", None)
        return type(channel).__name__ == "InProcessSupervisorComms" or _is_called_by("airflow.models.dag", "_run_task")
    return _is_called_by("airflow.models.dag", "_run_task")


def _is_called_by(module: str, function: str) -> bool:
    """Return whether a function is among our callers; Airflow 2 has no other way to tell how a task is run."""
    frame = sys._getframe(1)
    above: FrameType | None = frame
    while above is not None:
        if above.f_code.co_name == function and above.f_globals.get("__name__") == module:
            return True
        above = above.f_back
    return False
