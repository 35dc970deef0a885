"""A ZooKeeper for tests: a standalone server, or an ensemble of three on loopback."""

from __future__ import annotations

import shutil
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from lockstead.stores import url as store_urls
from lockstead.stores.port import Store
from tests.servers.base import Server, absent, free_port, needed

JARS = Path("/usr/share/java")
TICK = 500
"""The tick time in milliseconds; session timeouts are between 2 and 20 ticks, unless a test sets others."""

_WRITES = frozenset({1, 2, 5, 14, 15})
"""Operation codes that change nodes: create, delete, setData, multi, create2."""


def four_letters(port: int, word: bytes) -> bytes:
    """Return a server's answer to a four-letter-word command; empty if it does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(word)
            said = b""
            while piece := connection.recv(4096):
                said += piece
            return said
    except OSError:
        return b""


class ZookeeperServer(Server):
    """One server. settings: lines of zoo.cfg; properties: Java system properties."""

    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    heap = "96m"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, port)
        self._java = needed("java")
        self._settings = {
            "tickTime": str(TICK),
            "dataDir": str(directory / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": "0",
            **(settings or {}),
        }
        self._properties = {
            "zookeeper.forceSync": "no",
            "zookeeper.preAllocSize": "64",
            "org.slf4j.simpleLogger.defaultLogLevel": "warn",
            **(properties or {}),
        }

    def command(self) -> Sequence[str]:
        if not (JARS / "zookeeper.jar").exists():
            absent("there is no ZooKeeper server on this machine (Debian: zookeeper)")
        (self.directory / "data").mkdir(exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        # for a quick start: the serial collector, no second compiler
        options = [f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += [f"-D{name}={value}" for name, value in self._properties.items()]
        # the package lists the libraries that it needs, except the last two, which TLS needs
        jars = ":".join(f"{JARS}/{name}.jar" for name in ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver"))
        return [self._java, *options, "-cp", jars, self.main, str(config)]

    def is_ready(self) -> bool:
        return four_letters(self.port, b"srvr").startswith(b"Zookeeper version:")


class EnsembleServer(ZookeeperServer):
    """One server of an ensemble, which serves when a majority runs."""

    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class Ensemble:
    """Three servers; a test may kill, pause and restart any of them."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        self._directory = directory
        peers = {number: (free_port(), free_port()) for number in range(1, size + 1)}
        settings = {"initLimit": "20", "syncLimit": "10", "standaloneEnabled": "false"}
        settings |= {f"server.{number}": f"127.0.0.1:{one}:{two}" for number, (one, two) in peers.items()}
        self.servers: list[EnsembleServer] = []
        for number in peers:
            server = EnsembleServer(directory / str(number), settings=settings)
            (server.directory / "data").mkdir(exist_ok=True)
            (server.directory / "data" / "myid").write_text(str(number))
            self.servers.append(server)

    @property
    def hosts(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> Ensemble:
        """Start all, and wait until all serve requests."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.until(server.is_ready, "it did not join the ensemble")
        return self

    def leader(self) -> EnsembleServer:
        """Return the leader."""
        return next(one for one in self.servers if b"Mode: leader" in four_letters(one.port, b"srvr"))

    def __enter__(self) -> Ensemble:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        for server in self.servers:
            server.resume()
            server.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def asked(hosts: str) -> Iterator[Any]:
    """Open a kazoo client, for direct requests of a test."""
    client = KazooClient(hosts=hosts, timeout=10.0)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class ZookeeperPlace:
    """A store on one server. Each space has its own path."""

    scheme = "zk"
    is_fifo = True
    wakes = True
    is_durable = True
    cycles = 1000

    def __init__(self, directory: Path) -> None:
        self.server = ZookeeperServer(directory).start()
        self._directory = directory

    @property
    def ports(self) -> Sequence[int]:
        return (self.server.port,)

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        return f"zk://127.0.0.1:{(ports or self.ports)[0]}/{space}"

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        return store_urls.open_store(self.url(space, ports=ports))

    def is_write(self, sent: bytes) -> bool:
        return any(code in _WRITES for code in operations(sent))

    def left(self, space: str) -> list[str]:
        with asked(self.server.address) as client:
            return standing(client, f"/{space}")

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def stop(self) -> None:
        self.server.resume()
        self.server.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


def operations(sent: bytes) -> Iterator[int]:
    """Yield the operation codes of the requests in a client's data; the first request of a connection has none."""
    while len(sent) >= 12:
        length, xid, code = struct.unpack_from("!iii", sent)
        if xid > 0:
            yield code
        sent = sent[4 + max(0, length) :]


def standing(client: Any, base: str) -> list[str]:
    """Return the names of all records and queue places below a path, and of empty queues."""

    def below(path: str) -> list[str]:
        try:
            return sorted(client.get_children(path))
        except NoNodeError:
            return []

    records = [f"{space}/{node}" for space in below(base) if space != "queue" for node in below(f"{base}/{space}")]
    for queue in below(f"{base}/queue"):
        places = below(f"{base}/queue/{queue}")
        records += [f"queue/{queue}/{place}" for place in places] or [f"queue/{queue}"]
    return records
