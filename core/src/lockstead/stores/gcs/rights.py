"""Diagnosis of an account's permissions in a bucket: queried (testIamPermissions), then tested with an object.

IAM conditions and folder policies may differ from the bucket's policy, so the test decides. Nothing is written that
cannot be deleted again. Sources: "IAM permissions for JSON methods" and "Cloud Storage roles" in the service's
documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from lockstead.protocol.commands import Create, Extend, Read, Remove
from lockstead.stores.examination import Finding, Severity
from lockstead.stores.gcs.client import RetryingClient
from lockstead.stores.gcs.encoding import Request, error_details, request_for
from lockstead.stores.kept import json_object
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.http import Answer

BUCKETS_GET: Final = "storage.buckets.get"
CREATE, GET, UPDATE, DELETE, LIST = (
    f"storage.objects.{verb}" for verb in ("create", "get", "update", "delete", "list")
)
NEEDED: Final = {
    CREATE: "to take a lock",
    GET: "to see who holds one",
    UPDATE: "to renew a lease",
    DELETE: "to release a lock, and to take over a dead holder's",
    LIST: "to distinguish a free lock from a hidden one, and to list locks",
}

KEPT: Final = "kept"
NULL: Final = "null"
"""What a test may show besides permissions: objects cannot be deleted; how a PATCH treats null."""

_PERMISSION: Final = re.compile(r"storage\.[a-zA-Z]+\.[a-zA-Z]+")
_NULL: Final = b'{"metadata":{"gone":null}}'


def rights(client: RetryingClient, name: Name, listed: Answer, *, is_kept: bool) -> Iterator[Finding]:
    """Yield a finding for each permission, tested with a scratch object of this name.

    listed: the response to a listing. is_kept: objects of this bucket are already known to be undeletable.
    """
    granted = _granted(client)
    found = _judged(LIST, listed)
    tried = dict([found, *_tried(client, name, granted, can_list=found[1].is_allowed, is_kept=is_kept)])
    for permission, purpose in NEEDED.items():
        yield _right(permission, purpose, granted, tried, client)
    yield from _others(tried)
    if is_kept or KEPT in tried or not all(_is_there(permission, granted, tried) for permission in NEEDED):
        text = "nothing further was tried: objects cannot be written, or not be deleted again"
        remedy = "fix the failures above and run the command again"
        yield Finding(Severity.FAILURE, "rights.enough", text, remedy, stops=True)


def _granted(client: RetryingClient) -> frozenset[str] | None:
    """Return our permissions on the bucket; None if the endpoint does not support the query. Needs no permission."""
    asked = urlencode([("permissions", permission) for permission in (*NEEDED, BUCKETS_GET)])
    target = f"/storage/v1/b/{client.place.bucket}/iam/testPermissions?{asked}&prettyPrint=false"
    response = client.send_retrying(Request("testIamPermissions", "GET", target))
    body = json_object(response.body) if response.status == 200 else {}
    if body.get("kind") != "storage#testIamPermissionsResponse":
        return None
    return frozenset(str(permission) for permission in body.get("permissions") or ())


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one tested operation: allowed, or refused with this message."""

    is_allowed: bool
    message: str = ""


def _tried(
    client: RetryingClient, name: Name, granted: frozenset[str] | None, *, can_list: bool, is_kept: bool
) -> Iterator[tuple[str, Tried]]:
    """Test each operation on a scratch object if it can be deleted again, otherwise on a missing object.

    For a missing object, an account without permission to list gets "forbidden", which says nothing about the
    permission.
    """
    place = client.place
    delete = request_for(Remove(name, "1"), place)
    # no precondition: no other client uses the object, and an emulator may not support preconditions
    delete = replace(delete, target=delete.target.partition("?")[0])
    gone = _judged(DELETE, client.send_retrying(delete))
    may_delete = gone[1].is_allowed or (not can_list and granted is not None and DELETE in granted)
    if is_kept or not may_delete:
        read = _judged(GET, client.send_retrying(request_for(Read(name), place)))
        patched = _judged(UPDATE, client.send_retrying(request_for(Extend(name, {"n": "1"}, None), place)))
        yield from (one for one in (gone, read, patched) if can_list or one[1].is_allowed)
        return
    made = client.send_retrying(request_for(Create(name, {"n": "1", "gone": "1"}), place))
    yield _judged(CREATE, made)
    shown = _judged(GET, client.send_retrying(request_for(Read(name), place)))
    null = client.send_retrying(replace(request_for(Extend(name, {}, None), place), content=_NULL))
    if made.status == 200 or can_list:
        yield shown
        yield _judged(UPDATE, null)
    if made.status == null.status == 200:
        seen = json_object(client.send_retrying(request_for(Read(name), place)).body).get("metadata") or {}
        yield NULL, Tried("gone" not in seen)
    if made.status == 200:
        yield _judged(DELETE, client.send_retrying(delete))
    elif can_list:
        yield gone


def _judged(permission: str, response: Answer) -> tuple[str, Tried]:
    """Return the permission that a response names (else the one of the operation) or KEPT, with the outcome."""
    if response.status not in (401, 403):
        return permission, Tried(is_allowed=True)
    message, reason = error_details(response)
    named = _PERMISSION.search(message)
    if named is None and ("retention" in f"{message} {reason}".lower() or " hold" in message.lower()):
        return KEPT, Tried(is_allowed=False, message=message)
    message = message or f"it was answered with {response.status}"
    return (named[0] if named else permission), Tried(is_allowed=False, message=message)


def _is_there(permission: str, granted: frozenset[str] | None, tried: Mapping[str, Tried]) -> bool | None:
    """Return whether we have a permission, by the test or else by the query; None if unknown."""
    if permission in tried:
        return tried[permission].is_allowed
    return None if granted is None else permission in granted


def _right(
    permission: str, purpose: str, granted: frozenset[str] | None, tried: Mapping[str, Tried], client: RetryingClient
) -> Finding:
    check = f"permission.{permission}"
    match _is_there(permission, granted, tried):
        case True:
            how = "tried" if permission in tried else "not tried"
            hidden = granted is not None and permission not in granted
            by = ", though not on the whole bucket" if hidden else ""
            return Finding(Severity.OK, check, f"{permission} is granted{by} ({how})")
        case None:
            return Finding(Severity.NOTE, check, f"whether {permission} is granted is unknown")
        case _:
            reason = f": {tried[permission].message}" if permission in tried else ""
    text = f"{permission} is missing, {purpose}{reason}"
    remedy = f"it is in roles/storage.objectUser (Storage Object User): {client.grant('roles/storage.objectUser')}"
    return Finding(Severity.FAILURE, check, text, remedy)


def _others(tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Yield the other findings of the test."""
    if KEPT in tried:
        text = f"objects cannot be deleted: {tried[KEPT].message}"
        remedy = "use a bucket without retention policy and holds: locks are deleted and rewritten"
        yield Finding(Severity.FAILURE, "bucket.retention-policy", text, remedy)
    if NULL in tried and tried[NULL].is_allowed:
        yield Finding(Severity.OK, "metadata.null", "a PATCH with null deletes a metadata key")
    elif NULL in tried:
        text = "a PATCH with null does not delete the metadata key; lockstead does not need that, other programs may"
        yield Finding(Severity.WARNING, "metadata.null", text, "use Cloud Storage itself, or a faithful emulator")
