"""A faulty Cloud Storage: a proxy in front of a healthy server, which changes requests or responses in one way.

Each way is a class. All else passes unchanged, so that a test can name all that must be found.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode

from gcs_emulator import GcsServer


@dataclass(frozen=True)
class Asked:
    """A request on its way. path is still encoded."""

    method: str
    path: str
    query: dict[str, Any]
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def is_insert(self) -> bool:
        return self.path.startswith("/upload/")

    @property
    def is_on_object(self) -> bool:
        return "/o/" in self.path

    def without(self, name: str) -> Asked:
        return replace(self, query={key: value for key, value in self.query.items() if key != name})


@dataclass(frozen=True)
class Said:
    """An answer on its way back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Wrong:
    """Nothing is wrong: override what bends."""

    server: GcsServer

    def bend(self, asked: Asked) -> Asked | Said:
        return asked

    def twist(self, asked: Asked, said: Said) -> Said:
        return said

    def ask(self, asked: Asked) -> Said:
        """Ask the healthy server."""
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            target = f"{asked.path}?{urlencode(asked.query, doseq=True)}" if asked.query else asked.path
            connection.request(asked.method, target, asked.body or None, asked.headers)
            response = connection.getresponse()
            return Said(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def current(self, asked: Asked) -> dict[str, Any] | None:
        """Look at the object that a request is about."""
        name = asked.path.rpartition("/o/")[2]
        path = f"/storage/v1/b/bucket/o/{name}"
        if asked.is_insert:
            about = json.loads(asked.body.split(b"\r\n\r\n", 2)[1].split(b"\r\n--")[0])
            path = f"/storage/v1/b/bucket/o/{about['name'].replace('/', '%2F')}"
        said = self.ask(Asked("GET", path, {}, b""))
        return json.loads(said.body) if said.status == 200 else None


class Deaf(Wrong):
    """Ignores one precondition of one kind of request."""

    def __init__(self, method: str, name: str, *, absent: bool = False) -> None:
        self.method, self.name, self.absent = method, name, absent

    def bend(self, asked: Asked) -> Asked | Said:
        is_meant = asked.method == self.method and (asked.is_insert or asked.is_on_object)
        if is_meant and (asked.query.get(self.name) == "0") == self.absent:
            return asked.without(self.name)
        return asked


class Hasty(Wrong):
    """Judges the preconditions of one kind of request first, and carries it out some time later."""

    def __init__(self, method: str) -> None:
        self.method = method

    def bend(self, asked: Asked) -> Asked | Said:
        if asked.method != self.method or not (asked.is_insert or asked.is_on_object):
            return asked
        found = self.current(asked)
        if found is None and not asked.is_insert:
            return asked
        now = found or {"generation": "0", "metageneration": "0"}
        for parameter, shown in (("ifGenerationMatch", "generation"), ("ifMetagenerationMatch", "metageneration")):
            if asked.query.get(parameter, now[shown]) != now[shown]:
                return Said(412, {}, b"{}")
        time.sleep(0.2)
        return asked.without("ifGenerationMatch").without("ifMetagenerationMatch")


class Replacing(Wrong):
    """Replaces all metadata instead of merging those of a PATCH."""

    def bend(self, asked: Asked) -> Asked | Said:
        return replace(asked, method="PUT") if asked.method == "PATCH" else asked


class Nullproof(Wrong):
    """Keeps a metadata key that is null in a PATCH."""

    def bend(self, asked: Asked) -> Asked | Said:
        if asked.method != "PATCH":
            return asked
        changes = json.loads(asked.body)
        metadata = {key: value for key, value in changes["metadata"].items() if value is not None}
        return replace(asked, body=json.dumps({"metadata": metadata}).encode())


class Twisted(Wrong):
    """Bends what answers show of objects."""

    def shown(self, resource: dict[str, Any]) -> dict[str, Any]:
        return resource

    def twist(self, asked: Asked, said: Said) -> Said:
        if said.status != 200 or not said.body.startswith(b"{"):
            return said
        body = json.loads(said.body)
        if body.get("kind") == "storage#object":
            body = self.shown(body)
        elif "items" in body:
            body["items"] = [self.shown(one) for one in body["items"]]
        return replace(said, body=json.dumps(body).encode())


class Timeless(Twisted):
    """Shows the time of the creation as the time of the last change."""

    def shown(self, resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "updated": resource["timeCreated"]}


class Uncounted(Twisted):
    """Does not count metagenerations."""

    def shown(self, resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "metageneration": "1"}


class Recurring(Twisted):
    """Returns generation 7 for every object."""

    def shown(self, resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "generation": "7"}

    def bend(self, asked: Asked) -> Asked | Said:
        if asked.query.get("ifGenerationMatch") != "7":
            return asked
        now = self.current(asked)
        return replace(asked, query={**asked.query, "ifGenerationMatch": now["generation"] if now else "1"})


class Mumbling(Wrong):
    """Answers a PATCH with something that is not an object."""

    def twist(self, asked: Asked, said: Said) -> Said:
        is_done = asked.method == "PATCH" and said.status == 200
        return replace(said, body=b'{"name": "x"}') if is_done else said


class Shrugging(Wrong):
    """Does not report missing objects."""

    def twist(self, asked: Asked, said: Said) -> Said:
        return replace(said, body=b"") if said.status == 404 and asked.is_on_object else said


class Forgetful(Wrong):
    """Leaves objects with a blank in their names out of listings."""

    def twist(self, asked: Asked, said: Said) -> Said:
        if not asked.path.endswith("/o") or said.status != 200 or asked.is_insert:
            return said
        body = json.loads(said.body)
        body["items"] = [one for one in body.get("items", []) if "%20" not in one["name"]]
        return replace(said, body=json.dumps(body).encode())


class Keeping(Wrong):
    """Says that a DELETE was carried out, and keeps the object."""

    def bend(self, asked: Asked) -> Asked | Said:
        return Said(204, {}, b"") if asked.method == "DELETE" and self.current(asked) else asked


class Unasked(Wrong):
    """Knows no testIamPermissions."""

    def bend(self, asked: Asked) -> Asked | Said:
        return Said(404, {}, b"Not Found") if "/iam/" in asked.path else asked


class Conditional(Wrong):
    """Grants nothing on the bucket itself, and everything on its objects."""

    def bend(self, asked: Asked) -> Asked | Said:
        answer = b'{"kind": "storage#testIamPermissionsResponse"}'
        return Said(200, {}, answer) if "/iam/" in asked.path else asked


@contextmanager
def before(server: GcsServer, wrong: Wrong) -> Iterator[str]:
    """Put something wrong before a healthy server; give the URL to ask."""
    wrong.server = server

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet, or each answer waits for an acknowledgement

        def answer(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {"Content-Type": self.headers.get("Content-Type", "")}
            # a test of permissions repeats its parameter
            pairs = parse_qsl(query)
            told = {key: [value for name, value in pairs if name == key] for key, _ in pairs}
            flat = {key: values[0] if len(values) == 1 else values for key, values in told.items()}
            asked = Asked(self.command, path, flat, body, headers)
            bent = wrong.bend(asked)
            # bent requests are told apart by what was asked, not by what it became
            said = wrong.twist(asked, bent if isinstance(bent, Said) else wrong.ask(bent))
            self.send_response_only(said.status)
            if "Date" in said.headers or isinstance(bent, Said):
                self.send_header("Date", said.headers.get("Date") or self.date_time_string())
            self.send_header("Content-Type", said.headers.get("Content-Type", "application/json"))
            if said.status != 204:
                self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    class Front(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """A client that leaves is not an error."""

    front = Front(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield f"http://127.0.0.1:{front.server_address[1]}"
    finally:
        front.shutdown()
        front.server_close()
        serving.join()
