"""Encoding of commands as requests to Cloud Storage's JSON API, and decoding of the responses. No I/O.

A record is an object named by the prefix and the escaped key, with an empty body and the fields as metadata, as in
other implementations. incarnation is the generation, revision the metageneration. Must not know how requests are sent.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, unquote, urlencode

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused
from lockstead.frozen import frozen
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.script import Script
from lockstead.stores import paging
from lockstead.stores.kept import bounded, to_json
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from lockstead.stores.http import Answer

RESERVED: Final = ".lockstead"
"""The folder below the prefix for members, companions and audit entries; no escaped key begins with a dot."""

OBJECT_NAME_BYTES_MAX: Final = 1024
PREFIX_BYTES_MAX: Final = 200
"""With this limit, every key and every name below it fits into an object's name."""

ESCAPED_BYTES_MAX: Final = 600
"""A key with a longer escaped form is written in base64, which takes at most 684 bytes for a key of 512."""

PAGE_MAX: Final = 1000
"""Objects in one response to a listing; Cloud Storage returns no more."""

TOKEN_CHARACTERS_MAX: Final = 4096
"""Maximum length of a page token, which contains an object's name."""

_LONG: Final = "="
"""Prefix of a key in base64; no escaped key begins with it."""

_BOUNDARY: Final = "lockstead-boundary"
_ESCAPED: Final = re.compile(r"[\x00-\x7f]")
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


@dataclass(frozen=True, slots=True)
class BucketPath:
    """The bucket and prefix of a store's objects. prefix has no slashes at its ends and may be empty."""

    bucket: str
    prefix: str

    @classmethod
    def at(cls, bucket: str, prefix: str) -> Self:
        """Return a validated path; raise ValueError if invalid, or inside the reserved names of another store."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
            raise ValueError(f"{bucket!r} is not a valid bucket name")
        if RESERVED in prefix.split("/"):
            raise ValueError(f"the prefix {prefix!r} is inside the reserved names of another store; choose another")
        if not prefix.isprintable() or len(prefix.encode()) > PREFIX_BYTES_MAX:
            raise ValueError(f"the prefix must be printable and at most {PREFIX_BYTES_MAX} bytes")
        return cls(bucket, prefix)

    @property
    def url(self) -> str:
        """The store's canonical URL."""
        return f"gs://{self.bucket}/{quote(self.prefix, safe=_URL_SAFE)}" if self.prefix else f"gs://{self.bucket}"

    @property
    def root(self) -> str:
        """The common prefix of all object names."""
        return f"{self.prefix}/" if self.prefix else ""

    def object_name(self, name: Name) -> str:
        """Return the object's name; raise StoreRefused if it is too long for Cloud Storage."""
        full = self.root + escape(name.key)
        if name.space is not Space.LOCK:
            full = self.folder(name.space) + escape(name.key)
            if name.part:
                full += "/" + quote(name.part, safe="/")
        if len(full.encode()) > OBJECT_NAME_BYTES_MAX:
            raise StoreRefused(
                f"the key {name.key[:24]!r}… makes an object name above {OBJECT_NAME_BYTES_MAX} bytes; shorten it"
            )
        return full

    def folder(self, space: Space) -> str:
        """Return the folder of a space; locks are directly below the root."""
        return self.root if space is Space.LOCK else f"{self.root}{RESERVED}/{space.value}/"

    def name_of(self, object_name: str, space: Space) -> Name | None:
        """Return the name of the record in an object; None if the object is not lockstead's."""
        escaped, slash, part = object_name.removeprefix(self.folder(space)).partition("/")
        key = _unescaped(escaped)
        if not key or (slash and (not part or space is Space.LOCK)):
            return None
        name = Name(key, space, unquote(part))
        try:
            # a foreign object must not be mistaken for a key that is stored under another name
            return name if self.object_name(name) == object_name else None
        except (StoreRefused, ValueError):
            return None  # too long in our encoding, or not text: one such object must not hide others


_URL_SAFE: Final = "/:@!$&*+,;="


def escape(key: str) -> str:
    """Encode a key as one path segment, reversibly: no slash, no leading dot, at most 684 bytes for a key of 512.

    Characters outside ASCII stay as they are, so that other implementations find the same object.
    """
    text = _ESCAPED.sub(lambda found: found[0] if found[0] in _PLAIN else f"%{ord(found[0]):02X}", key)
    if len(text.encode()) > ESCAPED_BYTES_MAX:
        return _LONG + urlsafe_b64encode(key.encode()).decode().rstrip("=")
    return "%2E" + text[1:] if text.startswith(".") else text


def _unescaped(text: str) -> str | None:
    try:
        if text.startswith(_LONG):
            body = text.removeprefix(_LONG)
            return urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
        return unquote(text, errors="strict")
    except ValueError:
        return None


@frozen
class Request:
    """One HTTP request. target: path and query below the endpoint. what: the name of the operation, for messages."""

    what: str
    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


def exchange(command: Command[Any], place: BucketPath) -> Script[Request, Answer, Any]:
    """Yield the requests of a command, and return its result.

    A listing that is not in pages has one request for each of the server's, other commands have one. Raises
    OutcomeUnknown or StoreRefused.
    """
    if not isinstance(command, List):
        response = yield request_for(command, place)
        return answer_to(command, response, place)
    entries: list[tuple[Name, Snapshot]] = []
    token = (paging.text_place(command, 1) or (None,))[0]
    while True:
        response = yield _list(place, command, token)
        if response.status == 400 and command.cursor is not None:
            raise paging.refused_cursor()
        more, token = page_of(command, response, place)
        entries += more
        if token is None or command.page is not None:
            return Listing(tuple(entries), None if token is None else paging.cursor(command, token))


def request_for(command: Command[Any], place: BucketPath) -> Request:
    """Return the request of a command that is not a listing; for a listing see `exchange`."""
    match command:
        case Create():
            return _insert(place, command, {"ifGenerationMatch": "0"})
        case Replace():
            return _insert(place, command, _expected(command))
        case Read():
            return Request("Read", "GET", _object(place, command.name, {}))
        case Extend():
            body = to_json({"metadata": dict(command.fields)}).encode()
            target = _object(place, command.name, _expected(command))
            return Request("Extend", "PATCH", target, {"Content-Type": "application/json"}, body)
        case Remove():
            return Request("Remove", "DELETE", _object(place, command.name, _expected(command)))
        case _:
            raise TypeError(f"not a command for a store: {type(command).__name__}")


def _expected(command: Extend | Replace | Remove) -> dict[str, str]:
    expected = {"ifGenerationMatch": command.incarnation, "ifMetagenerationMatch": command.revision}
    return {name: value for name, value in expected.items() if value is not None}


def _objects(place: BucketPath) -> str:
    return f"/storage/v1/b/{place.bucket}/o"


def _object(place: BucketPath, name: Name, params: Mapping[str, str]) -> str:
    path = f"{_objects(place)}/{quote(place.object_name(name), safe='')}"
    return f"{path}?{urlencode({**params, 'prettyPrint': 'false'})}"


def _insert(place: BucketPath, command: Create | Replace, expected: Mapping[str, str]) -> Request:
    about = {
        "name": place.object_name(command.name),
        "metadata": dict(command.fields),
        "cacheControl": "no-store",
        "contentType": "application/octet-stream",
    }
    # encoded JSON contains no line break, so no field can forge the boundary
    content = (
        f"--{_BOUNDARY}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{to_json(about)}\r\n"
        f"--{_BOUNDARY}\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--{_BOUNDARY}--\r\n"
    )
    return Request(
        type(command).__name__,
        "POST",
        f"/upload{_objects(place)}?{urlencode({'uploadType': 'multipart', **expected, 'prettyPrint': 'false'})}",
        {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"},
        content.encode(),
    )


def _list(place: BucketPath, command: List, token: str | None) -> Request:
    prefix = place.folder(command.space)
    params = {"prettyPrint": "false"}
    if command.key is not None:
        prefix += escape(command.key)
        if command.part_prefix:
            prefix += "/" + quote(command.part_prefix, safe="/")
    elif command.space is Space.LOCK:
        params["delimiter"] = "/"  # below are other stores and the reserved names
    params["prefix"] = prefix
    if command.page is not None:
        params["maxResults"] = str(min(command.page, PAGE_MAX))
    if token is not None:
        params["pageToken"] = token
    return Request("List", "GET", f"{_objects(place)}?{urlencode(params)}")


# --- responses ---------------------------------------------------------------------------------------------------


def answer_to(command: Command[Any], response: Answer, place: BucketPath) -> Any:
    """Return the result from a response. Raises StoreRefused, or OutcomeUnknown (also after a 5xx or 429)."""
    now = _date(response.headers.get(b"date"))
    match response.status:
        case 200 | 204 if isinstance(command, Remove):
            return Removed(now)
        case 200:
            return _snapshot(_json(response, command), now, command)
        case 412 if not isinstance(command, Read):
            return Conflict()
        case 404 if not isinstance(command, Create | Replace) and _is_about_object(response):
            return Absent(now)
    raise _error(command, response, place)


def page_of(command: List, response: Answer, place: BucketPath) -> tuple[list[tuple[Name, Snapshot]], str | None]:
    """Return the entries of one page of a listing, and the token of the next page."""
    if response.status != 200:
        raise _error(command, response, place)
    now = _date(response.headers.get(b"date"))
    body = _json(response, command)
    entries = []
    for item in body.get("items", ()):
        name = place.name_of(str(item.get("name", "")), command.space)
        if name is not None and command.shows(name):
            entries.append((name, _snapshot(item, now, command)))
    token = body.get("nextPageToken")
    if token is not None and not (isinstance(token, str) and 0 < len(token) <= TOKEN_CHARACTERS_MAX):
        raise OutcomeUnknown("the answer to List names no next page; is this Cloud Storage?")
    return entries, token


def _snapshot(resource: Mapping[str, Any], now: float | None, command: Command[Any]) -> Snapshot:
    try:
        metageneration = int(resource["metageneration"])
        return Snapshot(
            fields=bounded(resource.get("metadata") or {}),
            incarnation=str(resource["generation"]),
            revision=str(metageneration),
            updated_at=_instant(resource["updated"]),
            store_now=now,
            # used for companion records: increases with every write, even after a deletion
            token=int(_instant(resource["timeCreated"]) * 1000) + metageneration,
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise OutcomeUnknown(f"the answer to {type(command).__name__} is not an object of Cloud Storage") from error


def _json(response: Answer, command: Command[Any]) -> dict[str, Any]:
    try:
        body = json.loads(response.body)
    except (ValueError, RecursionError) as error:
        raise OutcomeUnknown(f"the answer to {type(command).__name__} is not JSON; is this Cloud Storage?") from error
    if not isinstance(body, dict):
        raise OutcomeUnknown(f"the answer to {type(command).__name__} is not an object; is this Cloud Storage?")
    return body


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@lru_cache(maxsize=16)  # the same for all responses within one second
def _date(text: bytes | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text.decode("latin-1")).timestamp()
    except (ValueError, OverflowError):
        return None


def error_details(response: Answer) -> tuple[str, str]:
    """Return (message, reason) from an error's body, empty where missing. Source: the JSON API's error format."""
    try:
        error = json.loads(response.body)["error"]
        if not isinstance(error, dict):
            return str(error)[:300], ""
        reasons = [str(one.get("reason", "")) for one in error.get("errors", ()) if isinstance(one, dict)]
        return " ".join(str(error["message"]).split())[:300], (reasons or [""])[0]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""


def _is_about_object(response: Answer) -> bool:
    """Return whether a 404 means a missing object, and not a missing bucket or a proxy's "not found".

    The message for a missing bucket is exactly "the specified bucket does not exist"; the one for a missing object
    repeats its name, which may contain any word.
    """
    message = error_details(response)[0]
    return bool(message) and not _NO_BUCKET.match(message)


_NO_BUCKET: Final = re.compile(
    r"(the (specified|requested) )?bucket (\S+ )?(does not exist|(was )?not found)", re.IGNORECASE
)

_RATE: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "slowDown", "backendError"})
"""Reasons of a 403 that mean a rate limit, not a missing permission."""


def _error(command: Command[Any], response: Answer, place: BucketPath) -> StoreError:
    what, status, (message, reason) = type(command).__name__, response.status, error_details(response)
    details = f": {message}" if message else ""
    where = f"gs://{place.bucket}"
    match status:
        case 404 if message:
            return StoreRefused(f"the bucket {where} does not exist; create it, or correct the URL")
        case 401:
            return StoreRefused(f"not signed in to {where} ({what}){details}; set up application default credentials")
        case 403 if reason not in _RATE:
            return StoreRefused(f"{what} is forbidden in {where}{details}; {_remedy(message, reason)}")
        case 400 | 405 | 410 | 411 | 413 | 414 | 431:
            return StoreRefused(f"{where} refused {what} with {status}{details}; check the endpoint and the URL")
    return OutcomeUnknown(f"{where} answered {what} with {status}{details}")


def _remedy(message: str, reason: str) -> str:
    if re.search("retention|under active .* hold|activehold", f"{message} {reason}", re.IGNORECASE):
        return "locks are deleted and rewritten: use a bucket without retention policy and holds"
    return "grant this account the role 'Storage Object User' on the bucket"
