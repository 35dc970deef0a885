"""HTTP/1.1 on a socket: reading requests and encoding responses.

Must not know buckets. Written by hand to be fast, because every test of a lock uses it several times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO
from urllib.parse import parse_qsl, urlsplit

from gcs_emulator.errors import ApiError

LINE_BYTES_MAX = 64 * 1024
HEADERS_MAX = 200
REASON_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {308: "Resume Incomplete"}
WITHOUT_BODY = frozenset({204, 304})


class MalformedRequest(Exception):  # noqa: N818 - an error of the client, not of the server
    """The client does not send HTTP; the connection cannot be used further."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. The path is percent-encoded; header names are in lower case."""

    method: str
    path: str
    raw_query: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)
    keeps_alive: bool = True

    @property
    def base(self) -> str:
        """The server's URL as the client sees it, without a trailing slash."""
        return f"http://{self.headers.get('host', 'localhost')}"

    def pairs(self) -> list[tuple[str, str]]:
        """Return all parameters of the query, including repeated ones; `query` keeps only the last of each."""
        return parse_qsl(self.raw_query, keep_blank_values=True)

    def json(self) -> dict[str, object]:
        """Return the body as a JSON object, empty if there is no body; raises ApiError 400."""
        return json_object(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; `encoded` adds Date, Content-Length and Connection."""

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: tuple[tuple[str, str], ...] = ()


def json_object(text: bytes) -> dict[str, object]:
    """Return the JSON object in a text, empty for an empty text; raises ApiError 400."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        raise ApiError(400, "Parse Error", "parseError") from None
    if not isinstance(found, dict):
        raise ApiError(400, "Parse Error: a JSON object is expected.", "parseError")
    return found


def json_answer(resource: Mapping[str, object], status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return a response with a JSON body."""
    return Answer(
        status, json.dumps(resource).encode(), (("Content-Type", "application/json; charset=UTF-8"), *headers)
    )


def encoded(answer: Answer, *, date: str | None, head_only: bool = False, closes: bool = False) -> bytes:
    """Encode a response; for a HEAD request without the body, but with its length."""
    lines = [f"HTTP/1.1 {answer.status} {REASON_PHRASES.get(answer.status, 'Status')}"]
    if date is not None:
        lines.append(f"Date: {date}")
    lines.extend(f"{name}: {value}" for name, value in answer.headers)
    if answer.status not in WITHOUT_BODY:
        lines.append(f"Content-Length: {len(answer.body)}")
    lines.append("Server: UploadServer")
    if closes:
        lines.append("Connection: close")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    return head if head_only or answer.status in WITHOUT_BODY else head + answer.body


def read_request(stream: BinaryIO, reply: Callable[[bytes], object]) -> Request | None:
    """Return the next request, None if the client has closed; sends `100 Continue` by `reply` if requested.

    Raises MalformedRequest, or OSError from the socket.
    """
    line = stream.readline(LINE_BYTES_MAX)
    while line in {b"\r\n", b"\n"}:
        line = stream.readline(LINE_BYTES_MAX)
    if not line:
        return None
    try:
        method, target, version = line.decode("ascii").split()
    except ValueError:
        raise MalformedRequest(f"not a request line: {line[:80]!r}") from None
    headers = _read_headers(stream)
    if headers.get("expect", "").lower() == "100-continue":
        reply(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = _read_body(stream, headers)
    if target.startswith(("http://", "https://")):
        split = urlsplit(target)
        target = f"{split.path}?{split.query}"
    path, _, query = target.partition("?")
    connection = headers.get("connection", "").lower()
    return Request(
        method=method,
        path=path,
        raw_query=query,
        query=dict(parse_qsl(query, keep_blank_values=True)) if query else {},
        headers=headers,
        body=body,
        keeps_alive=connection != "close" if version == "HTTP/1.1" else connection == "keep-alive",
    )


def _read_headers(stream: BinaryIO) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX):
        line = stream.readline(LINE_BYTES_MAX)
        if line in {b"\r\n", b"\n"}:
            return headers
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise MalformedRequest(f"not a header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    raise MalformedRequest(f"more than {HEADERS_MAX} headers")


def _read_body(stream: BinaryIO, headers: Mapping[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _read_chunks(stream)
    length = headers.get("content-length", "0")
    if not length.isdigit():
        raise MalformedRequest(f"not a content length: {length!r}")
    return _read_exactly(stream, int(length)) if length != "0" else b""


def _read_chunks(stream: BinaryIO) -> bytes:
    chunks: list[bytes] = []
    while True:
        size = stream.readline(LINE_BYTES_MAX).split(b";")[0].strip()
        try:
            count = int(size, 16)
        except ValueError:
            raise MalformedRequest(f"not a chunk size: {size!r}") from None
        if count == 0:
            break
        chunks.append(_read_exactly(stream, count))
        stream.readline(LINE_BYTES_MAX)
    while stream.readline(LINE_BYTES_MAX) not in {b"\r\n", b"\n", b""}:
        pass
    return b"".join(chunks)


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    body = stream.read(count)
    if len(body) != count:
        raise MalformedRequest("the peer closed in the middle of a body")
    return body
