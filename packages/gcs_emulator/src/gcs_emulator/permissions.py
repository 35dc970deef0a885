"""The permissions that each operation needs, and the error for a missing one.

No I/O. The server does not identify callers, so a permission is denied to all. Source: "IAM permissions for JSON
methods" in the service's documentation; the texts of errors are those of the service.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gcs_emulator.errors import ApiError

OBJECTS = "storage.objects."
CREATE, GET, UPDATE, DELETE, LIST = (OBJECTS + verb for verb in ("create", "get", "update", "delete", "list"))

NEEDS: Mapping[str, tuple[str, ...]] = {
    "insert": (CREATE,),
    "upload_start": (CREATE,),
    "upload_part": (CREATE,),
    "get": (GET,),
    "media": (GET,),
    "read": (GET,),
    "list": (LIST,),
    "patch": (GET, UPDATE),
    "update": (GET, UPDATE),
    "delete": (DELETE,),
    "copy": (GET, CREATE),
    "rewrite": (GET, CREATE),
    "compose": (GET, CREATE),
    "bucket_get": ("storage.buckets.get",),
    "bucket_patch": ("storage.buckets.update",),
    "bucket_delete": ("storage.buckets.delete",),
}
OVERWRITING = frozenset({"insert", "upload_part", "copy", "rewrite", "compose"})


def admit(kind: str, denied: Collection[str], *, overwrites: bool) -> None:
    """Check the permissions of an operation; raises ApiError 403. overwrites: whether the object exists."""
    needed = NEEDS.get(kind, ())
    if overwrites and kind in OVERWRITING:
        needed = (*needed, DELETE)
    for permission in needed:
        if permission in denied:
            raise _denied(permission)


def hidden(kind: str, denied: Collection[str], error: ApiError) -> ApiError:
    """Return the error to show: a caller that may not list gets 403, so that it cannot tell that an object is missing.

    Source: googleapis/google-api-php-client, issue 1791.
    """
    is_missing = error.status == 404 and error.message.startswith("No such object")
    return _denied(NEEDS[kind][-1]) if is_missing and LIST in denied and kind in NEEDS else error


def _denied(permission: str) -> ApiError:
    thing = "bucket" if permission.startswith("storage.buckets.") else "object"
    return ApiError(
        403,
        f"The caller does not have {permission} access to the Google Cloud Storage {thing}. "
        f"Permission '{permission}' denied on resource (or it may not exist).",
    )
