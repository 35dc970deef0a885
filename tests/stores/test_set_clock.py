"""Real servers whose clock is set, back and forward, while a lease with members is held and a client waits (H31)."""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

import lockstead
from lockstead.events import LockEvent, Waiting
from tests.processes.shims import preloaded
from tests.servers.postgres import PostgresServer, reachable_folder
from tests.servers.redis import RedisServer

HOUR = 3600.0
TTL = 3.0
PATIENCE = {"renew_every": 0.3, "request_timeout": 0.29, "max_failures": 5, "abort_margin": 0.3}
"""With a server that is slow because the machine is busy."""


class Clock:
    """The clock of a server that the shim was preloaded into: ahead of the true one by what was set last."""

    def __init__(self) -> None:
        self.folder = reachable_folder()
        self.file = self.folder / "offset"
        self.file.write_bytes(struct.pack("d", HOUR))
        self.environment: Mapping[str, str] = {
            **preloaded("clock", self.folder),
            "CLOCK_OFFSET_FILE": str(self.file),
        }

    def set(self, ahead: float) -> None:
        with self.file.open("r+b") as file:
            file.write(struct.pack("d", ahead))


class SetRedis(RedisServer):
    """A Redis under such a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.folder)
        self.clock = clock

    def environment(self) -> Mapping[str, str]:
        """Return what preloads the shim."""
        return self.clock.environment

    def locks(self) -> str:
        """Return the URL under which locks are kept."""
        return f"redis://{self.address}"


class SetPostgres(PostgresServer):
    """A PostgreSQL under such a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.folder)
        self.clock = clock

    def environment(self) -> Mapping[str, str]:
        """Return what preloads the shim."""
        return self.clock.environment

    def locks(self) -> str:
        """Return the URL under which locks are kept."""
        return self.url()


@pytest.fixture(params=[SetRedis, SetPostgres], ids=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[SetRedis | SetPostgres]:
    clock = Clock()
    made: SetRedis | SetPostgres = request.param(clock)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(clock.folder, ignore_errors=True)


def test_h31_a_shared_lease_survives_a_server_clock_that_is_set(
    server: SetRedis | SetPostgres,
) -> None:
    got = threading.Event()
    waits = threading.Event()

    def heard(event: LockEvent) -> None:
        if isinstance(event, Waiting):
            waits.set()

    def wait() -> None:
        with lockstead.connect(server.locks(), listener=heard) as client:
            lease = client.lock("apt", ttl=60, backoff_max=0.2).acquire(timeout=60)
            got.set()
            lease.release()

    with lockstead.connect(server.locks(), listener=lambda _: None) as client:
        lease = client.lock("apt", ttl=TTL, **PATIENCE).acquire(timeout=30)
        lease.share()  # from here on it is a member of its own lease
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert waits.wait(30)
        for ahead, lasts in ((0.0, 1.2 * TTL), (HOUR, 0.3 * TTL), (0.5 * HOUR, 0.3 * TTL)):
            server.clock.set(ahead)
            ends_at = time.monotonic() + lasts
            while time.monotonic() < ends_at:
                lease.check()
                assert not got.is_set(), f"two holders after the clock was set to {ahead:+g} s"
                time.sleep(0.02)
        assert lease.release()
        waiter.join(30)
        assert got.is_set()
