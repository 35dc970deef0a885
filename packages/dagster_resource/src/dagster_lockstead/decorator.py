"""`@locked`: a lock for a function, below `@op` or `@asset`.

Dagster reads from a function's parameters what it needs: the wrapper has those of the user's function, plus the context
and the lock's resource. In a step the wrapper returns a generator, so that outputs are written under the lease; in a
direct call it returns what the user's function would. Dagster decides by the kind of a function how to read its return
annotation: so the wrapper is a generator function only if the user's function is one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import dagster

from dagster_lockstead import compat
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.resource import LockResource, unmocked
from dagster_lockstead.spec import NOTHING, LockSpec
from lockstead import templates
from lockstead.values import Duration
from lockstead.wrapping.spec import OnUnclean

if TYPE_CHECKING:
    from dagster_lockstead import direct

T = TypeVar("T", bound=Callable[..., Any])

CONTEXTS: Final = ("context", "_context", "context_", "_")
"""Names of the first parameter that Dagster recognizes as the context."""

DECORATED: Final[dict[type, str]] = {
    dagster.OpDefinition: "@op",
    dagster.AssetChecksDefinition: "@asset_check",
    dagster.AssetsDefinition: "@asset",
    dagster.SensorDefinition: "@sensor",
    dagster.ScheduleDefinition: "@schedule",
}
"""The decorators above @locked, by the definition class that each makes; the first match counts."""

SPEC: Final = "__lockstead_spec__"
"""The attribute of a function with the spec of the lock that it holds while it runs."""

ADDED: Final = "__lockstead_context__"
"""The attribute of such a function with the name of the added context parameter; None if none was added."""

KINDS: Final = {
    inspect.Parameter.POSITIONAL_ONLY: 0,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: 1,
    inspect.Parameter.VAR_POSITIONAL: 2,
    inspect.Parameter.KEYWORD_ONLY: 3,
    inspect.Parameter.VAR_KEYWORD: 4,
}


def locked(
    key: str | Callable[[Any], str],
    *,
    resource: str = "lock",
    ttl: Duration | None = None,
    timeout: Duration | None = None,
    purpose: str | None = None,
    expected: Duration | None = None,
    on_unclean: OnUnclean = "warn",
    mode: str | None = None,
    permits: int | None = None,
) -> Callable[[T], T]:
    """Hold a lock while an op or an asset runs and its outputs are written. Put it below `@op` or `@asset`.

    The parameters are those of `LockSpec`; invalid ones raise ValueError or TypeError, with one line, at import time.
    If the lease is lost, the body is interrupted and the step fails, without a retry.
    """
    spec = LockSpec(
        key=key,
        resource=resource,
        ttl=ttl,
        timeout=timeout,
        purpose=purpose,
        expected=expected,
        on_unclean=on_unclean,
        mode=mode,
        permits=permits,
    )

    return _Decorating(spec)


class _Decorating:
    """The decorator that `locked` returns. If Dagster reads its name, `@locked` was applied without a lock's key."""

    def __init__(self, spec: LockSpec) -> None:
        self._spec = spec

    def __call__(self, function: T) -> T:
        made: T = _with_lock(function, self._spec)
        return made

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("__name__", "__signature__"):
            raise TypeError("@locked needs a key, as in @locked('apt')")
        raise AttributeError(name)


def _with_lock(function: Any, spec: LockSpec) -> Any:
    if isinstance(function, FunctionType):
        return _around(function, spec)
    refusal = compat.refusal_of(function)
    if refusal is not None:
        raise TypeError(refusal)
    above = next((name for kind, name in DECORATED.items() if isinstance(function, kind)), None)
    if above is not None:
        raise TypeError(f"put @locked below {above}, directly above the function")
    named = function.__name__ if isinstance(function, type) else type(function).__name__
    raise TypeError(f"@locked is for a function below @op or @asset, not {named}")


def _around(function: FunctionType, spec: LockSpec) -> FunctionType:
    """Return a function of the same kind that holds the lock while it runs, with the signature that Dagster needs."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    has_context = bool(parameters) and parameters[0].name in CONTEXTS
    wants_lock = spec.resource in signature.parameters
    if wants_lock:
        _check_lock(function, spec)
    context_name = parameters[0].name if has_context else "context"
    if not has_context and "context" in signature.parameters:
        raise TypeError(f"the parameter 'context' of {function.__qualname__!r} must come first")

    def called(args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        # imported here: declaring an op must not import the modules that run it
        from dagster_lockstead import direct, driving

        context = args[0] if args else given.pop(context_name)
        rest = args[1:]
        resource = unmocked(given[spec.resource] if wants_lock else given.pop(spec.resource))

        theirs = (context, *rest) if has_context else rest

        @bears_interrupts
        def body() -> Any:
            return function(*theirs, **given)

        arguments: Mapping[str, Any] = NOTHING
        if not spec.is_final:
            ours = (context_name if has_context else None, spec.resource)
            known = templates.arguments_of(signature, theirs, given)
            arguments = {name: value for name, value in known.items() if name not in ours}
        locked_call = direct.LockedCall(context, resource, spec, arguments)
        step = compat.step_of(context)
        if step is None:
            return direct.call(function, body, locked_call)
        return driving.listened(step, _in_step(body, locked_call, step))

    return _published(function, called, signature, context_name if not has_context else None, spec)


def _in_step(body: Callable[[], Any], call: direct.LockedCall, step: Any) -> Generator[Any, Any, None]:
    from dagster_lockstead import driving, section

    with section.entered(call.context, call.resource, call.spec, call.arguments, is_whole=True) as entry:
        yield from driving.events(body, call.context, step, entry)


def _published(
    function: FunctionType,
    called: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    signature: inspect.Signature,
    context: str | None,
    spec: LockSpec,
) -> FunctionType:
    """Return the function that Dagster inspects; its annotations are resolved in the globals of the user's function."""
    if inspect.isgeneratorfunction(function):

        def holding(*args: Any, **given: Any) -> Any:
            return (yield from called(args, given))

    else:

        def holding(*args: Any, **given: Any) -> Any:
            return called(args, given)

    made = FunctionType(holding.__code__, function.__globals__, function.__name__, None, holding.__closure__)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(made, name, getattr(function, name))
    made.__dict__.update(function.__dict__)
    made.__dict__.pop("__wrapped__", None)
    parameters = list(signature.parameters.values())
    annotations = dict(function.__annotations__)
    if context is not None:
        is_only = parameters and parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY
        kind = inspect.Parameter.POSITIONAL_ONLY if is_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.insert(0, inspect.Parameter(context, kind))
    if spec.resource not in signature.parameters:
        parameters.append(inspect.Parameter(spec.resource, inspect.Parameter.KEYWORD_ONLY, annotation=LockResource))
        parameters.sort(key=lambda one: KINDS[one.kind])
        annotations[spec.resource] = LockResource
    made.__annotations__ = annotations
    setattr(made, SPEC, spec)
    setattr(made, ADDED, context)
    # an annotation of None in a signature stays None, but Dagster accepts only the type
    returns = type(None) if signature.return_annotation is None else signature.return_annotation
    made.__signature__ = compat.RunnableSignature(  # type: ignore[attr-defined]
        [one.replace(annotation=type(None)) if one.annotation is None else one for one in parameters],
        return_annotation=returns,
    )
    return made


def _check_lock(function: FunctionType, spec: LockSpec) -> None:
    """Raise TypeError, with one line, if the parameter with the resource's name is not a LockResource."""
    annotation = function.__annotations__.get(spec.resource)
    is_ours = isinstance(annotation, type) and issubclass(annotation, LockResource)
    if not is_ours and not (isinstance(annotation, str) and annotation.rpartition(".")[2] == "LockResource"):
        raise TypeError(
            f"the parameter {spec.resource!r} of {function.__qualname__!r} is not a LockResource: name the resource "
            "differently, as in @locked(..., resource='locks')"
        )
