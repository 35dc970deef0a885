"""Where each Airflow from 2.10 on keeps the same name, and which abilities it has. Must not know locks.

Nobody else of this package looks at a version or tries an import twice. Names are looked up when they are first asked
for: a DAG file that only makes a group must not pay for triggers, hooks and notifiers.
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
    # what DAG files are made of
    "DAG": ("airflow.sdk", "airflow.models.dag"),
    "BaseOperator": ("airflow.sdk", "airflow.models.baseoperator"),
    "BaseSensorOperator": ("airflow.sdk", "airflow.sensors.base"),
    "MappedOperator": ("airflow.sdk.definitions.mappedoperator", "airflow.models.mappedoperator"),
    "MappedTaskGroup": ("airflow.sdk.definitions.taskgroup", "airflow.utils.task_group"),
    "TaskGroup": ("airflow.sdk", "airflow.utils.task_group"),
    "XComArg": ("airflow.sdk", "airflow.models.xcom_arg"),
    "task": ("airflow.sdk", "airflow.decorators"),
    "_TaskGroupFactory": ("airflow.sdk.definitions.decorators.task_group", "airflow.decorators.task_group"),
    # what runs
    "BaseHook": ("airflow.sdk.bases.hook", "airflow.hooks.base"),
    "BaseNotifier": ("airflow.sdk.bases.notifier", "airflow.notifications.basenotifier"),
    "BaseOperatorLink": ("airflow.sdk", "airflow.models.baseoperatorlink"),
    "BaseTrigger": ("airflow.triggers.base",),
    "TaskSuccessEvent": ("airflow.triggers.base",),
    "TriggerEvent": ("airflow.triggers.base",),
    "_sentinel": ("airflow.models.base",),
    "conf": ("airflow.configuration",),
    # what it ends with; 3.0 has a module of that name without these
    "AirflowException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowFailException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowNotFoundException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowRescheduleException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowSensorTimeout": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowSkipException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "TaskDeferred": ("airflow.sdk.exceptions", "airflow.exceptions"),
}
"""Each name and the modules that may have it, the newest first."""

HEALTH_LIMIT: Final = 2.0
"""Seconds for which the API server may be silent when it is asked how Airflow is."""


def __getattr__(name: str) -> Any:
    """Find a name where this Airflow keeps it; ImportError, naming the places, if it is at none."""
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
    """Return whether there is a module, so that an error *within* it is not taken for its absence."""
    try:
        return module in sys.modules or find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@cache
def provider_keys() -> frozenset[str]:
    """Return the keys that this Airflow takes up from a provider, as its own schema names them."""
    import json
    from importlib.resources import files

    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    return frozenset(schema["properties"])


def comms_mutex() -> AbstractContextManager[object] | None:
    """Return what keeps exchanges of this task with its supervisor whole, or None where there is no such channel.

    Ask in a running task: the channel is made when it starts. An exception that is raised between a request and its
    answer gives the answer to the next one who asks, so who interrupts a task holds this meanwhile.
    """
    if not _exists("airflow.sdk.execution_time.task_runner"):
        return None
    channel = getattr(import_module("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None)
    mutex = getattr(channel, "_thread_lock", None) or getattr(channel, "lock", None)
    return mutex if hasattr(mutex, "__enter__") else None


def fail_for_good(ti: Any, error: Exception) -> bool:
    """Have this try end failed, without a retry, though its body goes on; the process must be left then, with code 0.

    For any thread. False if Airflow could not be told: then its own judgement of the exit code has to do. May block,
    where the body is within an exchange with the supervisor.
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
    """Return state of another task of a run, for who asks in the triggerer; None where this Airflow does not tell."""
    from asgiref.sync import sync_to_async

    comms = "airflow.sdk.execution_time.comms"
    if _exists(comms) and not hasattr(import_module(comms), "CommsDecoder"):
        return None  # the channel of a 3.0 triggerer is not for who asks from a thread
    state: str | None = await sync_to_async(state_now)(dag_id, run_id, task_id, map_index)
    return state


def state_now(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """Return the state of a task of a run, for who asks in a running task; None if there is no such task."""
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
    """Return whether a triggerer runs, as Airflow's own page of health sees it; None where that cannot be seen.

    May block for `HEALTH_LIMIT` or so, and never raises.
    """
    try:
        return _triggerer_by_page() if _exists("airflow.sdk") else _triggerer_by_table()
    except Exception:  # noqa: BLE001 - it is asked for a hint in a log, for which no task may fail
        return None


def _triggerer_by_page() -> bool | None:
    import json
    from urllib.request import urlopen

    conf = __getattr__("conf")
    site = (conf.get("api", "base_url", fallback="") or "/").rstrip("/")
    usual = f"{site if '://' in site else f'http://localhost:8080{site}'}/execution/"
    # where tasks reach the API server; people may reach it in another way
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
    """Return what stands before every path of Airflow's UI: "" or, behind a proxy that puts it there, "/airflow"."""
    conf = __getattr__("conf")
    section = "api" if _exists("airflow.sdk") else "webserver"
    return urlsplit(conf.get(section, "base_url", fallback="") or "").path.rstrip("/")


def execute_words(task: Any) -> dict[str, Any]:
    """Return the words by which `execute` knows that it is run as a task, for who resumes a task by calling it.

    Version 2 warns of, or refuses, an `execute` that is called without; later ones know it by themselves.
    """
    if _exists("airflow.sdk"):
        return {}
    return {f"{type(task).__name__}__sentinel": __getattr__("_sentinel")}


def runs_inline() -> bool:
    """Return whether this task runs in the process that tests its DAG (`dag.test()`), and its triggers with it.

    There the tasks run one after the other: a trigger that waits for a later task would wait forever.
    """
    if _exists("airflow.sdk.execution_time.supervisor"):
        runner = import_module("airflow.sdk.execution_time.task_runner")
        channel = getattr(runner, "SUPERVISOR_COMMS", None)
        return type(channel).__name__ == "InProcessSupervisorComms" or _is_called_by("airflow.models.dag", "_run_task")
    return _is_called_by("airflow.models.dag", "_run_task")


def _is_called_by(module: str, function: str) -> bool:
    """Return whether a function is below us on the stack; version 2 tells a task no other way how it is run."""
    frame = sys._getframe(1)
    above: FrameType | None = frame
    while above is not None:
        if above.f_code.co_name == function and above.f_globals.get("__name__") == module:
            return True
        above = above.f_back
    return False
