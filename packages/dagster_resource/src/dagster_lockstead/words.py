"""How a lock is spoken of to a person, in one line, and which resource a name means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_lockstead.resource import LockResource
    from lockstead import LockInfo


def held_by(key: str, held: LockInfo) -> str:
    """Say who holds a lock, since when and why."""
    since = f" since {held.acquired_at.to_datetime_string()} UTC" if held.acquired_at else ""
    why = f" (purpose: {held.purpose})" if held.purpose else ""
    token = f", token {held.token}" if held.token is not None else ""
    return f"{key!r} is held by {held.owner!r}{since}{why}{token}"


def resource_in(resources: Any, name: str) -> LockResource:
    """Return the resource of locks that stands under a name. TypeError, with one line, if something else does."""
    from dagster_lockstead.resource import LockResource

    found = getattr(resources, name)
    if not isinstance(found, LockResource):
        raise TypeError(f"the resource {name!r} must be a LockResource, and is {type(found).__name__}")
    return found
