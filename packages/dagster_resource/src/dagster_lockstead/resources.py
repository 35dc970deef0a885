"""Finding the lock resource of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_lockstead.resource import LockResource


def resource_in(resources: Any, name: str) -> LockResource:
    """Return the LockResource of a name. TypeError if the resource is of another type."""
    from dagster_lockstead.resource import LockResource

    found = getattr(resources, name)
    if not isinstance(found, LockResource):
        raise TypeError(f"the resource {name!r} must be a LockResource, and is {type(found).__name__}")
    return found
