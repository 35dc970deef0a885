"""A PostgreSQL server for tests, a standby of it, and a PgBouncer in front of it.

PostgreSQL refuses to run as root: then it runs as the system's user `postgres`, in a folder that this user can reach.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from lockstead.stores import url as store_urls
from lockstead.stores.port import Store
from lockstead.stores.postgres.libpq import name_of
from lockstead.stores.postgres.statements import statements
from tests.servers.base import Server, answers, dies_with_us, needed

USER = "locksmith"
PROGRAMS = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)


def unprivileged() -> list[str]:
    """Return the prefix for a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    return [needed("setpriv"), "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]


def reachable_folder() -> Path:
    """Return a new folder that the server's user owns and can reach; only root can reach pytest's folders."""
    folder = Path(tempfile.mkdtemp(prefix="lockstead-postgres-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    return folder


class PostgresServer(Server):
    """One server with an empty cluster. settings: options of PostgreSQL, such as `max_connections`."""

    def __init__(
        self, directory: Path | None = None, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self._postgres = needed("postgres", *PROGRAMS)
        self._initdb = needed("initdb", *PROGRAMS)
        super().__init__(directory or reachable_folder(), port)
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "200",
            "shared_buffers": "16MB",
            "autovacuum": "off",
            "logging_collector": "off",
            **(settings or {}),
        }

    @property
    def cluster(self) -> Path:
        """Return the data directory."""
        return self.directory / "data"

    def run(self, *command: str) -> None:
        """Run a program as the server's user."""
        argv = [*unprivileged(), *command]
        done = subprocess.run(argv, cwd=self.directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def command(self) -> Sequence[str]:
        if not (self.cluster / "PG_VERSION").exists():
            options = ["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust"]
            self.run(self._initdb, "-D", str(self.cluster), "-U", USER, *options)
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        # repeated, since a change of the user clears the parent-death signal
        start = [*unprivileged(), *dies_with_us(), self._postgres]
        return [*start, "-D", str(self.cluster), "-p", str(self.port), *settings]

    def set(self, **settings: str) -> None:
        """Use these settings from the next start on."""
        self._settings.update(settings)

    def url(self, database: str = "postgres", *, port: int | None = None, user: str = USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def is_ready(self) -> bool:
        if not answers(self.port):
            return False
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.Error:
            return False
        return True

    @contextmanager
    def asked(self, database: str = "postgres", *, user: str = USER) -> Iterator[psycopg.Connection[Any]]:
        """Open a psycopg connection, for direct queries of a test."""
        with psycopg.connect(self.url(database, user=user), autocommit=True) as connection:
            yield connection

    def tell(self, *statements: str) -> list[Any]:
        """Run statements and return the rows of the last one."""
        with self.asked() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def _signal(self, number: signal.Signals) -> None:
        """Signal all processes of the server: each is in its own process group."""
        if not self.is_running or self.process is None:
            return
        parent = self.process.pid
        if number is signal.SIGCONT:
            os.kill(parent, number)
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if number in (signal.SIGKILL, signal.SIGSTOP):
            os.kill(parent, number)  # first, or it would start others in their place
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
            for child in children:
                try:
                    os.kill(int(child), number)
                except ProcessLookupError:
                    pass
        else:
            # on SIGTERM the server would wait for its clients to disconnect, on SIGINT it does not
            os.kill(parent, signal.SIGINT if number is signal.SIGTERM else number)

    def remove(self) -> None:
        """Stop it at once and remove what it left."""
        self.resume()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class StandbyServer(PostgresServer):
    """A standby that streams from a primary."""

    def __init__(self, primary: PostgresServer, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings=settings)
        basebackup = needed("pg_basebackup", *PROGRAMS)
        self.run(basebackup, "-D", str(self.cluster), "-d", primary.url(), "-R", "-c", "fast", "--no-sync")


class BouncerServer(Server):
    """A PgBouncer in front of a server, in transaction mode by default."""

    def __init__(self, behind: PostgresServer, mode: str = "transaction", pool_size: int = 4) -> None:
        self._program = needed("pgbouncer")
        super().__init__(reachable_folder())
        self._settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": str(pool_size),
            "max_client_conn": "500",
            "unix_socket_dir": "",
        }
        self._behind = behind

    def command(self) -> Sequence[str]:
        target = f"* = host=127.0.0.1 port={self._behind.port} user={USER}\n"
        lines = "".join(f"{name} = {value}\n" for name, value in self._settings.items())
        config = self.directory / "pgbouncer.ini"
        config.write_text(f"[databases]\n{target}[pgbouncer]\n{lines}")
        return [*unprivileged(), *dies_with_us(), self._program, str(config)]

    def remove(self) -> None:
        """Stop it at once and remove what it left."""
        self.resume()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def executed(sent: bytes) -> Iterator[bytes]:
    """Yield the text of each statement that a client executes, or the name of one that was prepared before."""
    while len(sent) >= 5:
        kind, length = sent[:1], int.from_bytes(sent[1:5], "big")
        first, _, rest = sent[5 : 1 + length].partition(b"\0")
        if (kind == b"P" and not first) or kind == b"B":  # a named statement is only prepared
            yield rest.partition(b"\0")[0]
        sent = sent[1 + max(4, length) :]


class PostgresPlace:
    """A store in one database. Each space is a schema of its own."""

    scheme = "postgresql"
    is_fifo = False
    wakes = True
    is_durable = True
    cycles = 1000

    def __init__(self, directory: Path) -> None:
        self.server = PostgresServer().start()
        self._writes: set[bytes] = set()

    @property
    def ports(self) -> Sequence[int]:
        return (self.server.port,)

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        ours = statements(space)
        for text in (ours.create, ours.retake, ours.replace, ours.extend, ours.remove, ours.extend_many):
            self._writes |= {text, name_of(text)}
        return f"{self.server.url(port=(ports or self.ports)[0])}?schema={space}"

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        return store_urls.open_store(self.url(space, ports=ports))

    def is_write(self, sent: bytes) -> bool:
        return any(statement in self._writes for statement in executed(sent))

    def left(self, space: str) -> list[str]:
        if not self.server.tell(
            f"SELECT to_regclass('{space}.record') WHERE to_regclass('{space}.record') IS NOT NULL"
        ):
            return []
        rows = self.server.tell(
            f"SELECT concat_ws('/', space, key, part) FROM {space}.record WHERE fields IS NOT NULL ORDER BY 1"
        )
        return [str(row[0]) for row in rows]

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def stop(self) -> None:
        self.server.remove()
