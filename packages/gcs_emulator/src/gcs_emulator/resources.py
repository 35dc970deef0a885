"""Encoding and decoding of objects and buckets as JSON resources.

No I/O. Defines which fields a caller may set, and the JSON of a resource.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias
from urllib.parse import quote

from gcs_emulator.clock import rfc3339
from gcs_emulator.errors import ApiError
from gcs_emulator.objects import (
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    Bucket,
    Draft,
    StoredObject,
    draft_of,
)

Resource: TypeAlias = dict[str, object]

SETTABLE = frozenset(
    {
        "cacheControl",
        "contentDisposition",
        "contentEncoding",
        "contentLanguage",
        "contentType",
        "customTime",
        "eventBasedHold",
        "storageClass",
        "temporaryHold",
    }
)
BUCKET_READ_ONLY = frozenset({"kind", "id", "selfLink", "name", "timeCreated", "updated", "metageneration", "etag"})


def object_resource(stored: StoredObject, base: str) -> Resource:
    """Return the JSON API's resource of an object; base is the URL of the server without a trailing slash."""
    draft, generation = stored.draft, str(stored.generation)
    link = f"{base}/storage/v1/b/{stored.bucket}/o/{quote(stored.name, safe='')}"
    resource: Resource = {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{generation}",
        "selfLink": link,
        "mediaLink": f"{base}/download/storage/v1/b/{stored.bucket}/o/{quote(stored.name, safe='')}"
        f"?generation={generation}&alt=media",
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": generation,
        "metageneration": str(stored.metageneration),
        "storageClass": "STANDARD",
        "size": str(len(draft.content)),
        "crc32c": draft.crc32c,
        "etag": etag(stored),
        "timeCreated": rfc3339(stored.created_at),
        "updated": rfc3339(stored.updated_at),
        "timeStorageClassUpdated": rfc3339(stored.created_at),
        "timeFinalized": rfc3339(stored.created_at),
        **draft.fields,
    }
    if draft.md5 is not None:
        resource["md5Hash"] = draft.md5
    if draft.components is not None:
        resource["componentCount"] = draft.components
    if draft.metadata:
        resource["metadata"] = dict(draft.metadata)
    return resource


def bucket_resource(bucket: Bucket, base: str) -> Resource:
    """Return the JSON API's resource of a bucket, with the service's defaults (soft delete for 7 days)."""
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{base}/storage/v1/b/{bucket.name}",
        "projectNumber": "0",
        "name": bucket.name,
        "timeCreated": rfc3339(bucket.created_at),
        "updated": rfc3339(bucket.updated_at),
        "metageneration": str(bucket.metageneration),
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "etag": base64.b64encode(b"bucket/%d" % bucket.metageneration).decode(),
        "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": rfc3339(bucket.created_at)},
        **bucket.fields,
    }


def bucket_fields(resource: Mapping[str, object]) -> Resource:
    """Return the fields of a bucket that a caller may set."""
    return {key: value for key, value in resource.items() if key not in BUCKET_READ_ONLY}


def etag(stored: StoredObject) -> str:
    """Return the object's entity tag for the JSON API; it differs after every change."""
    return base64.b64encode(b"%d/%d" % (stored.generation, stored.metageneration)).decode()


def new_draft(content: bytes, resource: Mapping[str, object]) -> Draft:
    """Return a draft of uploaded content and its resource.

    Raises ApiError 400 if a checksum in the resource does not match the content, or its metadata are invalid.
    """
    fields = {key: value for key, value in resource.items() if key in SETTABLE and value is not None}
    draft = draft_of(content, fields, merged_metadata({}, resource.get("metadata")))
    for key, name, actual in (("md5Hash", "MD5", draft.md5), ("crc32c", "CRC32C", draft.crc32c)):
        given = resource.get(key)
        if given is not None and given != actual:
            raise ApiError(400, f'Provided {name} hash "{given}" doesn\'t match calculated {name} hash "{actual}".')
    return draft


def patched(draft: Draft, changes: Mapping[str, object]) -> Draft:
    """Return a draft with a patch merged: fields and metadata keys are set, or removed if null."""
    fields = dict(draft.fields)
    for key in SETTABLE & changes.keys():
        fields.pop(key, None)
        if changes[key] is not None:
            fields[key] = changes[key]
    metadata = merged_metadata(draft.metadata, changes["metadata"]) if "metadata" in changes else draft.metadata
    return replace(draft, fields=fields, metadata=metadata)


def replaced(draft: Draft, resource: Mapping[str, object]) -> Draft:
    """Return a draft with all fields and metadata replaced; the content stays."""
    fields = {key: value for key, value in resource.items() if key in SETTABLE and value is not None}
    return replace(draft, fields=fields, metadata=merged_metadata({}, resource.get("metadata")))


def describes(resource: Mapping[str, object]) -> bool:
    """Return whether the body of a copy request has fields or metadata for the new object."""
    return bool((SETTABLE | {"metadata"}) & resource.keys())


def merged_metadata(old: Mapping[str, str], changes: object) -> dict[str, str]:
    """Return custom metadata with changes merged: null removes a key; null instead of an object removes all.

    Numbers become text. Raises ApiError 400 for values that are lists or objects, and above 8 KiB in total.
    """
    if changes is None:
        return {}
    if not isinstance(changes, dict):
        raise ApiError(400, "Invalid value for metadata: it is not an object.")
    merged = dict(old)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, str):
            merged[key] = value
        elif isinstance(value, int | float):
            # clients that do not convert values to text rely on the service to do so
            # (googleapis/google-cloud-python issue 9729; Google's client for Ruby does not to this day)
            merged[key] = json.dumps(value)
        else:
            raise ApiError(400, f"Invalid value for metadata: the value of {key!r} is not a string.")
    if sum(len(key.encode()) + len(value.encode()) for key, value in merged.items()) > METADATA_BYTES_MAX:
        raise ApiError(400, "The metadata of the object exceeds 8 KiB.")
    return merged


def checked_name(name: object) -> str:
    """Return a valid object name; raises ApiError 400 for an invalid one."""
    if not isinstance(name, str) or not name:
        raise ApiError(400, "Required parameter: name", "required")
    if name in {".", ".."} or "\r" in name or "\n" in name or len(name.encode()) > NAME_BYTES_MAX:
        raise ApiError(400, f"Invalid object name: {name[:80]!r}")
    return name
