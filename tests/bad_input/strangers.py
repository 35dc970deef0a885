"""Who may listen behind a port instead of the server that a URL means. Each answers as its kind does; loopback only."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.servers.base import free_port
from tests.servers.redis import certificate

HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsorry\n"
)
MAIL: Final = b"220 mail.example.org ESMTP\r\n"
REDIS: Final = b"-ERR unknown command\r\n"


class Stranger:
    """A server that greets, answers whatever is said with the same words, and hangs up; silent where it has none."""

    def __init__(self, greeting: bytes = b"", answer: bytes = b"", context: ssl.SSLContext | None = None) -> None:
        self._greeting, self._answer, self._context = greeting, answer, context
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="stranger", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _address = self._listening.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), name="stranger", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            connection.settimeout(10)
            talk = connection if self._context is None else self._context.wrap_socket(connection, server_side=True)
            with talk:
                talk.sendall(self._greeting)
                while talk.recv(65536):
                    if self._answer:
                        talk.sendall(self._answer)
                        return

    def close(self) -> None:
        """Hang up on everybody."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)
        for connection in self._open:
            connection.close()


@contextmanager
def strangers(directory: Path) -> Iterator[dict[str, int]]:
    """Start one of each kind; give their ports by name."""
    made, key = certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    kinds = {
        "a web server": Stranger(answer=HTTP),
        "a mail server": Stranger(greeting=MAIL, answer=b"502 what?\r\n"),
        "a Redis": Stranger(answer=REDIS),
        "a server that says nothing": Stranger(),
        "a server behind TLS": Stranger(answer=HTTP, context=context),
    }
    try:
        yield {"nobody": free_port()} | {name: stranger.port for name, stranger in kinds.items()}
    finally:
        for stranger in kinds.values():
            stranger.close()
