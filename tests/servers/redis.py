"""Real Redis servers for the tests: one, one with TLS, Sentinels with master and replicas, and a Cluster."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.stores.redis_scripts import ENROL, PASS_ON, READ, WRITING
from tests.servers.base import Server, needed


class RedisServer(Server):
    """A `redis-server` without persistence: what is killed comes back empty."""

    def __init__(self, directory: Path, port: int | None = None, *settings: str) -> None:
        super().__init__(directory, port)
        self.settings = settings
        self.program = needed("redis-server")

    def command(self) -> Sequence[str]:
        """Give the command line."""
        fixed = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.directory)]
        return [self.program, "--port", str(self.port), *fixed, *self.settings]

    def is_ready(self) -> bool:
        """Tell whether it answers a PING."""
        return self.says("PING") == b"+PONG\r\n"

    def says(self, *words: str) -> bytes:
        """Give the beginning of what it answers to a command, as it comes over the wire."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5.0) as wire:
                wire.sendall(f"*{len(words)}\r\n".encode() + b"".join(_word(word) for word in words))
                return wire.recv(65536)
        except OSError:
            return b""

    def client(self) -> Any:
        """Give a client of redis-py that bytes come back from."""
        import redis

        return redis.Redis(port=self.port, socket_timeout=20.0)


def _word(word: str) -> bytes:
    encoded = word.encode()
    return b"$%d\r\n%s\r\n" % (len(encoded), encoded)


class RedisPlace:
    """One server; every space has a prefix of its own."""

    scheme = "redis"
    is_fifo = False
    wakes = True
    is_durable = False
    cycles = 1000

    def __init__(self, directory: Path) -> None:
        self.server = RedisServer(directory).start()

    @property
    def ports(self) -> Sequence[int]:
        """Where it listens."""
        return (self.server.port,)

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        """Give the URL of an empty store."""
        return f"redis://127.0.0.1:{(ports or self.ports)[0]}/0?prefix={space}"

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        """Open it."""
        return url.open_store(self.url(space, ports=ports))

    def is_write(self, sent: bytes) -> bool:
        """Tell whether a script is called that changes a record."""
        return is_write(sent)

    def left(self, space: str) -> list[str]:
        """Name all keys but the counters of tokens, which outlive every lock, and all who wait."""
        with self.server.client() as client:
            return left(client, space)

    def kill(self) -> None:
        """End the server at once."""
        self.server.kill()

    def start(self) -> None:
        """Start it; it has forgotten everything."""
        self.server.start()

    def pause(self) -> None:
        """Let it stand still."""
        self.server.pause()

    def resume(self) -> None:
        """Let it go on."""
        self.server.resume()

    def stop(self) -> None:
        """Stop it for good."""
        self.server.stop()


def is_write(sent: bytes) -> bool:
    """Tell whether bytes on the wire call a script that changes a record."""
    if b"EVALSHA" in sent:
        return any(script.digest in sent for script in WRITING)
    return b"\r\nEVAL\r\n" in sent and not any(script.text in sent for script in (READ, ENROL, PASS_ON))


def left(client: Any, space: str) -> list[str]:
    """Name what stands under a prefix on one server: one entry for each key, and for each who waits."""
    found: list[str] = []
    for raw in client.scan_iter(match=f"{space}:*"):
        key = raw.decode()
        if key.endswith("}:waiters"):
            found += [f"{key}/{channel.decode()}" for channel in client.zrange(raw, 0, -1)]
        elif not key.endswith("}:token"):
            found.append(key)
    return sorted(found)
