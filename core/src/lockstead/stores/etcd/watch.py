"""How one watch of etcd's gateway is listened to: a stream that is read a moment at a time, by who waits.

httpcore closes a stream whose reading timed out, and a waiter has to look around every 50 ms: so this one request goes
out over a socket of its own, parsed by h11. Must not know who waits, nor for what.
"""

from __future__ import annotations

import json
import ssl
from typing import Final

import h11

from lockstead.stores.bounds import Bounds
from lockstead.stores.etcd.sockets import connected
from lockstead.stores.etcd.wire import Json, b64

LINE_BYTES_MAX: Final = 1 << 20


class Broken(Exception):  # noqa: N818 - an answer: whoever waits looks again
    """The watch tells nothing any more: closed, refused, compacted, or no stream of etcd's."""


class Watch:
    """A watch on a range of keys from a revision on, for one thread at a time. Promises nothing once it is broken."""

    def __init__(
        self, endpoint: str, tls: ssl.SSLContext | None, token: str | None, span: tuple[str, str | None], limit: float
    ) -> None:
        """Connect within `limit` seconds; Broken if that fails. endpoint is host:port; span is (key, end of range)."""
        self.span = span
        self._endpoint = endpoint
        self._token = token
        self._parser = h11.Connection(h11.CLIENT)
        self._rest = b""
        self._is_begun = False
        self._early: list[Json] = []
        try:
            self._socket = connected(endpoint, tls, Bounds(limit))
        except (OSError, ValueError) as error:
            raise Broken(str(error)) from error

    def begin(self, revision: int, limit: float) -> None:
        """Ask for every change from this revision on, and wait until etcd watches; Broken if it does not."""
        key, end = self.span
        bounds = Bounds(limit)
        wanted: Json = {"key": b64(key), "start_revision": str(revision)}
        if end is not None:
            wanted["range_end"] = b64(end)
        body = json.dumps({"create_request": wanted}).encode()
        headers = [
            ("Host", self._endpoint),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            # a member that has lost its leader says so, instead of staying silent
            ("Grpc-Metadata-Hasleader", "true"),
        ]
        if self._token:
            headers.append(("Authorization", self._token))
        request = h11.Request(method="POST", target="/v3/watch", headers=headers)
        try:
            self._socket.bounds = bounds
            sent = [self._parser.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
            self._socket.sendall(b"".join(part for part in sent if part))
        except OSError as error:
            raise Broken(str(error)) from error
        while not self._is_begun:
            if bounds.is_over:
                raise Broken("etcd did not begin to watch")
            # what changed between the look and the watch may come with its very beginning
            self._early += self._received(0.05)
        self._socket.bounds = None  # from here on there is no end to it, and each look takes what is there

    def changes(self, seconds: float) -> list[Json]:
        """Return the events that came within `seconds`, as soon as there are any; Broken if there will be none."""
        early, self._early = self._early, []
        return early or self._received(seconds)

    def _received(self, seconds: float) -> list[Json]:
        try:
            self._socket.settimeout(max(0.001, seconds))
            received = self._socket.recv(65536)
        except (TimeoutError, ssl.SSLWantReadError):
            return []
        except OSError as error:
            raise Broken(str(error)) from error
        try:
            self._parser.receive_data(received)
            return self._parsed()
        except (h11.ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Broken(str(error)) from error

    def _parsed(self) -> list[Json]:
        events: list[Json] = []
        while True:
            event = self._parser.next_event()
            if isinstance(event, h11.Response):
                if event.status_code != 200:
                    raise Broken(f"the watch was answered with {event.status_code}")
            elif isinstance(event, h11.Data):
                self._rest += event.data
                if len(self._rest) > LINE_BYTES_MAX:
                    raise Broken("a line without an end")
                *lines, self._rest = self._rest.split(b"\n")
                for line in filter(None, lines):
                    events += self._said(json.loads(line))
            elif event is h11.NEED_DATA:
                return events
            else:
                raise Broken("the stream has ended")

    def _said(self, body: Json) -> list[Json]:
        result = body.get("result")
        if not isinstance(result, dict) or result.get("canceled"):
            raise Broken(str(body.get("error") or result)[:300])
        self._is_begun = self._is_begun or bool(result.get("created"))
        return list(result.get("events", ()))

    def close(self) -> None:
        """End it."""
        self._socket.close()
