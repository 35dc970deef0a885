"""Decides how a command looks as a request to Cloud Storage's JSON API, and what its answer means. Pure.

Object at the prefix and the escaped key, empty body, metadata = the record's fields, as other implementations write
and read them. incarnation is the generation, revision the metageneration. Must not know how requests are sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from lockstead.errors import OutcomeUnknown, StoreRefused
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
from lockstead.values import Name, Space

RESERVED: Final = ".lockstead"
"""The folder below the prefix for members, companions and audit; no escaped key begins with a dot."""

OBJECT_NAME_BYTES_MAX: Final = 1024
_BOUNDARY: Final = "lockstead-boundary"
_ESCAPED: Final = re.compile(r"[\x00-\x7f]")
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store's objects live. prefix is without slashes at its ends and may be empty."""

    bucket: str
    prefix: str

    def object_name(self, name: Name) -> str:
        """Give the object's name; StoreRefused if Cloud Storage could not hold it."""
        if name.space is Space.LOCK:
            path = escape(name.key)
        else:
            path = f"{RESERVED}/{name.space.value}/{escape(name.key)}"
            if name.part:
                path += "/" + quote(name.part, safe="/")
        full = f"{self.prefix}/{path}" if self.prefix else path
        if len(full.encode()) > OBJECT_NAME_BYTES_MAX:
            raise StoreRefused(
                f"the key {name.key[:24]!r}… gives an object name above {OBJECT_NAME_BYTES_MAX} bytes; shorten it"
            )
        return full

    def name_of(self, object_name: str, space: Space) -> Name | None:
        """Give the name that an object stands for; None if it is none of ours."""
        path = object_name.removeprefix(f"{self.prefix}/") if self.prefix else object_name
        if space is Space.LOCK:
            key = unquote(path)
            return Name(key) if key and escape(key) == path else None
        path = path.removeprefix(f"{RESERVED}/{space.value}/")
        escaped, _, part = path.partition("/")
        return Name(unquote(escaped), space, unquote(part))


def escape(key: str) -> str:
    """Write a key as one piece of a path, one-to-one: no slash, no dot in front."""
    text = _ESCAPED.sub(lambda found: found[0] if found[0] in _PLAIN else f"%{ord(found[0]):02X}", key)
    return "%2E" + text[1:] if text.startswith(".") else text


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, below the API's root."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


def request_for(command: Command[Any], place: Place, page: str | None = None) -> Request:
    """Say how a command is asked. page is the token of a listing's further page."""
    match command:
        case Create():
            return _insert(place, command.name, command.fields, {"ifGenerationMatch": "0"})
        case Replace():
            expected = {"ifGenerationMatch": command.incarnation, "ifMetagenerationMatch": command.revision}
            return _insert(place, command.name, command.fields, expected)
        case Read():
            return Request("GET", _path(place, command.name), {"projection": "noAcl"})
        case Extend():
            body = json.dumps({"metadata": dict(command.fields)}, ensure_ascii=False).encode()
            params = {"projection": "noAcl", **_expected(command.incarnation, command.revision)}
            return Request("PATCH", _path(place, command.name), params, {"Content-Type": "application/json"}, body)
        case Remove():
            return Request("DELETE", _path(place, command.name), _expected(command.incarnation, command.revision))
        case List():
            return _list(place, command, page)
        case _:
            raise TypeError(f"not a command for a store: {type(command).__name__}")


def _path(place: Place, name: Name) -> str:
    return f"/storage/v1/b/{quote(place.bucket, safe='')}/o/{quote(place.object_name(name), safe='')}"


def _expected(incarnation: str | None, revision: str | None) -> dict[str, str]:
    params = {}
    if incarnation is not None:
        params["ifGenerationMatch"] = incarnation
    if revision is not None:
        params["ifMetagenerationMatch"] = revision
    return params


def _insert(place: Place, name: Name, fields: Mapping[str, str], expected: Mapping[str, str]) -> Request:
    about = {
        "name": place.object_name(name),
        "metadata": dict(fields),
        "cacheControl": "no-store",
        "contentType": "application/octet-stream",
    }
    content = (
        f"--{_BOUNDARY}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
        f"{json.dumps(about, ensure_ascii=False)}\r\n"
        f"--{_BOUNDARY}\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--{_BOUNDARY}--\r\n"
    )
    return Request(
        "POST",
        f"/upload/storage/v1/b/{quote(place.bucket, safe='')}/o",
        {"uploadType": "multipart", "projection": "noAcl", **expected},
        {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"},
        content.encode(),
    )


def _list(place: Place, command: List, page: str | None) -> Request:
    below = f"{place.prefix}/" if place.prefix else ""
    params = {"projection": "noAcl"}
    if command.space is not Space.LOCK:
        below += f"{RESERVED}/{command.space.value}/"
        if command.key is not None:
            below += f"{escape(command.key)}/{quote(command.part_prefix, safe='/')}"
    elif command.key is not None:
        below += escape(command.key)
    else:
        params["delimiter"] = "/"
    params["prefix"] = below
    if page is not None:
        params["pageToken"] = page
    return Request("GET", f"/storage/v1/b/{quote(place.bucket, safe='')}/o", params)


# --- answers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: the status, the `Date` header, the body."""

    status: int
    date: str | None
    body: bytes


def answer_to(command: Command[Any], response: Response, place: Place) -> Any:
    """Say what an answer means. Raises OutcomeUnknown or StoreRefused; a 5xx or 429 says nothing of what was done."""
    now = _date(response.date)
    status = response.status
    if status in (200, 204):
        if isinstance(command, Remove):
            return Removed(now)
        return _snapshot(_json(response, command), now)
    if status == 412:
        return Conflict()
    if status == 404 and not _is_about_bucket(response):
        return Absent(now)
    raise _error(command, response, place)


def page_of(command: List, response: Response, place: Place) -> tuple[Listing, str | None]:
    """Read one page of a listing: its entries, and the token of the next page."""
    if response.status != 200:
        raise _error(command, response, place)
    now = _date(response.date)
    body = _json(response, command)
    entries = []
    for item in body.get("items", ()):
        name = place.name_of(item["name"], command.space)
        if name is not None and (command.key is None or name.key == command.key):
            entries.append((name, _snapshot(item, now)))
    return Listing(tuple(entries)), body.get("nextPageToken")


def _snapshot(resource: Mapping[str, Any], now: float | None) -> Snapshot:
    created_at = _instant(resource["timeCreated"])
    metageneration = int(resource["metageneration"])
    return Snapshot(
        fields=resource.get("metadata") or {},
        incarnation=str(resource["generation"]),
        revision=str(metageneration),
        updated_at=_instant(resource["updated"]),
        store_now=now,
        # of a companion: grows with every write, and over its deletion too
        token=int(created_at * 1000) + metageneration,
    )


def _json(response: Response, command: Command[Any]) -> dict[str, Any]:
    try:
        body = json.loads(response.body)
    except ValueError as error:
        raise OutcomeUnknown(f"the answer to {type(command).__name__} is no JSON; is this Cloud Storage?") from error
    if not isinstance(body, dict):
        raise OutcomeUnknown(f"the answer to {type(command).__name__} is no object; is this Cloud Storage?")
    return body


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _date(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


def _said(response: Response) -> str:
    try:
        error = json.loads(response.body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (ValueError, KeyError, TypeError):
        return ""


def _is_about_bucket(response: Response) -> bool:
    said = _said(response).lower()
    return "bucket" in said and "no such object" not in said


def _error(command: Command[Any], response: Response, place: Place) -> OutcomeUnknown | StoreRefused:
    what, status, said = type(command).__name__, response.status, _said(response)
    told = f": {said}" if said else ""
    where = f"gs://{place.bucket}"
    if status == 404:
        return StoreRefused(f"the bucket {where} does not exist; create it, or correct the URL")
    if status == 401:
        return StoreRefused(f"not signed in to {where} ({what}){told}; set up application default credentials")
    if status == 403:
        hint = "lift the retention policy or hold" if "retention" in said.lower() else "grant Storage Object User"
        return StoreRefused(f"{what} is forbidden in {where}{told}; {hint}")
    if 400 <= status < 500 and status not in (408, 409, 429):
        return StoreRefused(f"{where} refused {what} with {status}{told}")
    return OutcomeUnknown(f"{where} answered {what} with {status}{told}")
