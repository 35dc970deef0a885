"""An HTTP server in front of the bucket, which redirects apt and dnf to the current version.

    /apt/<path>              redirect into the version that the pointer names, read for each request
    /yum/<path>              likewise
    /yum/mirrorlist          the URL of the current version first, then the redirecting one
    /apt/versions/7/<path>   the object itself, for buckets that are not public

apt stays in the version it was redirected to for a whole update. dnf requests each file anew, so it could get
`repomd.xml` from one version and its signature from the next; the mirror list prevents that. When that version has been
pruned, dnf continues with the second URL, where every package still is.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import quote, unquote, urlsplit

from examples.publishing.bucket import Bucket
from examples.publishing.errors import BucketError, NotFound, Refused
from examples.publishing.layout import Layout, number_of


class Front:
    """An HTTP server on loopback, for reading: `with Front(bucket, {"apt": layout}) as front: front.url`.

    objects_url: the URL, ending in a slash, at which the bucket's objects are readable without credentials; None serves
    them through this server. It caches nothing.
    """

    def __init__(
        self, bucket: Bucket, layouts: Mapping[str, Layout], *, objects_url: str | None = None, port: int = 0
    ) -> None:
        self._bucket = bucket
        self._layouts = dict(layouts)
        self._objects_url = objects_url
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # with Nagle's algorithm each response would wait for the acknowledgement of the previous one
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                status, headers, content = front.answer(unquote(urlsplit(self.path).path))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_HEAD = do_GET  # noqa: N815 # http.server looks for this name

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # as it is inherited
                """Do not log requests."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore a client that disconnects."""

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="front", daemon=True)

    @property
    def url(self) -> str:
        """Return its URL, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self) -> None:
        """Serve until interrupted."""
        self._thread.join()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content for an unescaped path."""
        kind, _, rest = path.removeprefix("/").partition("/")
        layout = self._layouts.get(kind)
        if layout is None or not rest or ".." in rest.split("/"):
            return 404, {}, b"not found\n"
        try:
            return self._answer(kind, layout, rest)
        except NotFound:
            return 404, {}, b"not found\n"
        except (BucketError, Refused) as error:
            return 503, {"Retry-After": "1"}, f"{error}\n".encode()

    def _answer(self, kind: str, layout: Layout, rest: str) -> tuple[int, dict[str, str], bytes]:
        if re.fullmatch(r"versions/[1-9][0-9]*/.+", rest):
            return 200, {"Content-Type": "application/octet-stream"}, self._bucket.read(layout.prefix + rest)
        number = number_of(self._bucket.read(layout.pointer), layout.pointer)
        if number == 0:
            return 404, {}, b"nothing published yet\n"
        base = f"{self._objects_url}{quote(layout.prefix)}" if self._objects_url else f"{self.url}/{kind}/"
        version = f"{base}versions/{number}/"
        if rest == "mirrorlist":
            return 200, {"Content-Type": "text/plain"}, f"{version}\n{self.url}/{kind}/\n".encode()
        return 302, {"Location": version + quote(rest), "Cache-Control": "no-store"}, b""
