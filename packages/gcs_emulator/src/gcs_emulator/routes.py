"""Routing: the operation of a request, with its bucket and object.

No I/O. Everything that the log counts by and faults match by is determined here, before the operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import unquote

from gcs_emulator.errors import ApiError
from gcs_emulator.http_messages import Request, json_object
from gcs_emulator.resources import checked_name

JSON_ROOT = "/storage/v1/"
DOWNLOAD_ROOT = "/download/storage/v1/"
UPLOAD_ROOTS = ("/upload/storage/v1/", "/resumable/upload/storage/v1/")

MUTATIONS = frozenset({"insert", "patch", "update", "delete", "copy", "rewrite", "compose"})
OBJECT_KINDS = {"GET": "get", "HEAD": "get", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
BUCKET_KINDS = {"GET": "bucket_get", "PATCH": "bucket_patch", "DELETE": "bucket_delete"}
VERBS = {"copyTo": "copy", "rewriteTo": "rewrite"}


@dataclass(frozen=True, slots=True)
class Route:
    """The kind of an operation and its object; for a copy, `name` is the new object.

    Kinds: insert, patch, update, delete, copy, rewrite, compose; get (metadata), media (alt=media),
    read (plain GET or HEAD), list; upload_start, upload_part; bucket_insert, bucket_get, bucket_list, bucket_patch,
    bucket_delete, bucket_permissions.
    """

    kind: str
    bucket: str = ""
    name: str = ""
    source_bucket: str = ""
    source_name: str = ""
    resource: dict[str, object] = field(default_factory=dict)
    content: bytes = field(default=b"", repr=False)


def route(request: Request) -> Route:
    """Return the operation of a request that is not part of a resumable upload.

    Raises ApiError 404 or 405 if the API does not have it, 400 for an invalid name or body.
    """
    path = request.path
    if path.startswith(JSON_ROOT):
        return _json_route(request, _segments(path[len(JSON_ROOT) :]))
    if path.startswith(DOWNLOAD_ROOT):
        match _segments(path[len(DOWNLOAD_ROOT) :]):
            case ["b", bucket, "o", name] if request.method in {"GET", "HEAD"}:
                return Route("media", bucket, checked_name(name))
        raise ApiError(404, "Not Found")
    for root in UPLOAD_ROOTS:
        if path.startswith(root):
            match _segments(path[len(root) :]):
                case ["b", bucket, "o"] if request.method == "POST":
                    return _upload_route(request, bucket)
            raise ApiError(404, "Not Found")
    return _plain_route(request)


def kind_matches(pattern: str, kind: str) -> bool:
    """Return whether a kind matches: `mutation` means all that change an object, a comma means "or"."""
    if pattern == "*":
        return True
    return any(kind in MUTATIONS if one == "mutation" else fnmatchcase(kind, one) for one in pattern.split(","))


def is_plain(request: Request) -> bool:
    """Return whether this is a plain read of an object, whose errors are XML."""
    return not request.path.startswith((JSON_ROOT, DOWNLOAD_ROOT, *UPLOAD_ROOTS))


def _segments(path: str) -> list[str]:
    return [unquote(segment) for segment in path.split("/")]


def _json_route(request: Request, segments: list[str]) -> Route:
    method = request.headers.get("x-http-method-override", request.method)
    match segments:
        case ["b"] if method == "POST":
            return Route("bucket_insert", str(request.json().get("name", "")))
        case ["b"] if method == "GET":
            return Route("bucket_list")
        case ["b", bucket] if method in BUCKET_KINDS:
            return Route(BUCKET_KINDS[method], bucket)
        case ["b", bucket, "iam", "testPermissions"] if method == "GET":
            return Route("bucket_permissions", bucket)
        case ["b", bucket, "o"] if method == "GET":
            return Route("list", bucket)
        case ["b", bucket, "o"] if method == "POST":
            return _upload_route(request, bucket)
        case ["b", bucket, "o", name, "compose"] if method == "POST":
            return Route("compose", bucket, checked_name(name), resource=request.json())
        case ["b", source_bucket, "o", source_name, verb, "b", bucket, "o", name] if method == "POST" and verb in VERBS:
            return Route(VERBS[verb], bucket, checked_name(name), source_bucket, source_name, resource=request.json())
        case ["b", bucket, "o", name] if method in OBJECT_KINDS:
            kind = "media" if request.query.get("alt") == "media" and method == "GET" else OBJECT_KINDS[method]
            return Route(kind, bucket, checked_name(name))
        case ["b"] | ["b", _] | ["b", _, "o"] | ["b", _, "o", _]:
            raise ApiError(405, "Method Not Allowed")
    raise ApiError(404, "Not Found")


def _plain_route(request: Request) -> Route:
    bucket, _, name = request.path[1:].partition("/")
    if not bucket:
        raise ApiError(404, "Not Found")
    if request.method not in {"GET", "HEAD"}:
        raise ApiError(405, "Method Not Allowed")
    if not name:
        raise ApiError(404, "The specified key does not exist.")
    return Route("read", unquote(bucket), checked_name(unquote(name)))


def _upload_route(request: Request, bucket: str) -> Route:
    match request.query.get("uploadType"):
        case "media" | None:
            resource: dict[str, object] = {"contentType": request.headers.get("content-type")}
            resource["contentEncoding"] = request.query.get("contentEncoding")
            return Route(
                "insert", bucket, checked_name(request.query.get("name")), resource=resource, content=request.body
            )
        case "multipart":
            resource, content = parts_of(request)
            kind = "insert"
        case "resumable":
            resource, content, kind = request.json(), b"", "upload_start"
            if resource.get("contentType") is None:
                resource["contentType"] = request.headers.get("x-upload-content-type")
        case other:
            raise ApiError(400, f"Invalid upload type: {other!r}")
    name = checked_name(request.query.get("name") or resource.get("name"))
    return Route(kind, bucket, name, resource=resource, content=content)


def parts_of(request: Request) -> tuple[dict[str, object], bytes]:
    """Split a multipart/related body; return the resource, including the content's type, and the content.

    Raises ApiError 400.
    """
    _, _, boundary = request.headers.get("content-type", "").partition("boundary=")
    delimiter = b"\r\n--" + boundary.split(";")[0].strip().strip("\"'").encode("latin-1")
    parts = (b"\r\n" + request.body).split(delimiter)
    if not boundary or len(parts) != 4 or not parts[3].startswith(b"--"):
        raise ApiError(400, "Malformed multipart body.", "badRequest")
    _, resource_text = _part(parts[1])
    media_type, content = _part(parts[2])
    resource = json_object(resource_text)
    if resource.get("contentType") is None:
        resource["contentType"] = media_type
    return resource, content


def _part(part: bytes) -> tuple[str | None, bytes]:
    head, _, content = part.partition(b"\r\n\r\n")
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-type":
            return value.strip(), content
    return None, content
