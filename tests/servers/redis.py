"""Real Redis servers for the tests: one, one with TLS, Sentinels with master and replicas, and a Cluster."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.stores.redis.scripts import ENROL, PASS_ON, READ, WRITING
from tests.servers.base import Server, answers, free_port, needed


class RedisServer(Server):
    """A `redis-server` without persistence: after a kill it starts empty."""

    def __init__(self, directory: Path, port: int | None = None, *settings: str) -> None:
        super().__init__(directory, port)
        self.settings = settings
        self.program = needed("redis-server")

    def command(self) -> Sequence[str]:
        """Return the command line."""
        fixed = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.directory)]
        return [self.program, "--port", str(self.port), *fixed, *self.settings]

    def is_ready(self) -> bool:
        """Return whether it answers a PING."""
        return self.says("PING") == b"+PONG\r\n"

    def says(self, *words: str) -> bytes:
        """Send a command and return the beginning of the raw reply; empty if the server does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5.0) as wire:
                wire.sendall(f"*{len(words)}\r\n".encode() + b"".join(_word(word) for word in words))
                return wire.recv(65536)
        except OSError:
            return b""

    def client(self) -> Any:
        """Return a redis-py client that returns bytes."""
        import redis

        return redis.Redis(port=self.port, socket_timeout=20.0)


def _word(word: str) -> bytes:
    encoded = word.encode()
    return b"$%d\r\n%s\r\n" % (len(encoded), encoded)


class RedisPlace:
    """One server; every space has its own prefix."""

    scheme = "redis"
    is_fifo = False
    wakes = True
    is_durable = False
    cycles = 1000

    def __init__(self, directory: Path) -> None:
        self.server = RedisServer(directory).start()

    @property
    def ports(self) -> Sequence[int]:
        """Return the port on which it listens."""
        return (self.server.port,)

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        """Return the URL of an empty store."""
        return f"redis://127.0.0.1:{(ports or self.ports)[0]}/0?prefix={space}"

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        """Open it."""
        return url.open_store(self.url(space, ports=ports))

    def is_write(self, sent: bytes) -> bool:
        """Return whether the request calls a script that changes a record."""
        return is_write(sent)

    def left(self, space: str) -> list[str]:
        """Return the names of all waiters and all keys, except token counters, which outlive every lock."""
        with self.server.client() as client:
            return left(client, space)

    def kill(self) -> None:
        """Kill the server."""
        self.server.kill()

    def start(self) -> None:
        """Start it, without data."""
        self.server.start()

    def pause(self) -> None:
        """Stop it with SIGSTOP."""
        self.server.pause()

    def resume(self) -> None:
        """Continue it."""
        self.server.resume()

    def stop(self) -> None:
        """Stop it."""
        self.server.stop()


def is_write(sent: bytes) -> bool:
    """Return whether a request, as bytes, calls a script that changes a record."""
    if b"EVALSHA" in sent:
        return any(script.digest in sent for script in WRITING)
    return b"\r\nEVAL\r\n" in sent and not any(script.text in sent for script in (READ, ENROL, PASS_ON))


def left(client: Any, space: str) -> list[str]:
    """Return the names under a prefix on one server: one entry for each key, and for each waiter."""
    found: list[str] = []
    for raw in client.scan_iter(match=f"{space}:*"):
        key = raw.decode()
        if key.endswith("}:waiters"):
            found += [f"{key}/{channel.decode()}" for channel in client.zrange(raw, 0, -1)]
        elif not key.endswith("}:token"):
            found.append(key)
    return sorted(found)


# --- TLS ---------------------------------------------------------------------------------------------------------


class SecureRedisPlace(RedisPlace):
    """One server that accepts only TLS; its certificate is self-signed."""

    scheme = "rediss"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.certificate, key = certificate(directory)
        self.server = SecureRedisServer(directory, self.certificate, key).start()

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        """Return the URL of an empty store."""
        port = (ports or self.ports)[0]
        return f"rediss://127.0.0.1:{port}/0?prefix={space}&ssl_ca_certs={self.certificate}"


class SecureRedisServer(RedisServer):
    """A `redis-server` with a TLS port only."""

    def __init__(self, directory: Path, certificate: Path, key: Path) -> None:
        super().__init__(directory)
        self.certificate, self.key = certificate, key

    def command(self) -> Sequence[str]:
        """Return the command line."""
        files = ["--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key)]
        trust = ["--tls-ca-cert-file", str(self.certificate), "--tls-auth-clients", "no"]
        plain = super().command()
        return [plain[0], "--port", "0", "--tls-port", str(self.port), *plain[3:], *files, *trust]

    def is_ready(self) -> bool:
        """Return whether its port is open."""
        return answers(self.port)

    def client(self) -> Any:
        """Return a client of redis-py."""
        import redis

        return redis.Redis(port=self.port, ssl=True, ssl_ca_certs=str(self.certificate), socket_timeout=20.0)


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1, and return the paths of certificate and key."""
    made, key = directory / "server.crt", directory / "server.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run([needed("openssl"), "req", "-x509", *kind, *files, *subject], check=True, capture_output=True)
    return made, key


# --- Sentinel ----------------------------------------------------------------------------------------------------


class SentinelServer(RedisServer):
    """A Sentinel that watches one master, with short timeouts."""

    def __init__(self, directory: Path, master: RedisServer, quorum: int) -> None:
        super().__init__(directory)
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {directory}",
            f"sentinel monitor locks 127.0.0.1 {master.port} {quorum}",
            "sentinel down-after-milliseconds locks 1000",
            "sentinel failover-timeout locks 6000",
            "sentinel parallel-syncs locks 2",
        ]
        (directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        """Return the command line."""
        return [self.program, str(self.directory / "sentinel.conf"), "--sentinel"]


class SentinelPlace:
    """Three Sentinels, a master and two replicas."""

    scheme = "redis+sentinel"

    def __init__(self, directory: Path) -> None:
        quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        self.master = RedisServer(directory / "master", None, *quick).start()
        following = ("--replicaof", f"127.0.0.1 {self.master.port}", *quick)
        self.replicas = [RedisServer(directory / f"replica-{number}", None, *following) for number in (1, 2)]
        self.sentinels = [SentinelServer(directory / f"sentinel-{number}", self.master, 2) for number in (1, 2, 3)]
        for server in (*self.replicas, *self.sentinels):
            server.start()
        for replica in self.replicas:
            replica.until(
                lambda replica=replica: b"master_link_status:up" in replica.says("INFO", "replication"), "no link"
            )
        for sentinel in self.sentinels:
            sentinel.until(lambda sentinel=sentinel: self._knows_all(sentinel), "it does not know the others")

    @staticmethod
    def _knows_all(sentinel: RedisServer) -> bool:
        said = sentinel.says("SENTINEL", "MASTER", "locks").replace(b"\r\n", b" ")
        return all(
            re.search(rb"%b \$\d+ %b " % pair, said) for pair in ((b"num-slaves", b"2"), (b"num-other-sentinels", b"2"))
        )

    def url(self, space: str) -> str:
        """Return the URL of an empty store."""
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/locks/0?prefix={space}"

    def open(self, space: str) -> Store:
        """Open it."""
        return url.open_store(self.url(space))

    def stop(self) -> None:
        """Stop all."""
        for server in (*self.sentinels, *self.replicas, self.master):
            server.kill()


# --- Cluster -----------------------------------------------------------------------------------------------------


class ClusterServer(RedisServer):
    """A node of a Cluster."""

    def __init__(self, directory: Path) -> None:
        # the cluster bus needs its own port, by default 10,000 above the server's
        self.bus = free_port()
        cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", str(self.bus))
        super().__init__(directory, None, *cluster)


class ClusterPlace:
    """Three masters that share the slots."""

    scheme = "redis+cluster"

    def __init__(self, directory: Path) -> None:
        self.nodes = [ClusterServer(directory / f"node-{number}").start() for number in range(3)]
        bounds = [0, 5461, 10923, 16384]
        for number, node in enumerate(self.nodes):
            assert node.says("CLUSTER", "ADDSLOTSRANGE", str(bounds[number]), str(bounds[number + 1] - 1)) == b"+OK\r\n"
            assert node.says("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1)) == b"+OK\r\n"
        first = self.nodes[0]
        for node in self.nodes[1:]:
            node.says("CLUSTER", "MEET", "127.0.0.1", str(first.port), str(first.bus))
        for node in self.nodes:
            node.until(lambda node=node: self._is_whole(node), "the Cluster does not come together")

    @staticmethod
    def _is_whole(node: RedisServer) -> bool:
        said = node.says("CLUSTER", "INFO")
        return b"cluster_state:ok" in said and b"cluster_known_nodes:3" in said

    def url(self, space: str) -> str:
        """Return the URL of an empty store."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}?prefix={space}"

    def open(self, space: str) -> Store:
        """Open it."""
        return url.open_store(self.url(space))

    def stop(self) -> None:
        """Stop all."""
        for node in self.nodes:
            node.kill()
