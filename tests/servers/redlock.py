"""Three or five independent Redis servers: the masters of a Redlock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstead.stores import url
from lockstead.stores.port import Store
from tests.servers.redis import RedisServer

PATIENT = "restart_delay=0&master_limit=5"
"""The masters of a test have just started, and must vote at once; on a busy machine none must seem unavailable."""

WRITES = ("create", "replace", "extend", "amend", "remove", "undo", "copy")


class RedlockPlace:
    """Independent masters; every space has its own prefix."""

    scheme = "redlock"
    is_fifo = False
    wakes = False
    is_durable = False
    cycles = 1000

    def __init__(self, directory: Path, masters: int = 3) -> None:
        self.servers = [RedisServer(directory / str(number)).start() for number in range(masters)]

    @property
    def ports(self) -> Sequence[int]:
        """Return the ports of the masters."""
        return [server.port for server in self.servers]

    def url(self, space: str, *, ports: Sequence[int] | None = None, options: str = PATIENT) -> str:
        """Return the URL of an empty store."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports or self.ports)
        return f"redlock://{hosts}/0?prefix={space}&{options}"

    def open(self, space: str, *, ports: Sequence[int] | None = None, options: str = PATIENT) -> Store:
        """Open it."""
        return url.open_store(self.url(space, ports=ports, options=options))

    def is_write(self, sent: bytes) -> bool:
        """Return whether the request calls a script operation that changes a record."""
        return b"EVAL" in sent and any(f"\r\n{word}\r\n".encode() in sent for word in WRITES)

    def left(self, space: str) -> list[str]:
        """Return the names of all keys, each with the number of its master."""
        found = []
        for number, server in enumerate(self.servers):
            with server.client() as client:
                found += [f"{number}/{raw.decode()}" for raw in client.scan_iter(match=f"{space}:*")]
        return sorted(found)

    def kill(self) -> None:
        """Kill all masters."""
        for server in self.servers:
            server.kill()

    def start(self) -> None:
        """Start them, without data."""
        for server in self.servers:
            server.start()

    def pause(self) -> None:
        """Stop all with SIGSTOP."""
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        """Continue all."""
        for server in self.servers:
            server.resume()

    def stop(self) -> None:
        """Stop them."""
        for server in self.servers:
            server.stop()
