"""How the tests that run on all stores meet Cassandra: one node, and a keyspace for each space."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cassandra import DriverException
from cassandra.cluster import Cluster, DefaultEndPoint, ExecutionProfile, NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy

from lockstead.stores import url
from lockstead.stores.port import Store
from tests.servers.cassandra import CassandraServer

HEADER: Final = 9
EXECUTE: Final = 0x0A
SERIALS: Final = (0x0008, 0x0009)


class CassandraPlace:
    """One node; every space has a keyspace of its own."""

    scheme = "cassandra"
    is_fifo = False
    wakes = False
    is_durable = True
    cycles = 300

    def __init__(self, directory: Path) -> None:
        self.server = CassandraServer(directory).start()

    @property
    def ports(self) -> Sequence[int]:
        """Where it listens for clients."""
        return (self.server.port,)

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        """Return the URL of an empty store."""
        return f"cassandra://127.0.0.1:{(ports or self.ports)[0]}/{space}"

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        """Open it."""
        return url.open_store(self.url(space, ports=ports))

    def is_write(self, sent: bytes) -> bool:
        """Return whether one of the frames runs a prepared statement with the consistency of a write."""
        return any(is_conditional_write(opcode, body) for opcode, body in frames(sent))

    def left(self, space: str) -> list[str]:
        """Name the rows that are held: a free lock's row stays, for its count."""
        with session(self.server.port) as asking:
            if not list(
                asking.execute(
                    "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
                    (space, "lockstead_record"),
                )
            ):
                return []
            found = asking.execute(f'SELECT space, key, part, held FROM "{space}".lockstead_record')
            return sorted(f"{row.space}/{row.key}/{row.part}" for row in found if row.held is not False)

    def kill(self) -> None:
        """End the node at once."""
        self.server.kill()

    def start(self) -> None:
        """Start it, on its data."""
        self.server.start()

    def pause(self) -> None:
        """Let it stand still."""
        self.server.pause()

    def resume(self) -> None:
        """Let it go on."""
        self.server.resume()

    def stop(self) -> None:
        """Stop it for good and remove what it wrote."""
        self.server.stop()
        shutil.rmtree(self.server.directory, ignore_errors=True)


def frames(sent: bytes) -> Iterator[tuple[int, bytes]]:
    """Return opcode and body of each frame of protocol 4 that bytes hold; the last body may be cut off."""
    while len(sent) >= HEADER:
        length = int.from_bytes(sent[5:HEADER], "big")
        yield sent[4], sent[HEADER : HEADER + length]
        sent = sent[HEADER + length :]


def is_conditional_write(opcode: int, body: bytes) -> bool:
    """Return whether a frame runs a prepared statement otherwise than as a serial read or as the listing of everything.

    An EXECUTE is the statement's id ([short bytes]), then consistency ([short]) and flags ([byte]); ours carry values
    (0x01), but for the listing of everything.
    """
    if opcode != EXECUTE or len(body) < 2:
        return False
    after = 2 + struct.unpack(">H", body[:2])[0]
    consistency, flags = struct.unpack(">HB", body[after : after + 3])
    return consistency not in SERIALS and bool(flags & 0x01)


@contextmanager
def session(port: int, **options: Any) -> Iterator[Any]:
    """Connect to the node by itself, past the store."""
    cluster = Cluster(
        ["127.0.0.1"], port=port, protocol_version=4, schema_metadata_enabled=False, compression=False, **options
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def knows(node: CassandraServer) -> set[str]:
    """Ask one node, and no other, whom it knows to have a part of the ring, but for itself; nobody if it fails."""
    profile = ExecutionProfile(load_balancing_policy=WhiteListRoundRobinPolicy([node.host]))
    cluster = Cluster(
        [DefaultEndPoint(node.host, node.port)],
        port=node.port,
        protocol_version=4,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        compression=False,
        execution_profiles={"default": profile},
    )
    try:
        found = cluster.connect().execute("SELECT peer, tokens FROM system.peers", execution_profile="default")
        return {str(one.peer) for one in found if one.tokens}
    except (DriverException, NoHostAvailable):
        return set()
    finally:
        cluster.shutdown()
