"""Which permissions an operation needs, and the refusal for a caller that lacks one.

Pure. The server knows no callers: what is denied is denied to everybody. Source: "IAM permissions for JSON methods" of
the service's documentation; the words of a refusal are those the service uses.
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
    """Return if an operation of this kind is permitted; raises ApiError 403. overwrites: the object is there."""
    needed = NEEDS.get(kind, ())
    if overwrites and kind in OVERWRITING:
        needed = (*needed, DELETE)
    for permission in needed:
        if permission in denied:
            raise _denied(permission)


def hidden(kind: str, denied: Collection[str], error: ApiError) -> ApiError:
    """Return what is said of an object that is not there: who may not list must not learn that it is not.

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
