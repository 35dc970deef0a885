"""The dashboard as a process, and stores with real holders for it to show."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import lockstead
from lockstead import Client, Lease, LeaseLost, Term
from lockstead.protocol.commands import Create
from lockstead.runtime.clock import SystemClock
from lockstead.values import Name
from tests.servers.base import Server

TOKEN: Final = "correct-horse-battery-staple"


class DashboardServer(Server):
    """`lockstead dashboard` with URLs and options, on a free port. TOKEN is its admin token."""

    def __init__(self, directory: Path, *words: str) -> None:
        super().__init__(directory)
        token = self.directory / "token"
        token.touch(0o600)
        token.write_text(TOKEN)
        self._words = [*words, "--listen", self.address, "--admin-token-file", str(token)]

    def command(self) -> Sequence[str]:
        """Return the command line."""
        return [sys.executable, "-m", "lockstead.cli", "dashboard", *self._words]

    @property
    def site(self) -> str:
        """Return its address, as a browser's origin."""
        return f"http://{self.address}"


class Holders:
    """The holders of some locks of one store, in this process. They release when the block is left."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.leases: list[Lease] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lease in self.leases:
            with suppress(LeaseLost):
                lease.release()
        self._stack.close()

    def client(self, *, ago: float = 0.0) -> Client:
        """Open the store; ago: by how many seconds the wall clock of what it acquires is slow."""
        client = self._stack.enter_context(lockstead.connect(self.url))
        if ago:
            client._engine.clock = Slow(ago)
        return client

    def hold(self, key: str, *, ago: float = 0.0, progress: str | None = None, **settings: Any) -> Lease:
        """Acquire a lock as of `ago` seconds before now."""
        lease = self.client(ago=ago).lock(key, **settings).acquire(timeout=30)
        if progress is not None:
            lease.progress(progress)
            lease.renew()
        self.leases.append(lease)
        return lease

    def permit(self, key: str, permits: int, *, ago: float = 0.0, **settings: Any) -> Lease:
        """Acquire a permit of a semaphore as of `ago` seconds before now."""
        lease = self.client(ago=ago).semaphore(key, permits, **settings).acquire(timeout=30)
        self.leases.append(lease)
        return lease

    def lead(self, key: str, **settings: Any) -> Term:
        """Become the leader of an election."""
        election = lockstead.Election(f"{self.url}#{key}", **settings)
        return self._stack.enter_context(election.lead(timeout=30))


class Slow(SystemClock):
    """The clocks of this machine, with a wall clock that is slow."""

    def __init__(self, by: float) -> None:
        self.by = by

    def wall(self) -> float:  # type: ignore[override]
        """Return an instant of the past."""
        return time.time() - self.by


def scene(holders: Holders) -> None:
    """Acquire what a list can show: overdue, revoked, unreadable; readers, permits, a leader."""
    holders.hold(
        "apt-publish",
        ago=47 * 60,
        owner="airflow:publish/nightly/upload",
        purpose="publish APT packages",
        ttl=60,
        expected=1800,
        alert_after=1800,
        auto_unlock_after=5400,
        labels={"url": "https://airflow.example.com/dags/publish/runs/nightly", "team": "deb", "suite": "trixie"},
        backtrace=True,
    )
    holders.hold(
        "search-index",
        ago=130,
        owner="prefect:reindex/purple-ox",
        purpose="rebuild the search index",
        progress="412 of 900",
        ttl=60,
        expected=600,
        alert_after=600,
    )
    holders.hold("schema", ago=400, owner="deploy@ci-7", purpose="migrate the schema to 214", ttl=300)
    for number in range(3):
        holders.hold("catalogue", mode="shared", owner=f"report-{number}", purpose="read the catalogue", ttl=60)
        holders.permit("gpu", 8, ago=60 * number, owner=f"trainer-{number}", purpose="train the ranking", ttl=60)
    holders.lead("scheduler", owner="scheduler-2", value="http://10.0.0.7:8080")
    client = holders.client()
    client.lock("schema").break_lease(reason="host ci-7 is gone", by="anna")
    client._engine.store.perform(Create(Name("thumbnails"), {"v": "99"}), 5.0)
