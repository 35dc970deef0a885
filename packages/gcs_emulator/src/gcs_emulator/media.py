"""Reading of content: conditional requests, ranges and headers.

No I/O. Serves the JSON API's `alt=media` and plain reads of objects, as by apt, dnf and browsers. Does not uncompress
content; returns the whole content for a request with several ranges.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from gcs_emulator.clock import http_date
from gcs_emulator.errors import ApiError
from gcs_emulator.http_messages import Answer
from gcs_emulator.objects import StoredObject

RANGE = re.compile(r"bytes=(\d*)-(\d*)")
FIELD_HEADERS = {
    "cacheControl": "Cache-Control",
    "contentDisposition": "Content-Disposition",
    "contentEncoding": "Content-Encoding",
    "contentLanguage": "Content-Language",
}


def content_tag(stored: StoredObject) -> str:
    """Return the entity tag of the content: its MD5, quoted; the generation for composed objects."""
    md5 = stored.draft.md5
    return f'"{base64.b64decode(md5).hex() if md5 is not None else stored.generation}"'


def content_answer(stored: StoredObject, headers: Mapping[str, str]) -> Answer:
    """Return a response with the content or a part of it, or 304.

    headers are those of the request, with lower-case names. Raises ApiError 416 for a range beyond the end, 412 for a
    failed If-Match.
    """
    described = _described(stored)
    if not _matches(headers.get("if-match"), content_tag(stored), absent=True):
        raise ApiError(412)
    if _is_unchanged(stored, headers):
        return Answer(304, b"", described)
    content = stored.draft.content
    span = _span(stored, headers)
    if span is None:
        return Answer(200, content, described)
    first, last = span
    described = (*described, ("Content-Range", f"bytes {first}-{last}/{len(content)}"))
    return Answer(206, content[first : last + 1], described)


def _described(stored: StoredObject) -> tuple[tuple[str, str], ...]:
    draft = stored.draft
    hashes = f"crc32c={draft.crc32c}" + (f",md5={draft.md5}" if draft.md5 is not None else "")
    kept = tuple((header, str(draft.fields[key])) for key, header in FIELD_HEADERS.items() if key in draft.fields)
    metadata = tuple(
        (f"x-goog-meta-{key}", value) for key, value in draft.metadata.items() if _is_header_safe(key, value)
    )
    return (
        ("Content-Type", str(draft.fields.get("contentType", "application/octet-stream"))),
        ("ETag", content_tag(stored)),
        ("Last-Modified", http_date(stored.updated_at)),
        ("Accept-Ranges", "bytes"),
        ("x-goog-generation", str(stored.generation)),
        ("x-goog-metageneration", str(stored.metageneration)),
        ("x-goog-hash", hashes),
        ("x-goog-stored-content-encoding", str(draft.fields.get("contentEncoding", "identity"))),
        ("x-goog-stored-content-length", str(len(draft.content))),
        ("x-goog-storage-class", str(draft.fields.get("storageClass", "STANDARD"))),
        *kept,
        *metadata,
    )


def _is_header_safe(key: str, value: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+", key, re.ASCII)) and value.isprintable() and value.isascii()


def _matches(wanted: str | None, tag: str, *, absent: bool) -> bool:
    if wanted is None:
        return absent
    tags = {one.strip().removeprefix("W/") for one in wanted.split(",")}
    return "*" in tags or tag in tags


def _is_unchanged(stored: StoredObject, headers: Mapping[str, str]) -> bool:
    if "if-none-match" in headers:
        return _matches(headers["if-none-match"], content_tag(stored), absent=False)
    return _is_not_newer(stored, headers.get("if-modified-since"))


def _is_not_newer(stored: StoredObject, date: str | None) -> bool:
    if date is None:
        return False
    try:
        return int(stored.updated_at // 1) <= parsedate_to_datetime(date).timestamp()
    except ValueError:
        return False


def _span(stored: StoredObject, headers: Mapping[str, str]) -> tuple[int, int] | None:
    found = RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    if found is None or not any(found.groups()):
        return None
    condition = headers.get("if-range")
    if condition is not None and not (
        condition == content_tag(stored) if condition.startswith(('"', "W/")) else _is_not_newer(stored, condition)
    ):
        return None
    size = len(stored.draft.content)
    first_text, last_text = found.groups()
    if not first_text:
        first, last = max(0, size - int(last_text)), size - 1
        is_satisfiable = int(last_text) > 0 and size > 0
    else:
        first, last = int(first_text), min(int(last_text) if last_text else size - 1, size - 1)
        if last_text and int(last_text) < first:
            return None
        is_satisfiable = first < size
    if not is_satisfiable:
        raise ApiError(416)
    return first, last
