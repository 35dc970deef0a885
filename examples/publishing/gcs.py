"""A bucket on Google Cloud Storage, accessed by its JSON API, or on the server that STORAGE_EMULATOR_HOST names.

Sends exactly one request per verb (a listing: one per page; a very large copy: until it is done) and never repeats
one by itself.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, cast
from urllib.parse import quote, urlsplit

import httpx

from examples.publishing.bucket import IMMUTABLE, NEVER_CACHED, Stat, crc32c
from examples.publishing.errors import BucketError, NotFound, OutcomeUnknown, PreconditionFailed

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
ENDPOINT = "https://storage.googleapis.com"
FIELDS = "name,size,crc32c,generation,timeCreated"

Json: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket and the prefix of all object names in it: `gs://bucket/prefix`."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Place:
        """Parse a `gs://` URL; ValueError if it is not one."""
        parts = urlsplit(url)
        if parts.scheme != "gs" or not parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"expected gs://bucket/prefix, not {url!r}")
        folder = parts.path.strip("/")
        return cls(parts.netloc, f"{folder}/" if folder else "")


class GoogleAuth(httpx.Auth):
    """Signs requests with this machine's credentials, and renews them when they expire."""

    def __init__(self) -> None:
        import google.auth
        from google.auth.transport.requests import Request

        self._credentials, _ = google.auth.default(scopes=[SCOPE])
        self._transport = Request()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the authorization header."""
        headers: dict[str, str] = {}
        self._credentials.before_request(  # type: ignore[no-untyped-call] # it has no annotations
            self._transport, request.method, str(request.url), headers
        )
        request.headers.update(headers)
        yield request


class GcsBucket:
    """One bucket. Thread-safe, but must not be shared between processes. See `Bucket` for what the operations
    promise."""

    def __init__(self, name: str, *, endpoint: str | None = None, timeout: float = 15.0) -> None:
        """Open a bucket: at `endpoint` without credentials, else as the environment says. timeout is in seconds."""
        emulator = endpoint or os.environ.get("STORAGE_EMULATOR_HOST")
        self.endpoint = (emulator or ENDPOINT).rstrip("/")
        if "://" not in self.endpoint:
            self.endpoint = f"http://{self.endpoint}"
        self.name = name
        self._http = httpx.Client(timeout=timeout, auth=None if emulator else GoogleAuth())
        self._objects = f"{self.endpoint}/storage/v1/b/{quote(name, safe='')}/o"
        self._uploads = f"{self.endpoint}/upload/storage/v1/b/{quote(name, safe='')}/o"

    @property
    def public_url(self) -> str:
        """Return the URL of a public bucket's objects for readers without credentials, without the object's name."""
        return f"{self.endpoint}/{self.name}/"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def create(self, name: str, content: bytes, *, cache_control: str = IMMUTABLE, **metadata: str) -> Stat:
        """Write an object that does not exist."""
        return self._insert(name, content, 0, cache_control, metadata)

    def replace(
        self, name: str, content: bytes, *, generation: int, cache_control: str = NEVER_CACHED, **metadata: str
    ) -> Stat:
        """Write an object if it has this generation."""
        return self._insert(name, content, generation, cache_control, metadata)

    def copy(self, source: Stat, target: str) -> Stat:
        """Copy this generation to a name that does not exist."""
        bucket = quote(self.name, safe="")
        url = f"{self._objects}/{quote(source.name, safe='')}/rewriteTo/b/{bucket}/o/{quote(target, safe='')}"
        query = {"ifGenerationMatch": "0", "sourceGeneration": str(source.generation)}
        while True:
            answer = self._json("POST", url, query, target)
            if answer.get("done"):
                return _stat(cast(Json, answer["resource"]))
            query["rewriteToken"] = str(answer["rewriteToken"])

    def stat(self, name: str) -> Stat:
        """Return an object's metadata."""
        return _stat(self._json("GET", f"{self._objects}/{quote(name, safe='')}", {}, name))

    def read(self, name: str, *, generation: int | None = None) -> bytes:
        """Return the content."""
        query = {"alt": "media"} | ({} if generation is None else {"generation": str(generation)})
        return self._send("GET", f"{self._objects}/{quote(name, safe='')}", query, name).content

    def list(self, prefix: str) -> Iterator[Stat]:
        """Return all objects whose names have this prefix."""
        for page in self._pages({"prefix": prefix, "fields": f"items({FIELDS}),nextPageToken"}):
            yield from (_stat(item) for item in cast(list[Json], page.get("items", [])))

    def folders(self, prefix: str) -> Iterator[str]:
        """Return the parts of names between the prefix and the next slash."""
        for page in self._pages({"prefix": prefix, "delimiter": "/", "fields": "prefixes,nextPageToken"}):
            for folder in cast(list[str], page.get("prefixes", [])):
                yield folder.removeprefix(prefix).rstrip("/")

    def delete(self, name: str, *, generation: int) -> None:
        """Delete this generation of an object."""
        query = {"ifGenerationMatch": str(generation)}
        self._send("DELETE", f"{self._objects}/{quote(name, safe='')}", query, name)

    def _pages(self, query: dict[str, str]) -> Iterator[Json]:
        while True:
            page = self._json("GET", self._objects, query, query["prefix"])
            yield page
            if not page.get("nextPageToken"):
                return
            query = query | {"pageToken": str(page["nextPageToken"])}

    def _insert(
        self, name: str, content: bytes, generation: int, cache_control: str, metadata: Mapping[str, str]
    ) -> Stat:
        resource = {
            "name": name,
            "contentType": "application/octet-stream",
            "cacheControl": cache_control,
            "crc32c": crc32c(content),
            "metadata": dict(metadata),
        }
        boundary = uuid.uuid4().hex.encode()
        body = (
            b"--%b\r\nContent-Type: application/json\r\n\r\n%b\r\n"
            b"--%b\r\nContent-Type: application/octet-stream\r\n\r\n%b\r\n--%b--\r\n"
        ) % (boundary, json.dumps(resource).encode(), boundary, content, boundary)
        query = {"uploadType": "multipart", "ifGenerationMatch": str(generation)}
        headers = {"Content-Type": f"multipart/related; boundary={boundary.decode()}"}
        return _stat(_parsed(self._send("POST", self._uploads, query, name, body, headers), name))

    def _json(self, method: str, url: str, query: Mapping[str, str], name: str) -> Json:
        return _parsed(self._send(method, url, query, name), name)

    def _send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str],
        name: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, url, params=dict(query), content=body, headers=dict(headers or {}))
        except httpx.TransportError as error:
            raise OutcomeUnknown(f"{method} {name}: {type(error).__name__} {error}".rstrip()) from error
        match answer.status_code:
            case 412:
                raise PreconditionFailed(f"{name} is not as expected")
            case 404:
                raise NotFound(f"{name} does not exist")
            case 408 | 429:
                raise OutcomeUnknown(f"{method} {name}: {answer.status_code}")
            case status if status >= 500:
                raise OutcomeUnknown(f"{method} {name}: {status}")
            case status if not 200 <= status < 300:
                raise BucketError(f"{method} {name}: {status} {answer.text[:200]}")
        return answer


def _parsed(answer: httpx.Response, name: str) -> Json:
    try:
        return cast(Json, answer.json())
    except ValueError as error:
        raise OutcomeUnknown(f"{name}: the answer is not JSON") from error


def _stat(resource: Json) -> Stat:
    return Stat(
        str(resource["name"]),
        int(str(resource.get("size", "0"))),
        str(resource["crc32c"]),
        int(str(resource["generation"])),
        cast(Mapping[str, str], resource.get("metadata", {})),
        datetime.fromisoformat(str(resource["timeCreated"])).timestamp(),
    )
