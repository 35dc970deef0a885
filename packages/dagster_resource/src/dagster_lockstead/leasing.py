"""Leased executors: any executor of Dagster, whose runs hold one lease for all of their steps.

Config, requirements and description are those of the inner executor; `run_lease` runs it. The resource is built in the
run worker, from the job's definitions and the run's config, so nothing is passed between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import dagster

from dagster_lockstead import compat, names
from dagster_lockstead.errors import InvalidLockConfig
from dagster_lockstead.resource import LockResource, checked_resource
from dagster_lockstead.spec import LockSpec
from lockstead.wrapping.locks import store_of
from lockstead.wrapping.spec import OnUnclean

if TYPE_CHECKING:
    from dagster_lockstead.run_view import RunView
    from lockstead import Lock
    from lockstead.values import Duration


def leased(
    executor_def: dagster.ExecutorDefinition,
    *,
    key: str | Callable[[RunView], str],
    resource: str = "lock",
    ttl: Duration | None = None,
    timeout: Duration | None = None,
    purpose: str | None = None,
    on_unclean: OnUnclean = "warn",
    mode: str | None = None,
    permits: int | None = None,
) -> dagster.ExecutorDefinition:
    """Return an executor whose runs hold one lease for all of their steps, in whichever processes these run.

    While a run waits for the lock, only its run worker exists. When the lease is lost the steps are ended and the run
    fails; nothing is retried without the lock. It has no effect on `execute_in_process` and `materialize`, which
    replace the executor by Dagster's own. With mode="shared" each step is a reader in its own right. Invalid arguments
    raise TypeError or ValueError, with one line.
    """
    if not isinstance(executor_def, dagster.ExecutorDefinition):
        raise TypeError(
            "leased() needs an executor definition, as in leased(multiprocess_executor, key='apt'), "
            f"not {type(executor_def).__name__}"
        )
    spec = LockSpec(
        key=key,
        resource=resource,
        ttl=ttl,
        timeout=timeout,
        purpose=purpose,
        on_unclean=on_unclean,
        mode=mode,
        permits=permits,
    )

    def create(context: dagster.InitExecutorContext) -> LeasedExecutor:
        inner = executor_def.executor_creation_fn
        if inner is None:
            raise InvalidLockConfig(
                f"leased() cannot create the executor {executor_def.name!r}: it has no executor_creation_fn"
            )
        # an executor without requirements runs the steps where it runs itself
        is_apart = bool(executor_def.get_requirements(context.executor_config))
        return LeasedExecutor(inner(context), spec, is_apart=is_apart)

    return dagster.ExecutorDefinition(
        name=executor_def.name,
        config_schema=executor_def.config_schema,
        requirements=executor_def.get_requirements,
        executor_creation_fn=create,
        description=executor_def.description,
    )


class LeasedExecutor(dagster.Executor):  # type: ignore[misc]
    """Runs the steps of a run by another executor, under one lease. is_apart: they run in separate processes."""

    def __init__(self, inner: dagster.Executor, spec: LockSpec, *, is_apart: bool) -> None:
        self._inner = inner
        self._spec = spec
        self._is_apart = is_apart

    @property
    def retries(self) -> Any:
        """Return the retry mode of the inner executor."""
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        """Return how steps wait for one another, as in the inner executor."""
        return self._inner.step_dependency_config

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dagster.DagsterEvent]:
        """Run the steps under the lease, and yield the inner executor's events."""
        # imported here: declaring a job must not import the modules that run it
        from dagster_lockstead.run_lease import RunLease

        with ExitStack() as stack:
            lock, spec, timeout = self._lock(plan_context, stack)
            _check_ops(plan_context, lock, self._spec, stack)
            run = RunLease(plan_context, lock, spec, timeout, is_apart=self._is_apart)
            yield from run.around(lambda: self._inner.execute(plan_context, execution_plan))

    def _lock(self, plan_context: Any, stack: ExitStack) -> tuple[Lock, LockSpec, float | None]:
        from dagster_lockstead import section, template_values
        from dagster_lockstead.run_view import view

        run = view(plan_context)
        try:
            spec = self._spec.named(run, template_values.of_run(run))
        except (TypeError, ValueError) as error:
            raise InvalidLockConfig(str(error)) from error
        resource = _built(plan_context, spec.resource, stack)
        settings = {**spec.settings, "owner": names.run_owner(plan_context.run_id)}
        try:
            lock, limit = spec.checked(resource.lock(str(spec.key), **settings)), section.limit(resource, spec)
        except (TypeError, ValueError) as error:
            raise InvalidLockConfig(str(error)) from error
        section.refuse_private(resource, is_apart=self._is_apart)
        return lock, spec, limit


def _check_ops(plan_context: Any, lock: Lock, spec: LockSpec, stack: ExitStack) -> None:
    """Raise InvalidLockConfig, with one line, if an op has the same key in the store of another resource."""
    from dagster_lockstead.decorator import SPEC

    for op in plan_context.job.get_definition().all_node_defs:
        function = getattr(getattr(op, "compute_fn", None), "decorated_fn", None)
        its: LockSpec | None = getattr(function, SPEC, None)
        # a template of an op may have values that the run does not know: only the same text is compared
        if its is None or its.key not in (spec.key, lock.key) or its.resource == spec.resource:
            continue
        theirs = _built(plan_context, its.resource, stack).lock(lock.key)
        if store_of(theirs) != store_of(lock):
            raise InvalidLockConfig(
                f"the run holds {lock.key!r} of the resource {spec.resource!r}, and its op {op.name!r} asks for "
                f"{lock.key!r} of {its.resource!r}, another store: use one resource for both"
            )


def _built(plan_context: Any, name: str, stack: ExitStack) -> LockResource:
    """Build the lock's resource and those that it requires, and no others; the stack tears them down."""
    job = plan_context.job.get_definition()
    # a job has only the resources that its ops require, and these need not require the lock
    defined = compat.defined_resources(plan_context)
    if name not in defined:
        raise InvalidLockConfig(
            f"leased() needs the resource {name!r}, which the job {job.name!r} does not have: "
            f"set resources={{{name!r}: LockResource(...)}} in the definitions"
        )
    wanted: dict[str, Any] = {}
    missing = [name]
    while missing:
        one = missing.pop()
        wanted[one] = defined[one]
        missing += [other for other in defined[one].required_resource_keys if other not in wanted]
    config = plan_context.run_config.get("resources") or {}
    built = stack.enter_context(
        dagster.build_resources(
            wanted,
            instance=plan_context.instance,
            resource_config={one: said for one, said in config.items() if one in wanted},
            dagster_run=plan_context.dagster_run,
        )
    )
    try:
        return checked_resource(name, getattr(built, name))
    except TypeError as error:
        raise InvalidLockConfig(str(error)) from error
