"""Unit tests of ops and assets with locks: a resource whose locks are in this process.

Only for tests. Within a block of `fake_locks`, calls of ops and assets get the arguments that `@locked` added.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dagster_lockstead import compat
from dagster_lockstead.decorator import ADDED, SPEC
from dagster_lockstead.resource import LockResource


@contextmanager
def fake_locks(**settings: Any) -> Iterator[LockResource]:
    """Return a resource whose locks are in this process, and pass it to every call without one in the block.

    An op or an asset may be called as if it had no lock: `my_asset()`, `my_asset(build_asset_context())`. For
    `materialize` and `execute_in_process` put it into `resources=`. settings: those of `LockResource`, except the
    store. Two blocks share no locks. Not for calls in one thread while another enters or leaves a block.
    """
    made = LockResource(store=f"memory:fake-{secrets.token_hex(8)}", **settings)

    def call(definition: Any, *args: Any, **given: Any) -> Any:
        function = compat.function_of(definition)
        spec = getattr(function, SPEC, None)
        if spec is not None:
            context = getattr(function, ADDED)
            has_context = context in given or (args and isinstance(args[0], compat.DirectContext))
            if context is not None and not has_context:
                # Dagster then makes the context
                args = (None, *args)
            has_own = any(compat.has_resource(one, spec.resource) for one in (*args[:1], *given.values()))
            if spec.resource not in given and not has_own:
                given[spec.resource] = made
        # the original function, not the patch of an outer block: the innermost block counts
        return compat.direct_invocation()(definition, *args, **given)

    with ExitStack() as stack:
        for module in compat.direct_callers():
            stack.enter_context(mock.patch.object(module, "direct_invocation_result", call))
        yield made
