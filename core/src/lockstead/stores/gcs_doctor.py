"""Decides what an examination of a bucket looks at beyond a store's commands: the way there, settings, rights.

Rights are asked for (testIamPermissions) and then tried, because a condition or a folder's policy may differ from what
holds for the bucket. Nothing is written where it could not be deleted again. Sources: "IAM permissions for JSON
methods" and "Cloud Storage roles" of the service's documentation. Must not know how requests are sent.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Create, Extend, Read, Remove
from lockstead.stores.examination import Finding, Promise, Severity
from lockstead.stores.gcs_access import ENDPOINT
from lockstead.stores.gcs_settings import settings_of
from lockstead.stores.gcs_wire import Place, Request, Response, complaint, request_for
from lockstead.values import Name

BUCKETS_GET: Final = "storage.buckets.get"
CREATE, GET, UPDATE, DELETE, LIST = (
    f"storage.objects.{verb}" for verb in ("create", "get", "update", "delete", "list")
)
NEEDED: Final = {
    CREATE: "to take a lock",
    GET: "to see who holds one",
    UPDATE: "to renew a lease",
    DELETE: "to release a lock, and to take over a dead holder's",
    LIST: "to be told that a lock is free and not just hidden, and to list locks",
}

BEHIND: Final[Mapping[Promise, str]] = {
    Promise.CREATE_PRESENT: "ifGenerationMatch=0 of an insert",
    Promise.CREATE_RACE: "ifGenerationMatch=0 of an insert",
    Promise.EXTEND_KEEPS: "the merge of metadata by a PATCH",
    Promise.EXTEND_REVISION_MOVES: "the counting of metageneration",
    Promise.EXTEND_UPDATED_MOVES: "the `updated` of an object",
    Promise.EXTEND_INCARNATION: "ifGenerationMatch of a PATCH",
    Promise.EXTEND_REVISION: "ifMetagenerationMatch of a PATCH",
    Promise.EXTEND_RACE: "ifMetagenerationMatch of a PATCH",
    Promise.REPLACE_INCARNATION: "ifGenerationMatch of an insert",
    Promise.REPLACE_REVISION: "ifMetagenerationMatch of an insert",
    Promise.REMOVE_INCARNATION: "ifGenerationMatch of a DELETE",
    Promise.REMOVE_REVISION: "ifMetagenerationMatch of a DELETE",
    Promise.FRESH_INCARNATION: "a generation of its own for every object",
    Promise.STALE_EXTEND: "ifGenerationMatch of a PATCH",
    Promise.STALE_REPLACE: "ifGenerationMatch of an insert",
    Promise.STALE_REMOVE: "ifGenerationMatch of a DELETE",
    Promise.TOKEN: "the metageneration of a companion",
}

PAUSE: Final = 1.1
"""Seconds before a request that came too early for its object is sent again."""

ATTEMPTS: Final = 4

KEPT: Final = "kept"
NULL: Final = "null"
"""What else a trial may show, besides permissions."""

_PERMISSION: Final = re.compile(r"storage\.[a-zA-Z]+\.[a-zA-Z]+")
_NULL: Final = b'{"metadata":{"gone":null}}'


@dataclass(frozen=True, slots=True)
class Way:
    """How the bucket is reached: its place, the endpoint, who we are (empty: unknown), and what sends a request."""

    place: Place
    endpoint: str
    account: str
    send: Callable[[Request], Response]

    def patiently(self, request: Request) -> Response:
        """Send, and send again what was refused for its pace; OutcomeUnknown after the last attempt."""
        response = self.send(request)
        for _ in range(ATTEMPTS - 1):
            if response.status != 429 and response.status < 500:
                return response
            time.sleep(PAUSE)
            response = self.send(request)
        if response.status == 429 or response.status >= 500:
            said = complaint(response)[0]
            raise OutcomeUnknown(f"{request.what} was answered with {response.status} {ATTEMPTS} times: {said}")
        return response


def examination(way: Way, scratch: Callable[[str], Name]) -> Iterator[Finding]:
    """Yield what is found of the way, the bucket and the rights. Raises what the requests raise."""
    yield from _endpoint(way)
    bucket = f"/storage/v1/b/{way.place.bucket}"
    shown = way.patiently(Request("a look at the bucket", "GET", f"{bucket}?prettyPrint=false"))
    findings = list(_bucket(shown, way))
    yield from findings
    if any(finding.stops for finding in findings):
        return
    name = scratch("rights")
    listing = urlencode({"prefix": way.place.object_name(name), "prettyPrint": "false"})
    listed = way.patiently(Request("List", "GET", f"{bucket}/o?{listing}"))
    if listed.status == 404:
        yield _no_bucket(way.place, listed)
        return
    granted = _granted(way, bucket)
    is_kept = any(finding.severity is Severity.FAILURE for finding in findings)
    found = _judged(LIST, listed)
    tried = dict([found, *_tried(way, name, granted, can_list=found[1].is_allowed, is_kept=is_kept)])
    for permission, purpose in NEEDED.items():
        yield _right(permission, purpose, granted, tried, way)
    yield from _others(tried)
    if is_kept or KEPT in tried or not all(_is_there(permission, granted, tried) for permission in NEEDED):
        yield Finding(
            Severity.FAILURE,
            "rights.enough",
            "nothing further was tried: what is written could not be deleted again, or nothing be written at all",
            "mend the failures above and ask again",
            stops=True,
        )


def _endpoint(way: Way) -> Iterator[Finding]:
    host, ours = urlsplit(way.endpoint).hostname or "an address that is none", urlsplit(ENDPOINT).hostname
    if way.endpoint == ENDPOINT:
        yield Finding(Severity.OK, "endpoint", f"requests go to {host}")
    else:
        text = f"requests go to {host}, not to {ours}: an emulator, or a private endpoint"
        yield Finding(Severity.NOTE, "endpoint", text, "unset STORAGE_EMULATOR_HOST if the service itself is meant")
    if way.account:
        yield Finding(Severity.OK, "credentials", f"asked as {way.account}")


# --- the bucket --------------------------------------------------------------------------------------------------


def _bucket(shown: Response, way: Way) -> Iterator[Finding]:
    place, told = way.place, _told(shown)
    match shown.status:
        case 200:
            resource = _json(shown)
            if resource.get("kind") == "storage#bucket":
                yield from settings_of(resource, place.bucket, place.root)
                return
            yield _no_storage("the answer is no bucket's")
        case 401:
            yield Finding(
                Severity.FAILURE,
                "credentials",
                f"the credentials are not accepted{told}",
                "set up application default credentials: gcloud auth application-default login",
                stops=True,
            )
        case 403:
            yield Finding(
                Severity.NOTE,
                f"permission.{BUCKETS_GET}",
                f"the settings of gs://{place.bucket} cannot be looked at{told}",
                "look by hand for retention, holds, soft delete, versioning and lifecycle rules, or: "
                + _grant(way, "roles/storage.legacyBucketReader"),
            )
        case 404:
            yield _no_bucket(place, shown)
        case status:
            yield _no_storage(f"it answers a request for a bucket with {status}{told}")


def _no_bucket(place: Place, response: Response) -> Finding:
    return Finding(
        Severity.FAILURE,
        "bucket.exists",
        f"there is no bucket gs://{place.bucket}{_told(response)}",
        f"correct the URL, or make it: gcloud storage buckets create gs://{place.bucket}",
        stops=True,
    )


def _told(response: Response) -> str:
    said = complaint(response)[0]
    return f": {said}" if said else ""


def _no_storage(text: str) -> Finding:
    remedy = "correct STORAGE_EMULATOR_HOST, or the endpoint of the client"
    return Finding(Severity.FAILURE, "endpoint", f"this is no Cloud Storage: {text}", remedy, stops=True)


# --- rights ------------------------------------------------------------------------------------------------------


def _granted(way: Way, bucket: str) -> frozenset[str] | None:
    """Ask which permissions we have on the bucket; None where the endpoint cannot say. Needs no permission itself."""
    asked = urlencode([("permissions", permission) for permission in (*NEEDED, BUCKETS_GET)])
    target = f"{bucket}/iam/testPermissions?{asked}&prettyPrint=false"
    response = way.patiently(Request("testIamPermissions", "GET", target))
    body = _json(response) if response.status == 200 else {}
    if body.get("kind") != "storage#testIamPermissionsResponse":
        return None
    return frozenset(str(permission) for permission in body.get("permissions") or ())


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one operation: allowed, or refused with these words."""

    is_allowed: bool
    said: str = ""


def _tried(
    way: Way, name: Name, granted: frozenset[str] | None, *, can_list: bool, is_kept: bool
) -> Iterator[tuple[str, Tried]]:
    """Try each operation on a scratch object, if it could be deleted again; else on one that is not there.

    Who may not list is told that what is not there is forbidden, so that such an answer says nothing of a permission.
    """
    place = way.place
    delete = request_for(Remove(name, "1"), place)
    # no precondition: the object is ours alone, and an emulator may not know any
    delete = replace(delete, target=delete.target.partition("?")[0])
    gone = _judged(DELETE, way.patiently(delete))
    may_delete = gone[1].is_allowed or (not can_list and granted is not None and DELETE in granted)
    if is_kept or not may_delete:
        read = _judged(GET, way.patiently(request_for(Read(name), place)))
        patched = _judged(UPDATE, way.patiently(request_for(Extend(name, {"n": "1"}, None), place)))
        yield from (one for one in (gone, read, patched) if can_list or one[1].is_allowed)
        return
    made = way.patiently(request_for(Create(name, {"n": "1", "gone": "1"}), place))
    yield _judged(CREATE, made)
    shown = _judged(GET, way.patiently(request_for(Read(name), place)))
    null = way.patiently(replace(request_for(Extend(name, {}, None), place), content=_NULL))
    if made.status == 200 or can_list:
        yield shown
        yield _judged(UPDATE, null)
    if made.status == null.status == 200:
        seen = _json(way.patiently(request_for(Read(name), place))).get("metadata") or {}
        yield NULL, Tried("gone" not in seen)
    if made.status == 200:
        yield _judged(DELETE, way.patiently(delete))
    elif can_list:
        yield gone


def _judged(permission: str, response: Response) -> tuple[str, Tried]:
    """Say what an answer speaks of: the permission it names or that the operation needs, or what keeps objects."""
    if response.status not in (401, 403):
        return permission, Tried(is_allowed=True)
    said, reason = complaint(response)
    named = _PERMISSION.search(said)
    if named is None and ("retention" in f"{said} {reason}".lower() or " hold" in said.lower()):
        return KEPT, Tried(is_allowed=False, said=said)
    said = said or f"it was answered with {response.status}"
    return (named[0] if named else permission), Tried(is_allowed=False, said=said)


def _is_there(permission: str, granted: frozenset[str] | None, tried: Mapping[str, Tried]) -> bool | None:
    """Tell whether we have a permission: by trying, else by what was granted; None if neither can tell."""
    if permission in tried:
        return tried[permission].is_allowed
    return None if granted is None else permission in granted


def _right(
    permission: str, purpose: str, granted: frozenset[str] | None, tried: Mapping[str, Tried], way: Way
) -> Finding:
    check = f"permission.{permission}"
    match _is_there(permission, granted, tried):
        case True:
            how = "tried" if permission in tried else "not tried"
            hidden = granted is not None and permission not in granted
            by = ", though not on the whole bucket" if hidden else ""
            return Finding(Severity.OK, check, f"{permission} is granted{by} ({how})")
        case None:
            return Finding(Severity.NOTE, check, f"whether {permission} is granted could not be told")
        case _:
            said = f": {tried[permission].said}" if permission in tried else ""
    return Finding(
        Severity.FAILURE,
        check,
        f"{permission} is missing, {purpose}{said}",
        f"it is in roles/storage.objectUser (Storage Object User): {_grant(way, 'roles/storage.objectUser')}",
    )


def _grant(way: Way, role: str) -> str:
    who = way.account or "ACCOUNT"
    return f"gcloud storage buckets add-iam-policy-binding gs://{way.place.bucket} --member={who} --role={role}"


def _others(tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Yield what the trial of the rights showed besides."""
    if KEPT in tried:
        text = f"objects cannot be deleted: {tried[KEPT].said}"
        remedy = "use a bucket without retention policy and holds: locks are deleted and written anew"
        yield Finding(Severity.FAILURE, "bucket.retention-policy", text, remedy)
    if NULL in tried and tried[NULL].is_allowed:
        yield Finding(Severity.OK, "metadata.null", "a PATCH with null takes a metadata key away")
    elif NULL in tried:
        text = "a PATCH with null leaves the metadata key there; lockstead does without it, others may not"
        yield Finding(Severity.WARNING, "metadata.null", text, "use Cloud Storage itself, or a faithful emulator")


def _json(response: Response) -> dict[str, Any]:
    try:
        body = json.loads(response.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
