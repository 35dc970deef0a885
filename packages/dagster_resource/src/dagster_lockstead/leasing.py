"""What a leased executor is: any executor of Dagster's, whose runs hold one lease for all of their steps.

Config, requirements and description are the inner one's. What a run does with its lease is `run_lease`'s. The resource
is built in the run worker, from the job's definitions and the run's config: no step hands anything to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import dagster

from dagster_lockstead import compat, names
from dagster_lockstead.errors import InvalidLockConfig
from dagster_lockstead.resource import LockResource
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
) -> dagster.ExecutorDefinition:
    """Return an executor whose runs hold one lease for all of their steps, in whatever process these run.

    A run that waits for the lock is nothing but its run worker. When the lease is lost the steps are ended and the run
    fails; nothing is tried again without the lock. It does not apply to `execute_in_process` and `materialize`, which
    put an executor of Dagster's own in its place. TypeError or ValueError, with one line, for what cannot be.
    """
    if not isinstance(executor_def, dagster.ExecutorDefinition):
        raise TypeError(
            "leased() wants an executor's definition, as in leased(multiprocess_executor, key='apt'), "
            f"not {type(executor_def).__name__}"
        )
    spec = LockSpec(key=key, resource=resource, ttl=ttl, timeout=timeout, purpose=purpose, on_unclean=on_unclean)

    def create(context: dagster.InitExecutorContext) -> LeasedExecutor:
        inner = executor_def.executor_creation_fn
        if inner is None:
            raise InvalidLockConfig(f"leased() cannot make the executor {executor_def.name!r}: it does not say how")
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
    """Runs the steps of a run by another executor, under one lease. is_apart: they run in processes of their own."""

    def __init__(self, inner: dagster.Executor, spec: LockSpec, *, is_apart: bool) -> None:
        self._inner = inner
        self._spec = spec
        self._is_apart = is_apart

    @property
    def retries(self) -> Any:
        """Whether steps are tried again, as the inner one has it."""
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        """How steps wait for one another, as the inner one has it."""
        return self._inner.step_dependency_config

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dagster.DagsterEvent]:
        """Run the steps under the lease; the events are the inner one's, and those of the lock."""
        # only now: who declares a job imports nothing of what runs it
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
    """Raise InvalidLockConfig, with one line, if an op names the same key by another resource: another lock."""
    from dagster_lockstead.decorator import SPEC

    for op in plan_context.job.get_definition().all_node_defs:
        function = getattr(getattr(op, "compute_fn", None), "decorated_fn", None)
        its: LockSpec | None = getattr(function, SPEC, None)
        # a template of an op may name what the run does not know: it is compared where it says the same
        if its is None or its.key not in (spec.key, lock.key) or its.resource == spec.resource:
            continue
        theirs = _built(plan_context, its.resource, stack).lock(lock.key)
        if store_of(theirs) != store_of(lock):
            raise InvalidLockConfig(
                f"the run holds {lock.key!r} of the resource {spec.resource!r}, and its op {op.name!r} asks for "
                f"{lock.key!r} of {its.resource!r}, another store: name one resource in both"
            )


def _built(plan_context: Any, name: str, stack: ExitStack) -> LockResource:
    """Build the lock's resource and what it needs, and none of the others; the stack tears it down."""
    job = plan_context.job.get_definition()
    # a job has of the definitions' resources only those that its ops want, and these need not want the lock
    defined = compat.defined_resources(plan_context)
    if name not in defined:
        raise InvalidLockConfig(
            f"leased() wants the resource {name!r}, and the job {job.name!r} has none of that name: "
            f"say resources={{{name!r}: LockResource(...)}} in the definitions"
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
    resource = getattr(built, name)
    if not isinstance(resource, LockResource):
        raise InvalidLockConfig(
            f"leased() wants a LockResource as the resource {name!r}, not {type(resource).__name__}"
        )
    return resource
