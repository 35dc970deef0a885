"""Error responses in the format of Google's JSON API.

Must not know HTTP connections or stored objects.
"""

from __future__ import annotations

import json

REASONS = {
    304: "notModified",
    400: "invalid",
    401: "required",
    403: "forbidden",
    404: "notFound",
    405: "methodNotAllowed",
    408: "uploadBrokenConnection",
    409: "conflict",
    410: "gone",
    411: "lengthRequired",
    412: "conditionNotMet",
    413: "uploadTooLarge",
    416: "requestedRangeNotSatisfiable",
    429: "rateLimitExceeded",
    500: "backendError",
    502: "badGateway",
    503: "backendError",
    504: "gatewayTimeout",
}

MESSAGES = {
    401: "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object.",
    403: "The caller does not have access to the Google Cloud Storage object.",
    412: "At least one of the pre-conditions you specified did not hold.",
    416: "The requested range cannot be satisfied.",
    429: "The rate of change requests exceeds the rate limit. Please reduce your request rate.",
    500: "We encountered an internal error. Please try again.",
    503: "We encountered an internal error. Please try again.",
}

XML_CODES = {
    400: "InvalidArgument",
    401: "AuthenticationRequired",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "SlowDown",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class ApiError(Exception):
    """A request is refused with this HTTP status; nothing was changed."""

    def __init__(self, status: int, message: str = "", reason: str = "") -> None:
        self.status = status
        self.message = message or MESSAGES.get(status, "The request was refused.")
        self.reason = reason or REASONS.get(status, "unknown")
        super().__init__(f"{status} {self.message}")


def no_object(bucket: str, name: str) -> ApiError:
    """Return the error for a missing object."""
    return ApiError(404, f"No such object: {bucket}/{name}")


def no_bucket() -> ApiError:
    """Return the error for a missing bucket."""
    return ApiError(404, "The specified bucket does not exist.")


def too_many_changes(bucket: str, name: str) -> ApiError:
    """Return the error for a second change of one object within a second."""
    return ApiError(
        429,
        f"The object {bucket}/{name} exceeded the rate limit for object mutation operations "
        "(create, update, and delete). Please reduce your request rate.",
    )


def json_body(error: ApiError) -> bytes:
    """Return the error in the JSON API's format: `{"error": {"code", "message", "errors": [...]}}`."""
    detail: dict[str, str] = {
        "message": error.message,
        "domain": "usageLimits" if error.status == 429 else "global",
        "reason": error.reason,
    }
    if error.status == 412:
        detail |= {"locationType": "header", "location": "If-Match"}
    return json.dumps({"error": {"code": error.status, "message": error.message, "errors": [detail]}}).encode()


def xml_body(error: ApiError) -> bytes:
    """Return the error as an XML document, the format for plain reads of objects."""
    code = XML_CODES.get(error.status, "Error")
    message = error.message.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    )
