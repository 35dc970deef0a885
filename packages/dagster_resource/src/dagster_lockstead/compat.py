"""Compatibility with Dagster: the only module that uses private names of Dagster.

They are checked at import: ImportError, with one line that names the version and what it lacks.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import sys
import threading
from importlib import import_module
from logging import Handler, Logger
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import dagster

from dagster_lockstead import __version__


def _lacks(what: str) -> ImportError:
    return ImportError(
        f"dagster-lockstead knows Dagster 1.11 to 1.13, and this Dagster {dagster.__version__} lacks {what}"
    )


def found(module: str, name: str) -> Any:
    """Return an attribute of a Dagster module; ImportError with one line if it does not exist."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _lacks(f"{module}.{name}") from error


def _taking(function: Any, what: str, *parameters: str) -> Any:
    """Return a function if its parameters begin with these; ImportError otherwise."""
    if list(inspect.signature(function).parameters)[: len(parameters)] != list(parameters):
        raise _lacks(f"{what}({', '.join(parameters)})")
    return function


def _code_within(function: Any, name: str, freevar: str, what: str) -> CodeType:
    """Return the code of the inner function with that name and free variable; ImportError if there is none."""
    inner = inspect.unwrap(function).__code__.co_consts
    for code in inner:
        if isinstance(code, CodeType) and code.co_name == name and code.co_freevars == (freevar,):
            return code
    raise _lacks(what)


def _code_of(module: str, name: str, method: str | None = None) -> CodeType:
    """Return the code object of a Dagster function, or of a method of a class, for comparison with frames."""
    function = found(module, name)
    if method is not None:
        function = getattr(function, method, None) or function
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        raise _lacks(f"{module}.{name}" if method is None else f"{module}.{name}.{method}")
    return code


EventData: Final = found("dagster._core.events", "EngineEventData")

coerced: Final = _taking(
    found("dagster._core.execution.plan.compute_generator", "validate_and_coerce_op_result_to_iterator"),
    "validate_and_coerce_op_result_to_iterator",
    "result",
    "context",
    "output_defs",
)
"""Converts the result of a function to an iterator of its events: (result, context, output_defs)."""

DirectContext: Final[type] = found("dagster._core.execution.context.invocation", "BaseDirectExecutionContext")
"""The class of the context of an op that is called as a function, outside of any run."""

StepContext: Final[type] = found("dagster._core.execution.context.system", "StepExecutionContext")

ConfiguredLater: Final = (
    dagster.ResourceDefinition,
    found("dagster._config.pythonic_config.resource", "PartialResource"),
)
"""Classes that represent a resource that is not configured yet."""

EVENT: Final[str] = found("dagster._core.log_manager", "LOG_RECORD_EVENT_ATTR")
"""The attribute of a log record that has a Dagster event."""

_RAISING: Final = _code_within(
    found("dagster._utils.interrupts", "raise_interrupts_as"),
    "_new_signal_handler",
    "error_cls",
    "the signal handler of dagster._utils.interrupts.raise_interrupts_as",
)

_BODY: Final = _code_of("dagster._core.execution.plan.compute", "execute_core_compute")
"""On the stack while the body of a step runs, but not while an I/O manager handles what the body yielded."""

_STEP: Final = _code_of("dagster._core.execution.plan.execute_step", "core_dagster_event_sequence_for_step")

_IN_A_GRAPH: Final = (
    "@locked is not for a graph, a graph asset or a job: put it below the @op of its ops, or use leased() for one lock "
    "for the whole run"
)

_IN_A_HOOK: Final = (
    "@locked is not for a hook: give it the resource with required_resource_keys={'lock'}, and hold the lock in its "
    "body with context.resources.lock.hold(None, 'apt')"
)
_IN_A_SOURCE: Final = (
    "@locked is not for an observable source asset: hold the lock in its body with lock.hold(context, 'apt')"
)

_DECORATORS: Final = "dagster._core.definitions.decorators."

_READERS: Final = frozenset({"dagster", "dagster_shared", "functools", "inspect"})
"""The packages whose frames are between a Dagster decorator and its read of a signature."""

_NOT_UNDER: Final[dict[CodeType, str]] = {
    _code_of(f"{_DECORATORS}hook_decorator", "_validate_hook_fn_params"): _IN_A_HOOK,
    _code_of(f"{_DECORATORS}source_asset_decorator", "_ObservableSourceAsset", "__call__"): _IN_A_SOURCE,
    _code_of(f"{_DECORATORS}graph_decorator", "_Graph", "__call__"): _IN_A_GRAPH,
    _code_of(f"{_DECORATORS}job_decorator", "_Job", "__call__"): _IN_A_GRAPH,
}
"""Decorators under which a function would not run with its lock: the code that reads its signature, and the advice."""


def refusal_of(definition: object) -> str | None:
    """Return why @locked cannot be used for a kind of definition, and what to do instead; None for other kinds."""
    node = getattr(definition, "node_def", definition)
    if isinstance(node, dagster.GraphDefinition | dagster.JobDefinition):
        return _IN_A_GRAPH
    if isinstance(definition, dagster.HookDefinition):
        return _IN_A_HOOK
    return _IN_A_SOURCE if isinstance(definition, dagster.SourceAsset) else None


class RunnableSignature(inspect.Signature):
    """The signature of a function with a lock. Raises TypeError, with one line, in a decorator without support for it.

    A decorator reads the signature when it is applied, which is the only moment at which this can be detected.
    """

    __slots__ = ()

    @property
    def parameters(self) -> Any:
        """Return the parameters by name; TypeError if an unsupported decorator reads them."""
        frame: FrameType | None = sys._getframe(1)
        # search only Dagster's own frames: the body of a graph, which Dagster calls, may declare an op
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _READERS:
            why = _NOT_UNDER.get(frame.f_code)
            if why is not None:
                raise TypeError(why)
            frame = frame.f_back
        return super().parameters


_IN_CHILD: Final = _taking(
    found("dagster._core.executor.child_process_executor", "_execute_command_in_child_process"),
    "_execute_command_in_child_process",
    "event_queue",
    "command",
)
"""The main function of a process that a run worker started for one step."""

_IN_EXECUTOR: Final[CodeType] = inspect.unwrap(
    found("dagster._core.executor.multiprocess", "MultiprocessExecutor").execute
).__code__

if not {"term_events", "processes"} <= {*_IN_EXECUTOR.co_varnames, *_IN_EXECUTOR.co_cellvars}:
    raise _lacks("term_events and processes in MultiprocessExecutor.execute")

_Done: Final = found("dagster._core.executor.child_process_executor", "ChildProcessDoneEvent")
_StepFailure: Final = found("dagster._core.execution.plan.objects", "StepFailureData")
_UserFailure: Final = found("dagster._core.execution.plan.objects", "UserFailureData")
_error_info: Final = found("dagster._utils.error", "serializable_error_info_from_exc_info")

# as Dagster's own libraries do
found("dagster_shared.libraries", "DagsterLibraryRegistry").register(
    "dagster-lockstead", __version__, is_dagster_package=False
)

interruptible: Final = found("dagster._core.errors", "raise_execution_interrupts")
"""A context manager in which an interrupt of the main thread is raised at once; elsewhere Dagster postpones it."""

_CAPTURED: Final[dict[str, bool]] = found("dagster._utils.interrupts", "_received_interrupt")

if "received" not in _CAPTURED:
    raise _lacks("dagster._utils.interrupts._received_interrupt['received']")
if not issubclass(found("dagster._core.log_manager", "DagsterLogManager"), Logger):
    raise _lacks("the handlers of DagsterLogManager")
for _class, _attribute in (
    (dagster.DagsterEvent, "step_failure_event"),
    (dagster.ConfigurableResource, "_is_cm_resource"),
    (dagster.OpExecutionContext, "get_step_execution_context"),
    (dagster.RepositoryDefinition, "get_top_level_resources"),
    (dagster.DagsterInstance, "report_engine_event"),
):
    if not hasattr(_class, _attribute):
        raise _lacks(f"{_class.__name__}.{_attribute}")


def defined_resources(plan_context: Any) -> dict[str, Any]:
    """Return the resource definitions of a run by name: its code location's, overridden by its job's. Builds none."""
    repository = plan_context.job.get_repository_definition()
    around = {} if repository is None else repository.get_top_level_resources()
    return {**around, **plan_context.job.get_definition().resource_defs}


def interrupt_executor() -> None:
    """Make the executor in the main thread end its steps, as it does when its run is terminated."""
    _CAPTURED["received"] = True


def step_processes(executing: Any) -> list[tuple[Any, Any]]:
    """Return (termination event, process) for each step process of a running executor; empty if it has none."""
    frame = getattr(executing, "gi_frame", None)
    if frame is None or frame.f_code is not _IN_EXECUTOR:
        return []
    events, processes = frame.f_locals.get("term_events", {}), frame.f_locals.get("processes", {})
    found = [(event, processes.get(step)) for step, event in list(events.items())]
    return [(event, process) for event, process in found if process is not None]


def direct_callers() -> list[ModuleType]:
    """Return the modules that call an op or an asset as a function, each through its `direct_invocation_result`."""
    modules = [sys.modules[kind.__module__] for kind in (dagster.OpDefinition, dagster.AssetsDefinition)]
    for module in modules:
        if not hasattr(module, "direct_invocation_result"):
            raise _lacks(f"{module.__name__}.direct_invocation_result")
    return modules


def direct_invocation() -> Any:
    """Return the function that these modules call."""
    return found("dagster._core.definitions.op_invocation", "direct_invocation_result")


def function_of(definition: Any) -> Any:
    """Return the function that an op or an asset was made from; None if there is none."""
    op = definition.op if isinstance(definition, dagster.AssetsDefinition) else definition
    return getattr(getattr(op, "compute_fn", None), "decorated_fn", None)


def has_resource(context: Any, name: str) -> bool:
    """Return whether this is the context of a call outside of any run that has a resource of that name."""
    inner = getattr(context, "op_execution_context", context)
    return isinstance(inner, DirectContext) and name in getattr(inner, "_resource_defs", ())


def accepts_interrupts() -> bool:
    """Return whether Dagster would raise an interrupt of the main thread at this moment."""
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, FunctionType) or handler.__code__ is not _RAISING or not handler.__closure__:
        return False
    error = handler.__closure__[0].cell_contents
    return isinstance(error, type) and issubclass(error, dagster.DagsterExecutionInterruptedError)


def step_of(context: Any) -> Any | None:
    """Return the step context of an op's or asset's context; None for any other context."""
    if isinstance(context, StepContext):
        return context
    # the context of an asset or an asset check wraps that of an op
    inner = getattr(context, "op_execution_context", context)
    if isinstance(inner, DirectContext) or not isinstance(inner, dagster.OpExecutionContext):
        return None
    return inner.get_step_execution_context()


def is_step_process() -> bool:
    """Return whether a run worker started this process for one step; the run then ends with its parent process."""
    target = getattr(multiprocessing.current_process(), "_target", None)
    return multiprocessing.parent_process() is not None and target is _IN_CHILD


def fails_for_good(step: Any, failure: dagster.Failure) -> None:
    """Report to the run worker of this step process that the step failed and must not be retried.

    For a caller that then exits the process at once: it returns when the run worker can read the report.
    """
    said = _UserFailure(label="intentional-failure", description=failure.description, metadata=failure.metadata)
    try:
        raise failure
    except dagster.Failure:
        error = _error_info(sys.exc_info())
    data = _StepFailure(error=error, user_failure_data=said)
    event = dagster.DagsterEvent.step_failure_event(step, data)
    events = multiprocessing.current_process()._args[0]  # type: ignore[attr-defined]
    events.put(event)
    events.put(_Done(pid=os.getpid()))
    events.close()
    events.join_thread()


def is_of_body(frame: FrameType | None) -> bool:
    """Return whether a frame was called by the body of a step, and not by Dagster's code around the body."""
    while frame is not None and frame.f_code is not _STEP:
        if frame.f_code is _BODY:
            return True
        frame = frame.f_back
    return False


_LISTENING: Final = threading.Lock()
"""Protects the list of log handlers: several threads of a step may hold locks."""


def ends_step(event: dagster.DagsterEvent, step_key: str) -> bool:
    """Return whether an event is the last of a step's attempt."""
    is_end = event.is_step_success or event.is_step_failure or event.is_step_up_for_retry
    return bool(is_end) and event.step_key == step_key


def listen(log: Any, handler: Handler) -> None:
    """Add a log handler that gets a step's events before they are written."""
    with _LISTENING:
        log.handlers = [handler, *log.handlers]


def listen_no_more(log: Any, handler: Handler) -> None:
    """Remove a log handler. It replaces the list, since another thread may be iterating over the current one."""
    with _LISTENING:
        log.handlers = [one for one in log.handlers if one is not handler]
