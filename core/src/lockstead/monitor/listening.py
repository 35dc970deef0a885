"""The address at which a command serves HTTP, and who may ask: loopback alone, unless a token or a flag says more."""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

TOKEN_BYTES_MIN: Final = 16
TOKEN_BYTES_MAX: Final = 1024

UNREAD_MS: Final = 30_000
"""Milliseconds for which a client may leave everything unread; then its connection is cut."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse HOST:PORT or [IPV6]:PORT; ValueError if it is neither."""
        host, colon, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        bare = host[1:-1] if is_bracketed else host
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
        if not (colon and bare and bare.isprintable() and is_port) or (":" in bare and not is_bracketed):
            raise ValueError(f"an address is HOST:PORT, as in '127.0.0.1:9095' or '[::1]:9095', not {text[:60]!r}")
        return cls(bare, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def bind(self) -> socket.socket:
        """Return a socket that listens there; ValueError if that is not possible."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _kind, _protocol, _name, address = found[0]
            bound = socket.create_server(address, family=family, backlog=128)
        except (OSError, UnicodeError) as error:
            number = None if isinstance(error, UnicodeError | socket.gaierror) else error.errno
            why = "the host cannot be resolved" if number is None else os.strerror(number)
            raise ValueError(f"cannot listen at {self}: {why}; choose another address (--listen)") from None
        bound.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # each connection has it from here; the kernel holds what is not read
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        return bound

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_token(path: str) -> str:
    """Return the token in a file; ValueError if others can read the file, or if it has no usable token."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"the token file {path!r} cannot be read: {error.strerror}") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(f"the token file {path!r} is open to other users: chmod 600 {path!r}")
    return checked_token(raw.strip().decode("latin-1"), f"the token file {path!r} needs one line")


def checked_token(token: str, needs: str) -> str:
    """Return a token; ValueError if it is not usable. needs: the beginning of the message."""
    if not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX or not all("!" <= letter <= "~" for letter in token):
        raise ValueError(
            f"{needs} of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable ASCII characters without blanks, as of: "
            "openssl rand -hex 32"
        )
    return token


def is_bearer(header: str | None, token: str) -> bool:
    """Whether an Authorization header has the token; compared in constant time."""
    scheme, _, given = (header or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
