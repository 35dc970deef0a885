"""The server: a port, a store, faults and a request log; started and stopped by a test.

Stored objects survive a stop; a request that waits in a fault does not.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable
from types import TracebackType

from gcs_emulator.api import Api
from gcs_emulator.clock import Clock
from gcs_emulator.control import Control
from gcs_emulator.errors import ApiError
from gcs_emulator.exchange import Exchange
from gcs_emulator.faults import Faults, Injected
from gcs_emulator.http_messages import Answer, MalformedRequest, encoded, read_request
from gcs_emulator.listener import Connections, Listener, bound, join
from gcs_emulator.objects import Store, StoredObject
from gcs_emulator.request_log import RequestLog


class GcsServer:
    """A storage server on loopback for tests: `with GcsServer(buckets=["b"]) as server: ... server.url`.

    clock returns seconds since the epoch and is used for all times of the server. shuffled makes generations unique but
    not increasing, which is all that the real service guarantees. It stores nothing on disk, does not identify callers
    (a permission is denied to all or to none), and is not meant to be reachable from other machines.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        buckets: Iterable[str] = (),
        clock: Clock = time.time,
        shuffled: bool = False,
    ) -> None:
        self.host = host
        self.faults = Faults()
        self.requests = RequestLog()
        self.store = Store(clock, mutation_gap=lambda: self.faults.mutation_gap, shuffled=shuffled)
        self._clock = clock
        self._wanted_port = port
        self._exchange = Exchange(Api(self.store, lambda: self.faults.denied), self.faults, self.requests, clock)
        self._control = Control(self.faults, self.requests, self._pause_for)
        self._connections = Connections(self._serve)
        self._life = threading.RLock()
        self._listener: Listener | None = None
        self._reservation: socket.socket | None = None
        self._black_hole: Injected | None = None
        for name in buckets:
            self.create_bucket(name)

    # address and contents

    @property
    def port(self) -> int:
        """The port it listens on, unchanged after a restart; raises RuntimeError before the first start."""
        if not self._wanted_port:
            raise RuntimeError("the server has no port before it was started")
        return self._wanted_port

    @property
    def url(self) -> str:
        """The URL for clients, without a trailing slash."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def create_bucket(self, name: str, **fields: object) -> None:
        """Create a bucket if it does not exist; fields are those of a bucket resource (`versioning={"enabled": True}`).

        `retentionPolicy={"retentionPeriod": "3600"}` and `defaultEventBasedHold=True` take effect: the objects they
        protect can be patched, but neither deleted nor overwritten.
        """
        with contextlib.suppress(ApiError):
            self.store.create_bucket(name, fields)

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        """Return a bucket's objects by name, without a request."""
        return self.store.names(bucket)

    # life

    def start(self) -> None:
        """Start listening; raises OSError if the port is taken."""
        with self._life:
            if self._listener is None and self._reservation is None:
                self.faults.open()
                self._listen()

    def stop(self) -> None:
        """Cut all connections and close the port; requests that wait in a fault are dropped without commit."""
        with self._life:
            self._unlisten()
            if self._reservation is not None:
                self._reservation.close()
                self._reservation = None
            self.faults.close()
            self._fill_black_hole()
            cut = self._connections.cut()
        # not under the lock, because one of these threads may be waiting for it
        join(cut)

    def restart(self) -> None:
        """Stop and start again on the same port, with the same objects."""
        self.stop()
        self.start()

    def __enter__(self) -> GcsServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # pausing

    def pause(self, how: str = "refuse") -> None:
        """Make the server unreachable until `resume`.

        `refuse`: connections are cut and new ones refused. `hang`: requests are read but get no response; they are
        dropped without commit when the pause ends.
        """
        if how not in {"refuse", "hang"}:
            raise ValueError(f"how must be 'refuse' or 'hang', not {how!r}")
        with self._life:
            if how == "hang" and self._black_hole is None:
                self._black_hole = self.faults.inject_first("hang")
            elif how == "refuse" and self._listener is not None:
                self._unlisten()
                self._reservation = bound(self.host, self.port)
                self._connections.cut()

    def resume(self) -> None:
        """Make the server reachable again, on the same port."""
        with self._life:
            self._fill_black_hole()
            if self._reservation is not None:
                self._reservation.close()
                self._reservation = None
                self._listen()

    def _pause_for(self, seconds: float, how: str) -> None:
        self.pause(how)
        resuming = threading.Timer(seconds, self.resume)
        resuming.daemon = True
        resuming.start()

    def _fill_black_hole(self) -> None:
        if self._black_hole is not None:
            self.faults.discard(self._black_hole)
            self._black_hole = None

    def _listen(self) -> None:
        self._listener = Listener(self.host, self._wanted_port, self._connections.add)
        self._wanted_port = self._listener.port

    def _unlisten(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    # one connection

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            keeps_alive = True
            while keeps_alive:
                try:
                    request = read_request(stream, connection.sendall)
                except MalformedRequest:
                    connection.sendall(encoded(Answer(400), date=self.faults.date(self._clock()), closes=True))
                    return
                if request is None:
                    return
                after = None
                if request.path.startswith("/_"):
                    answer, after = self._control.answer(request)
                else:
                    found = self._exchange.answer(request)
                    if found is None:
                        return
                    answer = found
                keeps_alive = request.keeps_alive
                date = self.faults.date(self._clock())
                connection.sendall(
                    encoded(answer, date=date, head_only=request.method == "HEAD", closes=not keeps_alive)
                )
                if after is not None:
                    after()
