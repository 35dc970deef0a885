"""The servers of the benchmarks, and their own counts of requests.

One server each, as small as possible and on loopback, so that the lock is measured and not the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.base import Server, free_port, needed
from tests.servers.zookeeper import ZookeeperServer, four_letters

Counts = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs: the URL of a store of ours on it, what the peers and floors are given, and its counts."""

    url: str
    where: str
    counts: Counts
    """Return the number of requests so far, by kind; this one is counted too, the same each time."""
    logged: Callable[[], AbstractContextManager[None]] = nullcontext
    """While this is entered, everything is counted; not otherwise where counting costs time."""


class RedisServer(Server):
    """Redis that keeps nothing on disk."""

    def command(self) -> Sequence[str]:
        """Return the command line."""
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        return [needed("redis-server"), *where, "--save", "", "--appendonly", "no"]


class EtcdServer(Server):
    """One member."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.peer_port = free_port()

    def command(self) -> Sequence[str]:
        """Return the command line."""
        clients, peers = f"http://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        return [
            *(needed("etcd"), "--data-dir", str(self.directory / "data"), "--initial-cluster", f"default={peers}"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--unsafe-no-fsync",) * self._may_skip_fsync(),
        ]

    @staticmethod
    def _may_skip_fsync() -> bool:
        told = subprocess.run([needed("etcd"), "--help"], capture_output=True, text=True, check=False)
        return "--unsafe-no-fsync" in told.stdout + told.stderr

    def is_ready(self) -> bool:
        """Return whether it has a leader."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


class PostgresServer(Server):
    """One primary that does not wait for its disk; trust for everybody, the user is `postgres`."""

    def start(self) -> PostgresServer:
        """Create the cluster if there is none, and start it."""
        if not (self.directory / "data").exists():
            if os.geteuid() == 0:
                shutil.chown(self.directory, "postgres", "postgres")
            made = [needed("initdb", *_places()), "-D", "data", "-U", "postgres", "-A", "trust", "--no-sync"]
            subprocess.run([*_as_postgres(), *made], cwd=self.directory, check=True, capture_output=True)
        return super().start()

    def command(self) -> Sequence[str]:
        """Return the command line."""
        where = ["-D", "data", "-p", str(self.port), "-k", "", "-c", "listen_addresses=127.0.0.1"]
        return [*_as_postgres(), needed("postgres", *_places()), *where, "-c", "fsync=off", "-c", "autovacuum=off"]

    def is_ready(self) -> bool:
        """Return whether it takes connections."""
        import psycopg

        try:
            psycopg.connect(f"postgresql://postgres@{self.address}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _places() -> list[str]:
    return [str(place) for place in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


def _as_postgres() -> list[str]:
    # PostgreSQL refuses to run as root
    ids = ["--reuid=postgres", "--regid=postgres", "--clear-groups"]
    return [needed("setpriv"), *ids] if os.geteuid() == 0 else []


# --- counting -------------------------------------------------------------------------------------------------------


def _of_redis(ports: Sequence[int]) -> Counts:
    import redis

    clients = [redis.Redis(port=port) for port in ports]

    def counts() -> Mapping[str, int]:
        asked = [client.info("stats") for client in clients]
        # of commands it would also count those that a script calls
        return {"reads": sum(one["total_reads_processed"] for one in asked)}

    return counts


_METRIC = re.compile(r'^grpc_server_started_total\{grpc_method="(\w+)".* (\S+)$', re.MULTILINE)
_RAFT = re.compile(r"^etcd_server_proposals_applied_total (\S+)$", re.MULTILINE)


def _of_etcd(address: str) -> Counts:
    def counts() -> Mapping[str, int]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode("utf-8")
        asked = {method: int(float(number)) for method, number in _METRIC.findall(text)}
        found = _RAFT.search(text)
        return {**asked, "raft writes": int(float(found[1])) if found else 0}

    return counts


def _of_postgres(server: PostgresServer) -> Counts:
    def counts() -> Mapping[str, int]:
        log = (server.directory / "log").read_text("utf-8", errors="replace")
        return {"statements": len(re.findall(r"LOG:  (?:statement|execute [^:]*):", log))}

    return counts


def _logging(where: str) -> Callable[[], AbstractContextManager[None]]:
    """Have PostgreSQL write each statement to its log for a while."""
    import psycopg

    @contextmanager
    def logged() -> Iterator[None]:
        with psycopg.connect(where, autocommit=True) as asking:
            asking.execute("ALTER SYSTEM SET log_statement = 'all'")
            asking.execute("SELECT pg_reload_conf()")
            while asking.execute("SHOW log_statement").fetchone() != ("all",):
                time.sleep(0.02)
            yield
            asking.execute("ALTER SYSTEM SET log_statement = 'none'")
            asking.execute("SELECT pg_reload_conf()")

    return logged


def _of_zookeeper(port: int) -> Counts:
    def counts() -> Mapping[str, int]:
        found = re.search(r"^Received: (\d+)", four_letters(port, b"srvr").decode("utf-8"), re.MULTILINE)
        return {"packets": int(found[1]) if found else 0}

    return counts


# --- running --------------------------------------------------------------------------------------------------------


@contextmanager
def _directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="lockstead-bench-") as name:
        # the server may run as another user
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def redis() -> Iterator[Running]:
    """Run Redis."""
    with _directory() as directory, RedisServer(directory) as server:
        yield Running(f"redis://{server.address}/0", server.address, _of_redis([server.port]))


@contextmanager
def redlock(masters: int = 5) -> Iterator[Running]:
    """Run masters that know nothing of each other."""
    with _directory() as directory, ExitStack() as stack:
        servers = [stack.enter_context(RedisServer(directory / str(number))) for number in range(masters)]
        where = ",".join(server.address for server in servers)
        # just started: with the default delay none would vote for ten minutes
        yield Running(f"redlock://{where}/0?restart_delay=0", where, _of_redis([server.port for server in servers]))


@contextmanager
def etcd() -> Iterator[Running]:
    """Run etcd."""
    with _directory() as directory, EtcdServer(directory) as server:
        yield Running(f"etcd://{server.address}/bench", server.address, _of_etcd(server.address))


@contextmanager
def postgres() -> Iterator[Running]:
    """Run PostgreSQL."""
    with _directory() as directory, PostgresServer(directory) as server:
        where = f"postgresql://postgres@{server.address}/postgres"
        yield Running(where, where, _of_postgres(server), _logging(where))


@contextmanager
def zookeeper(heap: str = ZookeeperServer.heap) -> Iterator[Running]:
    """Run ZooKeeper."""
    with _directory() as directory:
        server = ZookeeperServer(directory)
        server.heap = heap
        with server:
            yield Running(f"zk://{server.address}/bench", server.address, _of_zookeeper(server.port))
