"""A proxy that notes every request to a server and its response, byte for byte.

It leaves out credentials, and headers that are irrelevant for the lock.
"""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

KEPT_HEADERS = ("content-type", "user-agent", "x-goog-api-client", "x-goog-upload-protocol", "x-goog-upload-command")
HOP = ("transfer-encoding", "connection", "content-length")


class Tap:
    """A way to a server on which everything is noted: `with Tap(server.url) as tap: ... tap.url, tap.taken()`."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._lock = threading.Lock()
        self._exchanges: list[dict[str, Any]] = []
        tap = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                tap._pass_on(self)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = do_HEAD = _pass

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Say nothing of clients that hang up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def taken(self) -> list[dict[str, Any]]:
        """Return what was noted since the last call."""
        with self._lock:
            taken, self._exchanges = self._exchanges, []
            return taken

    def _pass_on(self, asked: BaseHTTPRequestHandler) -> None:
        body = _body(asked)
        way = http.client.HTTPConnection(self._target.hostname or "", self._target.port, timeout=60)
        headers = {name: value for name, value in asked.headers.items() if name.lower() not in HOP}
        way.request(asked.command, asked.path, body or None, headers)
        answer = way.getresponse()
        content = answer.read()
        noted = {
            "method": asked.command,
            "target": asked.path,
            "headers": {name.lower(): value for name, value in headers.items() if name.lower() in KEPT_HEADERS},
            "body": body.decode("utf-8", "replace"),
            "status": answer.status,
            "answer": _readable(content),
        }
        with self._lock:
            self._exchanges.append(noted)
        asked.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                asked.send_header(name, value)
        if answer.status not in (204, 304):
            asked.send_header("Content-Length", str(len(content)))
        asked.end_headers()
        if asked.command != "HEAD":
            asked.wfile.write(content)
        way.close()


def _body(asked: BaseHTTPRequestHandler) -> bytes:
    if asked.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
    pieces = []
    while size := int(asked.rfile.readline().split(b";")[0], 16):
        pieces.append(asked.rfile.read(size))
        asked.rfile.readline()
    asked.rfile.readline()
    return b"".join(pieces)


def _readable(content: bytes) -> Any:
    text = content.decode("utf-8", "replace")
    try:
        said = json.loads(text)
    except ValueError:
        return text
    if isinstance(said, dict):
        said.pop("selfLink", None)
        said.pop("mediaLink", None)
    return said
