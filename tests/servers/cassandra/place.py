"""Cassandra for the tests that run on all stores: one node, and a keyspace for each space."""

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
    """One node; every space has its own keyspace."""

    scheme = "cassandra"
    is_fifo = False
    wakes = False
    is_durable = True
    cycles = 300

    def __init__(self, directory: Path) -> None:
        self.server = CassandraServer(directory).start()

    @property
    def ports(self) -> Sequence[int]:
        """Return the port for clients."""
        return (self.server.port,)

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        """Return the URL of an empty store."""
        return f"cassandra://127.0.0.1:{(ports or self.ports)[0]}/{space}"

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        """Open a store."""
        return url.open_store(self.url(space, ports=ports))

    def is_write(self, sent: bytes) -> bool:
        """Return whether one of the frames runs a prepared statement with the consistency of a write."""
        return any(is_conditional_write(opcode, body) for opcode, body in frames(sent))

    def left(self, space: str) -> list[str]:
        """Return the names of the rows that are held: the row of a free lock is kept, for its counter."""
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
        """Kill the node."""
        self.server.kill()

    def start(self) -> None:
        """Start it with its data."""
        self.server.start()

    def pause(self) -> None:
        """Stop it with SIGSTOP."""
        self.server.pause()

    def resume(self) -> None:
        """Continue it."""
        self.server.resume()

    def stop(self) -> None:
        """Stop it and remove its files."""
        self.server.stop()
        shutil.rmtree(self.server.directory, ignore_errors=True)


def frames(sent: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield opcode and body of each frame of protocol 4 in these bytes; the last body may be incomplete."""
    while len(sent) >= HEADER:
        length = int.from_bytes(sent[5:HEADER], "big")
        yield sent[4], sent[HEADER : HEADER + length]
        sent = sent[HEADER + length :]


def is_conditional_write(opcode: int, body: bytes) -> bool:
    """Return whether a frame runs a prepared statement that is neither a serial read nor the listing of all records.

    An EXECUTE is the statement's id ([short bytes]), then consistency ([short]) and flags ([byte]); ours have values
    (0x01), except for the listing of all records.
    """
    if opcode != EXECUTE or len(body) < 2:
        return False
    after = 2 + struct.unpack(">H", body[:2])[0]
    consistency, flags = struct.unpack(">HB", body[after : after + 3])
    return consistency not in SERIALS and bool(flags & 0x01)


@contextmanager
def session(port: int, **options: Any) -> Iterator[Any]:
    """Connect to the node directly, not through a store."""
    cluster = Cluster(
        ["127.0.0.1"], port=port, protocol_version=4, schema_metadata_enabled=False, compression=False, **options
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def knows(node: CassandraServer) -> set[str]:
    """Return the other nodes that one node knows to own a part of the ring; empty if the query fails."""
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
