"""The listening socket and its connections.

Must not know the protocol. One thread accepts, and one thread serves each connection; all are daemon threads, and
`close` joins them for a limited time.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable

BACKLOG = 4096
BIND_PATIENCE = 5.0
JOIN_PATIENCE = 5.0


class Connections:
    """The open connections and the threads that serve them; safe to share between threads."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}

    def add(self, connection: socket.socket) -> None:
        """Serve a connection in a new thread."""
        thread = threading.Thread(target=self._run, args=(connection,), name="gcs-server-connection", daemon=True)
        with self._lock:
            self._open[connection] = thread
        thread.start()

    def _run(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        except OSError:
            pass  # the client is gone, or the connection was cut
        finally:
            # only this thread closes it: a descriptor closed by another thread could already be reused
            with self._lock:
                self._open.pop(connection, None)
                connection.close()

    def cut(self) -> list[threading.Thread]:
        """Shut down all connections; return the threads that still serve them."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            return list(self._open.values())


class Listener:
    """A listening socket with its accepting thread."""

    def __init__(self, host: str, port: int, accepted: Callable[[socket.socket], None]) -> None:
        self._accepted = accepted
        self._socket = bound(host, port)
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="gcs-server-accept", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while all(key.fileobj is not self._woken for key, _ in selector.select()):
                try:
                    connection, _ = self._socket.accept()
                except OSError:
                    continue  # the client has closed already, or there are no free descriptors
                connection.setblocking(True)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._accepted(connection)

    def close(self) -> None:
        """Stop accepting; the port is free afterwards."""
        self._wake.send(b"x")
        self._thread.join(JOIN_PATIENCE)
        self._socket.close()
        self._wake.close()
        self._woken.close()


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the port but does not listen, so that connections are refused.

    If the port is taken, as it may be just after it was closed, it retries for some seconds and then raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until = time.monotonic() + BIND_PATIENCE
    while True:
        taken = socket.socket(family, socket.SOCK_STREAM)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host, port))
        except OSError:
            taken.close()
            if not port or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return taken


def join(threads: list[threading.Thread]) -> None:
    """Wait for threads to end, for a limited total time."""
    until = time.monotonic() + JOIN_PATIENCE
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
