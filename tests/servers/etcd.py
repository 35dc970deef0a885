"""An etcd for tests, and stores on it."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstead.stores import url as urls
from lockstead.stores.port import Store
from tests.servers.base import Server, free_port, needed


class Etcd(Server):
    """One member. peers: name to loopback port of all members of its cluster, including itself."""

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        name: str = "one",
        peers: dict[str, int] | None = None,
        options: Sequence[str] = (),
        scheme: str = "http",
    ) -> None:
        super().__init__(directory, port)
        self._program = needed("etcd")
        self.name = name
        self.scheme = scheme
        self._peers = peers or {name: free_port()}
        self._options = list(options)

    def command(self) -> Sequence[str]:
        peer = f"http://127.0.0.1:{self._peers[self.name]}"
        client = f"{self.scheme}://127.0.0.1:{self.port}"
        return [
            self._program,
            *("--name", self.name, "--data-dir", str(self.directory / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            "--initial-cluster",
            ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in self._peers.items()),
            *("--log-level", "error"),
            *self._options,
        ]

    def is_ready(self) -> bool:
        if self.scheme != "http":
            return super().is_ready()
        try:
            return bool(int(self.ask("maintenance/status").get("leader", "0")))
        except urllib.error.HTTPError as refusal:
            # from 3.6 on, the status also requires authentication
            return b"user name is empty" in refusal.read()
        except (OSError, ValueError):
            return False

    def ask(self, path: str, body: dict[str, Any] | None = None, *, token: str = "") -> dict[str, Any]:
        """Send a request to the gateway directly; OSError if it does not answer, urllib's HTTPError for a refusal."""
        return ask(self.port, path, body, token=token)


def ask(port: int, path: str, body: dict[str, Any] | None = None, *, token: str = "") -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v3/{path}", json.dumps(body or {}).encode(), headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        said: dict[str, Any] = json.loads(answer.read())
    return said


def key(text: str) -> str:
    return b64encode(text.encode()).decode()


def keys_below(port: int, prefix: str) -> dict[str, dict[str, Any]]:
    """Return the server's entry of every key that begins with a prefix, by the key's text."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    shown = ask(port, "kv/range", {"key": key(prefix), "range_end": key(end)})
    return {b64decode(item["key"]).decode(): item for item in shown.get("kvs", ())}


def leases(port: int) -> set[str]:
    """Return the ids of all leases."""
    return {one["ID"] for one in ask(port, "lease/leases").get("leases", ())}


class EtcdPlace:
    """One member, for many tests: each space is a prefix."""

    scheme = "etcd"
    is_fifo = True
    wakes = True
    is_durable = True
    cycles = 1000

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.server = Etcd(directory).start()

    @property
    def ports(self) -> Sequence[int]:
        return [self.server.port]

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        return f"etcd://127.0.0.1:{(ports or self.ports)[0]}/{space}"

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        return urls.open_store(self.url(space, ports=ports))

    def is_write(self, sent: bytes) -> bool:
        """Return whether the request is a transaction, put, delete or lease request; a `Read` is a range request."""
        head, _, _rest = sent.partition(b"\r\n")
        return head.startswith((b"POST /v3/kv/txn", b"POST /v3/lease/", b"POST /v3/kv/put", b"POST /v3/kv/deleterange"))

    def left(self, space: str) -> list[str]:
        return sorted(keys_below(self.server.port, f"{space}/"))

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def stop(self) -> None:
        self.server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
