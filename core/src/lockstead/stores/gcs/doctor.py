"""Diagnosis of a bucket beyond the store's commands: endpoint, settings, permissions.

Must not know how requests are sent, nor what a lock is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

from lockstead.stores.examination import Finding, Guarantee, Severity
from lockstead.stores.gcs.access import ENDPOINT, Access
from lockstead.stores.gcs.client import RetryingClient
from lockstead.stores.gcs.encoding import BucketPath, Request, error_details
from lockstead.stores.gcs.rights import BUCKETS_GET, rights
from lockstead.stores.gcs.settings import settings_of
from lockstead.stores.kept import json_object
from lockstead.stores.transport import transport
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.http import Answer

BEHIND: Final[Mapping[Guarantee, str]] = {
    Guarantee.CREATE_PRESENT: "ifGenerationMatch=0 of an insert",
    Guarantee.CREATE_RACE: "ifGenerationMatch=0 of an insert",
    Guarantee.EXTEND_KEEPS: "the merge of metadata by a PATCH",
    Guarantee.EXTEND_REVISION_MOVES: "the counting of metageneration",
    Guarantee.EXTEND_UPDATED_MOVES: "the `updated` of an object",
    Guarantee.EXTEND_INCARNATION: "ifGenerationMatch of a PATCH",
    Guarantee.EXTEND_REVISION: "ifMetagenerationMatch of a PATCH",
    Guarantee.EXTEND_RACE: "ifMetagenerationMatch of a PATCH",
    Guarantee.REPLACE_INCARNATION: "ifGenerationMatch of an insert",
    Guarantee.REPLACE_REVISION: "ifMetagenerationMatch of an insert",
    Guarantee.REMOVE_INCARNATION: "ifGenerationMatch of a DELETE",
    Guarantee.REMOVE_REVISION: "ifMetagenerationMatch of a DELETE",
    Guarantee.FRESH_INCARNATION: "a generation of its own for every object",
    Guarantee.STALE_EXTEND: "ifGenerationMatch of a PATCH",
    Guarantee.STALE_REPLACE: "ifGenerationMatch of an insert",
    Guarantee.STALE_REMOVE: "ifGenerationMatch of a DELETE",
    Guarantee.TOKEN: "the metageneration of a companion",
}


def examination(client: RetryingClient, scratch: Callable[[str], Name]) -> Iterator[Finding]:
    """Yield the findings on endpoint, bucket and permissions. Raises the errors of the requests."""
    yield from _endpoint(client.access)
    bucket = f"/storage/v1/b/{client.place.bucket}"
    shown = client.send_retrying(Request("Get bucket", "GET", f"{bucket}?prettyPrint=false"))
    findings = list(_bucket(shown, client))
    yield from findings
    if any(finding.stops for finding in findings):
        return
    name = scratch("rights")
    listing = urlencode({"prefix": client.place.object_name(name), "prettyPrint": "false"})
    listed = client.send_retrying(Request("List", "GET", f"{bucket}/o?{listing}"))
    if listed.status == 404:
        yield _no_bucket(client.place, listed)
        return
    is_kept = any(finding.severity is Severity.FAILURE for finding in findings)
    yield from rights(client, name, listed, is_kept=is_kept)


def _endpoint(access: Access) -> Iterator[Finding]:
    there, ours = urlsplit(access.endpoint), urlsplit(ENDPOINT).hostname
    host = there.hostname or "an invalid address"
    if access.endpoint == ENDPOINT:
        yield Finding(Severity.OK, "endpoint", f"requests go to {host}")
    elif access.by is not None:
        text = f"{access.by} is set: requests, and every lock with them, go to {access.endpoint} and not to {ours}"
        yield Finding(Severity.NOTE, "endpoint", text, f"unset {access.by} if the service itself is meant")
    else:
        text = f"requests go to {host}, not to {ours}: the endpoint of the client that was given"
        yield Finding(Severity.NOTE, "endpoint", text, "give another client if the service itself is meant")
    is_secure = there.scheme == "https"
    yield transport([host], tls=is_secure, is_verified=is_secure, has_password=access.has_credentials, way="https://")
    if access.has_credentials:
        owner = f" of {access.account}" if access.account else ""
        yield Finding(Severity.OK, "credentials", f"an access token{owner} is sent to {host}")


# --- the bucket --------------------------------------------------------------------------------------------------


def _bucket(shown: Answer, client: RetryingClient) -> Iterator[Finding]:
    place, details = client.place, _details(shown)
    match shown.status:
        case 200:
            resource = json_object(shown.body)
            if resource.get("kind") == "storage#bucket":
                yield from settings_of(resource, place.bucket, place.root)
                return
            yield _no_storage("the answer does not describe a bucket")
        case 401:
            text = f"the credentials are not accepted{details}"
            remedy = "set up application default credentials: gcloud auth application-default login"
            yield Finding(Severity.FAILURE, "credentials", text, remedy, stops=True)
        case 403:
            text = f"the settings of gs://{place.bucket} cannot be read{details}"
            remedy = "check retention, holds, soft delete, versioning and lifecycle rules by hand, or: "
            remedy += client.grant("roles/storage.legacyBucketReader")
            yield Finding(Severity.NOTE, f"permission.{BUCKETS_GET}", text, remedy)
        case 404:
            yield _no_bucket(place, shown)
        case status:
            yield _no_storage(f"it answers a request for a bucket with {status}{details}")


def _no_bucket(place: BucketPath, response: Answer) -> Finding:
    text = f"the bucket gs://{place.bucket} does not exist{_details(response)}"
    remedy = f"correct the URL, or create it: gcloud storage buckets create gs://{place.bucket}"
    return Finding(Severity.FAILURE, "bucket.exists", text, remedy, stops=True)


def _details(response: Answer) -> str:
    message = error_details(response)[0]
    return f": {message}" if message else ""


def _no_storage(text: str) -> Finding:
    remedy = "correct STORAGE_EMULATOR_HOST, or the endpoint of the client"
    return Finding(Severity.FAILURE, "endpoint", f"this is not Cloud Storage: {text}", remedy, stops=True)
