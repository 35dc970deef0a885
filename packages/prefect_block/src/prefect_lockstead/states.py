"""The states that Prefect shows for a run's lock: waiting, running, scheduled again, or lost.

Must not know stores. A state is proposed and not forced, so Prefect's server can refuse to overwrite Cancelling.
Failures of Prefect's API are logged and never fail a run. States of task runs are sent as events, as in Prefect.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort, Pause
from prefect.states import Failed, Running, Scheduled

import lockstead
from prefect_lockstead.logs import logger

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State, TaskRun

AWAITING: Final = "AwaitingLock"
"""The name of the state of a run that waits for a lock."""

LOST: Final = "LeaseLost"
"""The name of the state Failed of a run whose lease was lost."""

ANSWER: Final = 5.0
"""Seconds for each request to Prefect's API."""

LOOK_EVERY: Final = 5.0
"""Seconds between two checks whether a waiting or paused run was stopped."""

_HOOKS: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Run:
    """The innermost run of this context: a flow run, or a task run with the id of its flow run, if it has one."""

    flow_run_id: UUID | None
    task_run: TaskRun | None = None


def here() -> Run | None:
    """Return the run that this context is in; None outside of every run."""
    of_flow, of_task = FlowRunContext.get(), TaskRunContext.get()
    flow_run = None if of_flow is None else of_flow.flow_run
    if of_task is not None and (flow_run is None or of_task.task_run.flow_run_id == flow_run.id):
        return Run(of_task.task_run.flow_run_id, of_task.task_run)
    return None if flow_run is None else Run(flow_run.id)


def show_waiting(client: SyncPrefectClient, message: str) -> None:
    """Show that the run waits for a lock. message: names the holder."""
    _show(client, Running(name=AWAITING, message=message))


def show_working(client: SyncPrefectClient) -> None:
    """Show that the run works."""
    _show(client, Running())


# --- stopped runs -----------------------------------------------------------------------------------------------------


class Stopped(Exception):  # noqa: N818 - what happened to the run
    """The run must not go on: it was cancelled, suspended, paused, or is over. state: which of these."""

    def __init__(self, state: State[Any]) -> None:
        super().__init__(state)
        self.state = state


def history(client: SyncPrefectClient) -> list[list[State[Any]]]:
    """Return the states of the flow run of this context, the last one last, and of the one that this process is for."""
    run = here()
    # a flow that a worker started can be suspended, and what it calls is then called again after the resumption
    entry = os.environ.get("PREFECT__FLOW_RUN_ID")
    runs = {None if run is None or run.flow_run_id is None else str(run.flow_run_id), None if run is None else entry}
    return [sorted(_states(client, UUID(one)), key=lambda state: state.timestamp) for one in runs if one is not None]


def _states(client: SyncPrefectClient, run_id: UUID) -> list[State[Any]]:
    """Return the states of a flow run, in no order. The blocking client of 3.1 cannot be asked for them."""
    if hasattr(client, "read_flow_run_states"):
        return list(client.read_flow_run_states(run_id))
    from prefect.client.schemas.objects import State

    answer = client._client.get("/flow_run_states/", params={"flow_run_id": str(run_id)})
    return [State.model_validate(one) for one in answer.json()]


def stop(histories: Iterable[Sequence[State[Any]]], known: Container[UUID]) -> State[Any] | None:
    """Return the state that stopped a run; None if it continues. known: the ids of the states before the wait.

    A run that was suspended does not continue in this process even if it was resumed: another process runs it.
    """
    for states in histories:
        for one in states:
            is_last = one is states[-1]
            if (_ends(one) and (is_last or one.id not in known)) or (is_last and one.is_paused()):
                return one
    return None


def _ends(state: State[Any]) -> bool:
    """Return whether the process of a run must end after this state."""
    is_suspended = state.is_paused() and state.state_details.pause_reschedule
    return bool(state.is_cancelling() or state.is_final() or is_suspended)


def leave(stopped: Stopped, key: str) -> None:
    """Raise Pause or Abort for a run that was stopped while it waited; return if it was paused and has been resumed."""
    state = stopped.state
    said = f"while it waited for {key!r}; the lock was not acquired, or was released"
    if not _ends(state):
        logger().info("the run was paused %s: it waits again when it is resumed", said)
        _sit_out(state)
    elif state.is_paused():
        raise Pause(f"the run was suspended {said}", state=state)
    else:
        verb = "cancelled" if _is_cancelled(state) else f"ended as {state.name}"
        raise Abort(f"the run was {verb} {said}")


def _sit_out(paused: State[Any]) -> None:
    """Wait until a run is no longer paused; raise Stopped if it was stopped. As in Prefect, without a limit."""
    known: set[UUID] | None = None
    while True:
        with suppress(Exception), client() as opened:
            states = history(opened)
            known = {one.id for of_run in states for one in of_run} if known is None else known
            now = stop(states, known - {paused.id})
            if now is None:
                return
            if _ends(now):
                raise Stopped(now)
        time.sleep(LOOK_EVERY)


def check_can_come_back() -> None:
    """Raise ValueError unless this run can leave its process and be started again without doing anything twice."""
    run, of_flow = here(), FlowRunContext.get()
    if run is None or run.task_run is not None or of_flow is None or of_flow.flow_run is None:
        raise ValueError(f"{_REFUSED}: this is not the entry of a flow run; use waiting='in_process'")
    if of_flow.flow_run.parent_task_run_id is not None:
        raise ValueError(f"{_REFUSED}: the run has a parent, which waits for it; use waiting='in_process'")
    if of_flow.flow_run.deployment_id is None:
        raise ValueError(f"{_REFUSED}: nothing would start this run again; use waiting='in_process' or deploy the flow")
    if of_flow.task_run_dynamic_keys:
        raise ValueError(f"{_REFUSED}: tasks ran already and would run again; put the lock on the flow itself")


_REFUSED: Final = "waiting='reschedule' needs a run of a deployment"


def waiting_since() -> datetime | None:
    """Return when this run began to wait in an earlier process; None if it did not, or if that is unknown."""
    run = here()
    if run is None or run.flow_run_id is None:
        return None
    states: list[State[Any]] = []
    with tolerant(), client() as opened:
        states = sorted(_states(opened, run.flow_run_id), key=lambda one: one.timestamp, reverse=True)
    since: datetime | None = None
    for state in states:
        if state.name == AWAITING:
            since = state.timestamp
        elif state.is_final() or state.name == "AwaitingRetry":
            break
    return since


def coming_back(message: str, after: float) -> Pause:
    """Schedule the run to start again after this many seconds; return the Pause to raise.

    The worker's slot is free as soon as the process has ended. RuntimeError if Prefect refuses the state.
    """
    run, of_flow = here(), FlowRunContext.get()
    if run is None or run.flow_run_id is None or of_flow is None or of_flow.flow_run is None:
        raise RuntimeError("there is no flow run to reschedule")
    at = datetime.now(UTC) + timedelta(seconds=after)
    state: State[Any] = Scheduled(name=AWAITING, message=message, scheduled_time=at)
    with client() as opened:
        now = opened.read_flow_run(run.flow_run_id)
        if now.state is not None and (_ends(now.state) or now.state.is_paused()):
            return Pause(f"the run does not continue: {now.state.message or now.state.name}", state=now.state)
        _spare_its_retries(opened, now)
        answer = opened.set_flow_run_state(run.flow_run_id, state)
    if answer.state is None or answer.state.name != AWAITING:
        raise RuntimeError(f"the run cannot be rescheduled: Prefect answered {answer.status} {answer.details!r}")
    of_flow.flow_run.state = state
    return Pause(message, state=state)


# --- the loss ---------------------------------------------------------------------------------------------------------


def name_state_lost() -> None:
    """Arrange that this run, if it ends Failed by a LeaseLost, ends with the name LeaseLost.

    A hook of the flow or task does it, before those of the user, who thus see the name; it acts when no retry is left.
    """
    run = here()
    if run is None:
        return
    of_task, of_flow = TaskRunContext.get(), FlowRunContext.get()
    if run.task_run is not None and of_task is not None:
        _hooked(of_task.task, lockstead_names_a_lost_task_run)
    elif of_flow is not None and of_flow.flow is not None:
        _hooked(of_flow.flow, lockstead_names_a_lost_flow_run)


def lockstead_names_a_lost_flow_run(_flow: object, flow_run: FlowRun, state: State[Any]) -> None:
    """Name the state of a flow run LeaseLost, here and in Prefect, if that is what it failed by."""
    if not _is_of_a_loss(state):
        return
    state.name = LOST
    with tolerant(), client() as opened:
        now = opened.read_flow_run(flow_run.id).state
        if now is not None and now.is_failed():
            named: State[Any] = Failed(name=LOST, message=state.message, data=state.data)
            opened.set_flow_run_state(flow_run.id, named, force=True)


def lockstead_names_a_lost_task_run(_task: object, task_run: TaskRun, state: State[Any]) -> None:
    """Name the state of a task run LeaseLost, here and in Prefect, if that is what it failed by."""
    if not _is_of_a_loss(state):
        return
    state.name = LOST
    task_run.state_name = LOST
    with tolerant():
        _tell(task_run, Failed(name=LOST, message=state.message, data=state.data))


def _hooked(runnable: Any, hook: Any) -> None:
    with _HOOKS:
        if hook not in runnable.on_failure_hooks:
            # a new list: another thread may be going through the old one
            runnable.on_failure_hooks = [hook, *runnable.on_failure_hooks]


def _is_of_a_loss(state: State[Any]) -> bool:
    return state.is_failed() and isinstance(getattr(state.data, "result", state.data), lockstead.LeaseLost)


# --- setting states ---------------------------------------------------------------------------------------------------


def _show(client: SyncPrefectClient, state: State[Any]) -> None:
    run = here()
    if run is not None and run.task_run is not None:
        _tell(run.task_run, state)
        return
    now = None if run is None or run.flow_run_id is None else client.read_flow_run(run.flow_run_id)
    if now is not None and now.state is not None and now.state.is_running():
        _spare_its_retries(client, now)
        client.set_flow_run_state(now.id, state)


def _spare_its_retries(client: SyncPrefectClient, run: FlowRun) -> None:
    """Let the next state Running not count as a retry of the run."""
    policy = run.empirical_policy
    # a run that is said to retry in its process is started by no worker (from 3.2 on)
    changed = {"resuming": True} | ({"retry_type": None} if hasattr(policy, "retry_type") else {})
    client.update_flow_run(run.id, flow_version=run.flow_version, empirical_policy=policy.model_copy(update=changed))


def _tell(task_run: TaskRun, state: State[Any]) -> None:
    from prefect.utilities.engine import emit_task_run_state_change_event

    before = task_run.state
    if before is not None and state.timestamp <= before.timestamp:
        state.timestamp = before.timestamp + timedelta(microseconds=1)
    state.state_details.task_run_id = task_run.id
    state.state_details.flow_run_id = task_run.flow_run_id
    emit_task_run_state_change_event(task_run=task_run, initial_state=before, validated_state=state)


def _is_cancelled(state: State[Any]) -> bool:
    return bool(state.is_cancelling() or state.is_cancelled())


@contextmanager
def client() -> Iterator[SyncPrefectClient]:
    """Return a client of Prefect's API that is closed after the block."""
    with get_client(sync_client=True, httpx_settings={"timeout": ANSWER}) as opened:
        yield opened


@contextmanager
def tolerant() -> Iterator[None]:
    """Log a failure of the block instead of raising it: the section continues without Prefect's display."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a failure of Prefect must not end the section
        logger().warning("the run's state does not show its lock: %s: %s", type(error).__name__, error)
