"""What was recorded of other programs and of earlier versions, and how it is played back to a server.

Decides nothing: requests are sent as they were, but for what a test changes in their query.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import httpx

from gcs_emulator import GcsServer

FOLDER = Path(__file__).parent / "recorded"

BUCKET = "bucket"
OBJECT = "locks/apt"

Exchange = dict[str, Any]


def recording(name: str) -> dict[str, Any]:
    """Return one recording."""
    said: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return said


def asked(exchanges: list[Exchange], method: str, having: str = "") -> Exchange:
    """Return the one recorded request of this method whose query has a word."""
    (found,) = [one for one in exchanges if one["method"] == method and having in one["target"]]
    return found


def replay(server: GcsServer, exchange: Exchange, **changed: object) -> httpx.Response:
    """Send a recorded request again. changed: values of its query that are others here."""
    split = urlsplit(exchange["target"])
    query = {**dict(parse_qsl(split.query)), **{name: str(value) for name, value in changed.items()}}
    kind = exchange["headers"].get("content-type")
    return httpx.request(
        exchange["method"],
        f"{server.url}{split.path}?{urlencode(query)}",
        content=exchange["body"].encode(),
        headers={} if kind is None else {"Content-Type": kind},
    )


def put(server: GcsServer, resource: dict[str, Any], name: str = OBJECT) -> dict[str, Any]:
    """Insert a recorded object, empty and with its descriptions; give it as the server shows it."""
    kept = {key: resource[key] for key in ("metadata", "cacheControl", "contentType") if key in resource}
    body = (
        f"--b\r\nContent-Type: application/json\r\n\r\n{json.dumps(kept)}\r\n"
        "--b\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--b--\r\n"
    )
    answer = httpx.post(
        f"{server.url}/upload/storage/v1/b/{BUCKET}/o",
        params={"uploadType": "multipart", "name": name, "ifGenerationMatch": "0"},
        headers={"Content-Type": "multipart/related; boundary=b"},
        content=body.encode(),
    )
    answer.raise_for_status()
    return look(server, name)


def look(server: GcsServer, name: str = OBJECT) -> dict[str, Any]:
    """Return the object; an empty one if there is none."""
    answer = httpx.get(f"{server.url}/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}")
    said: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
    return said


def go_reads(text: str) -> float:
    """Parse `expires_at` as the Go port does: ParseFloat, 0 for what is not a number, whole milliseconds (query.go)."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    return int(value * 1000) / 1000


def ruby_reads(text: str) -> float:
    """Parse `expires_at` as the gem does: String#to_f, the leading number, 0 if there is none (lock.rb)."""
    found = re.match(r"\s*[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", text)
    return float(found[0]) if found else 0.0
