"""Watches of keys, many on one connection: streams of the gateway, read by one event loop.

A stream is one request whose body creates all of its watches, and whose reply does not end. New watches start a new
stream, which takes over those of smaller ones, each from the revision after the last that it has seen: so they need few
connections and miss nothing. Must not know who watches, nor for what.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, TypeAlias

import h11

from lockstead.errors import StoreUnavailable
from lockstead.stores.etcd.aio_connection import AsyncConnection, opened
from lockstead.stores.etcd.encoding import Json, b64
from lockstead.stores.etcd.http1 import head_of
from lockstead.stores.etcd.members import Members

LINE_BYTES_MAX: Final = 1 << 20

BEGINS_WITHIN: Final = 5.0
"""Seconds for connecting a stream and for the confirmation of its watches."""

GATHERS: Final = 0.1
"""Seconds between two new streams; watches added in between share the second one."""

YOUNG: Final = 10.0
"""Seconds for which the watches of a stream are cheap to start again: etcd reads all revisions since then."""

STREAMS_MAX: Final = 32
"""Streams beyond which the smallest is taken over, however old."""

KEEPS_ALIVE: Final = ((("TCP_KEEPIDLE", "TCP_KEEPALIVE"), 30), (("TCP_KEEPINTVL",), 10), (("TCP_KEEPCNT",), 3))
"""A stream may be silent for hours, so TCP checks whether its peer can still be reached."""

Span: TypeAlias = "tuple[str, str | None]"
"""A key and the end of the range; None for only that key."""

MALFORMED: Final = (h11.ProtocolError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Watch:
    """The changes of a key or range since a revision; none are received once it is broken.

    has_changed is reset by the reader. state is the revision of the last change, None if it was a deletion. stream: the
    one that received it last.
    """

    __slots__ = ("_waker", "has_changed", "is_broken", "revision", "span", "state", "stream")

    def __init__(self, span: Span, revision: int, waker: asyncio.Event) -> None:
        """Waker is set at every change. revision: the first one to report."""
        self.span = span
        self.revision = revision
        self.has_changed = self.is_broken = False
        self.state: str | None = None
        self.stream: _Stream | None = None
        self._waker = waker

    def received(self, revision: int, events: list[Json]) -> None:
        """Note events received at a revision of the store; no events mean no change up to it."""
        if events:
            kept = [str(event["kv"]["mod_revision"]) for event in events if event.get("type") != "DELETE"]
            revision = max(int(event["kv"]["mod_revision"]) for event in events)
            self.state, self.has_changed = kept[-1] if kept else None, True
            self._waker.set()
        self.revision = max(self.revision, revision + 1)

    def broke(self) -> None:
        """Note that nothing more will be received: closed, refused or compacted."""
        self.is_broken = True
        self._waker.set()


class _Stream:
    """One connection and its watches; live are those that still have a reader."""

    def __init__(self, watches: Iterable[Watch]) -> None:
        self.began_at = time.monotonic()
        self.member = ""
        self.live = dict.fromkeys(watches)
        self._asked = list(self.live)
        self._by_id: dict[str, Watch] = {}
        self._confirmed = 0
        self._rest = b""
        self._parser = h11.Connection(h11.CLIENT)

    async def run(self, members: Members) -> None:
        """Watch until the stream ends for any reason; then all live watches are broken."""
        ends_at = time.monotonic() + BEGINS_WITHIN
        try:
            connection = await self._connected(members)
            try:
                _keep_alive(connection.raw)
                await connection.send(self._request(members.token), ends_at)
                while self._parsed(await connection.receive(ends_at)):
                    if self._confirmed == len(self._asked):
                        ends_at = math.inf
            finally:
                await connection.aclose()
        except (OSError, StoreUnavailable, *MALFORMED):  # TimeoutError is one of the first
            pass
        finally:
            for watch in self.live:
                watch.broke()

    async def _connected(self, members: Members) -> AsyncConnection:
        failed, turns = OSError(), members.in_turn()
        for self.member in turns:
            try:
                return await opened(members.tls, self.member, time.monotonic() + BEGINS_WITHIN / (len(turns) + 1))
            except OSError as error:
                failed = error
        raise failed

    def _request(self, token: str | None) -> bytes:
        content = b"".join(map(_create, self._asked))
        # a member that has lost its leader says so, instead of staying silent; on a connection that is to be kept, the
        # gateway's HTTP server drops what it has not read of a request as soon as it answers the first part of it
        more = (("Grpc-Metadata-Hasleader", "true"), ("Connection", "close"))
        head = head_of(self.member, "/v3/watch", token, len(content), *more)
        for event in (head.event, h11.Data(data=content), h11.EndOfMessage()):
            self._parser.send(event)
        return head.written + content

    def _parsed(self, received: bytes) -> bool:
        """Read what was received; False if the stream has ended, which it should not."""
        self._parser.receive_data(received)
        while (event := self._parser.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Data):
                *lines, self._rest = (self._rest + event.data).split(b"\n")
                for line in filter(None, lines):
                    self._answered(json.loads(line)["result"])
                if len(self._rest) > LINE_BYTES_MAX:
                    return False
            elif not isinstance(event, h11.Response) or event.status_code != 200:
                return False
        return True

    def _answered(self, result: Json) -> None:
        watch_id = str(result.get("watch_id", "0"))
        if result.get("created"):
            # watches are confirmed in the order of the request
            watch = self._asked[self._confirmed]
            self._confirmed += 1
            self._by_id[watch_id] = watch
        watch = self._by_id[watch_id]
        if result.get("canceled"):
            if self.live.pop(watch, self) is not self:
                watch.broke()
        elif watch in self.live and (result.get("events") or not result.get("created")):
            watch.received(int(result["header"]["revision"]), result.get("events", []))


def _keep_alive(raw: socket.socket) -> None:
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for names, seconds in KEEPS_ALIVE:
            option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
            if option is not None:
                raw.setsockopt(socket.IPPROTO_TCP, option, seconds)


def _create(watch: Watch) -> bytes:
    key, end = watch.span
    wanted: Json = {"key": b64(key), "start_revision": str(watch.revision), "progress_notify": True}
    if end is not None:
        wanted["range_end"] = b64(end)
    return json.dumps({"create_request": wanted}).encode()


class Watches:
    """The watches of one event loop."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._fresh: dict[Watch, None] = {}
        self._streams: dict[_Stream, asyncio.Task[None]] = {}
        self._begins: asyncio.TimerHandle | None = None
        self._began_at = 0.0

    def add(self, span: Span, revision: int, waker: asyncio.Event) -> Watch:
        """Return a watch of what changes from a revision on; it sets the waker."""
        watch = Watch(span, revision, waker)
        self._add([watch])
        return watch

    def _add(self, watches: Iterable[Watch]) -> None:
        self._fresh.update(dict.fromkeys(watches))
        if self._begins is None and self._fresh:
            loop = asyncio.get_running_loop()
            self._begins = loop.call_at(max(loop.time(), self._began_at + GATHERS), self._begin)

    def remove(self, watch: Watch) -> None:
        """End a watch."""
        self._fresh.pop(watch, None)
        if watch.stream is not None:
            watch.stream.live.pop(watch, None)
            if not watch.stream.live:
                self._end(watch.stream)

    def follow(self) -> None:
        """Move the watches of a member that is not asked first any more: it may have failed silently."""
        first = self._members.in_turn()[0]
        for stream in [stream for stream in self._streams if stream.member not in ("", first)]:
            self._add(self._taken_over(stream))

    def _begin(self) -> None:
        self._begins = None
        self._began_at = asyncio.get_running_loop().time()
        watches, self._fresh = self._fresh, {}
        if not watches:
            return
        by_size = sorted(self._streams, key=lambda stream: len(stream.live))
        for stream in by_size:
            is_young = time.monotonic() - stream.began_at < YOUNG
            if (is_young and len(stream.live) <= len(watches)) or len(self._streams) >= STREAMS_MAX:
                watches.update(self._taken_over(stream))
        stream = _Stream(watches)
        for watch in watches:
            watch.stream = stream
        self._streams[stream] = asyncio.create_task(self._run(stream))

    def _taken_over(self, stream: _Stream) -> dict[Watch, None]:
        """End a stream, and return what it watched."""
        watches, stream.live = stream.live, {}
        self._end(stream)
        return watches

    def _end(self, stream: _Stream) -> None:
        task = self._streams.pop(stream, None)
        if task is not None:
            task.cancel()

    async def _run(self, stream: _Stream) -> None:
        try:
            await stream.run(self._members)
        finally:
            self._streams.pop(stream, None)
