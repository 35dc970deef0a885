"""Non-blocking connections to one master, and the state of that master.

Connections are redis-py's. Answers are read as they arrive, in the order of the requests; answers that nobody waits for
any more are read and dropped first. So a connection is always usable, and a later request is always carried out after
an earlier one. Must not know what is asked.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bootclock import boot_now
from lockstead.stores.bounds import ANSWER_MAX, LISTING_MAX, BoundedSocket, Bounds
from lockstead.stores.redis.access import Access, Address
from lockstead.stores.redis.errors import OLDEST, unconnected
from lockstead.stores.redlock.scripts import SCRIPT

OnAnswer = Callable[[object], None]
"""Called with an answer, or with the exception in its place."""

BACKLOG_BYTES_MAX: Final = 64 * 1024
"""Bytes without an answer on one connection, above which nothing more is sent: a full socket would block."""

STALE_MIN: Final = 1.0
STALE_LIMITS: Final = 3
"""An answer outstanding for this many seconds and this many times the limit of a master is given up."""

DIAL_LIMIT: Final = 2.0
"""Seconds for each step of connecting; a caller waits far shorter, and uses the connection next time."""

DOWN_MIN: Final = 0.1
DOWN_MAX: Final = 2.0
"""Seconds without attempts to reach a master after a failure, growing while it stays unreachable."""

IDLE_MAX: Final = 64
"""Connections kept for each master."""


class Pipelined(Protocol):
    """What is used of redis-py's connection, which is typed in parts only."""

    _sock: BoundedSocket | None

    def connect(self) -> None:
        """Connect, log in, select the database."""

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None:
        """Send what was encoded."""

    def disconnect(self) -> None:
        """Close it."""

    def pack_command(self, *arguments: object) -> Sequence[bytes]:
        """Encode one command."""
        ...

    def pack_commands(self, commands: Sequence[Sequence[object]]) -> Sequence[bytes]:
        """Encode several commands."""
        ...

    def read_response(
        self, disable_decoding: bool = False, *, timeout: float = 0, disconnect_on_error: bool = True
    ) -> Any:
        """Read one reply; raises error replies. After a timeout the bytes read so far stay buffered."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A server's run id, and an instant (boot clock) at which it was running already."""

    run_id: str
    started_before: float


class MasterConnection:
    """One connection to one master. Used by one thread at a time."""

    __slots__ = ("_backlog", "_callbacks", "_connection", "_room", "fileno", "identity", "is_open")

    def __init__(self, connection: Pipelined, identity: Identity) -> None:
        self._connection = connection
        self._callbacks: deque[tuple[OnAnswer, int, float]] = deque()
        self._room = ANSWER_MAX
        self._bound()
        self._backlog = 0
        self.fileno = -1 if connection._sock is None else connection._sock.fileno()
        self.identity = identity
        self.is_open = True

    @property
    def awaits(self) -> bool:
        """Whether answers are outstanding."""
        return bool(self._callbacks)

    def is_stale(self, seconds: float) -> bool:
        """Return whether an answer is outstanding for longer: the server may be well, but the connection dead."""
        return bool(self._callbacks) and time.monotonic() - self._callbacks[0][2] > seconds

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be sent until answers have come."""
        return self._backlog > BACKLOG_BYTES_MAX

    def pack(self, *arguments: str | bytes | int) -> bytes:
        """Encode a command, the same for every master."""
        return b"".join(self._connection.pack_command(*arguments))

    def post(self, packed: bytes, callbacks: list[OnAnswer]) -> bool:
        """Send; each callback receives one answer, in order. False if sending failed, which ends the connection."""
        try:
            self._connection.send_packed_command([packed], check_health=False)
        except Exception as error:  # noqa: BLE001 - part of it may have been sent
            self.fail(error)
            return False
        share = len(packed) // len(callbacks)
        self._backlog += share * len(callbacks)
        now = time.monotonic()
        self._callbacks.extend((callback, share, now) for callback in callbacks)
        return True

    def takes_listings(self) -> None:
        """Take long answers from now on."""
        self._room = LISTING_MAX
        self._bound()

    def _bound(self) -> None:
        """Limit the size of the next answer, not its time: reading does not block."""
        connected = self._connection._sock
        if connected is not None:
            connected.bounds = Bounds(math.inf, self._room)

    def collect(self) -> None:
        """Read the available answers without blocking; unexpected data ends the connection."""
        from redis import exceptions

        if not self._callbacks:
            self.fail(ConnectionError("it was closed, or sent data without a request"))
            return
        while self._callbacks:
            answer: object
            try:
                answer = self._connection.read_response(disable_decoding=True, timeout=0, disconnect_on_error=False)
            except exceptions.ResponseError as error:
                answer = error
            except exceptions.TimeoutError:
                return
            except Exception as error:  # noqa: BLE001 - the connection is unusable
                self.fail(error)
                return
            self._bound()
            callback, share, _sent_at = self._callbacks.popleft()
            self._backlog -= share
            callback(answer)

    def fail(self, error: Exception) -> None:
        """End the connection; outstanding requests have an unknown outcome."""
        self.close()
        callbacks, self._callbacks = self._callbacks, deque()
        for callback, _share, _sent_at in callbacks:
            callback(error)

    def close(self) -> None:
        """Close it. Idempotent."""
        self.is_open = False
        with suppress(Exception):
            self._connection.disconnect()


@dataclass(slots=True)
class PendingRemoval:
    """A removal that a master has not confirmed: the encoded request, and until when it is sent again."""

    packed: bytes
    until: float


@dataclass(slots=True)
class Master:
    """One of the servers. Safe to share between threads; its lock is held for memory only.

    trouble: why it cannot be reached now. is_silent: the last wait for its answer timed out. pending_removals: by
    incarnation; such a record counts as absent.
    """

    access: Access
    address: Address
    restart_delay: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    idle: list[MasterConnection] = field(default_factory=list)
    is_open: bool = True
    trouble: StoreError | None = None
    is_silent: bool = False
    down_until: float = 0.0
    down_for: float = 0.0
    run_id: str = ""
    replaced_at: float = 0.0
    pending_removals: dict[str, PendingRemoval] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """`host:port`."""
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def may_vote_at(self, line: MasterConnection) -> float:
        """Return the instant (boot clock) from which this server may vote: leases that it lost are over then."""
        if self.restart_delay <= 0:
            return 0.0
        return max(line.identity.started_before, self.replaced_at) + self.restart_delay

    def take(self) -> MasterConnection | None:
        """Return an idle open connection, if any; one with outstanding answers first, to keep the order."""
        while True:
            with self.lock:
                if not self.idle:
                    return None
                at = next((at for at, line in enumerate(self.idle) if line.awaits), len(self.idle) - 1)
                line = self.idle.pop(at)
            if line.is_open:
                return line

    def give_back(self, line: MasterConnection) -> None:
        """Return a connection to the pool."""
        with self.lock:
            if self.is_open and line.is_open and len(self.idle) < IDLE_MAX:
                self.idle.append(line)
                return
        line.close()

    def dial(self) -> MasterConnection | None:
        """Connect, identify the server and send pending removals; None and `trouble` if that fails. Blocks."""
        try:
            line = self._dialled()
        except StoreError as error:
            with self.lock:
                self.trouble = error
                self.down_for = min(DOWN_MAX, max(DOWN_MIN, self.down_for * 2))
                self.down_until = time.monotonic() + self.down_for
            return None
        with self.lock:
            self.trouble, self.down_until, self.down_for = None, 0.0, 0.0
            if self.run_id and self.run_id != line.identity.run_id:
                # another server at this address, whatever its uptime: it may not have the earlier one's records
                self.replaced_at = boot_now()
            self.run_id = line.identity.run_id
            owed = [(identity, pending.packed) for identity, pending in self.pending_removals.items()]
        if owed:
            line.post(
                b"".join(packed for _id, packed in owed),
                [self.removal_confirmed(identity) for identity, _packed in owed],
            )
        return line

    def removal_confirmed(self, incarnation: str) -> OnAnswer:
        """Return the callback for the answer to a pending removal."""

        def on_answer(answer: object) -> None:
            if not isinstance(answer, Exception):
                self.pending_removals.pop(incarnation, None)

        return on_answer

    def defer_removal(self, incarnation: str, packed: bytes, seconds: float) -> None:
        """Note that a record has to be removed here, for at most `seconds`: its ttl removes it by then."""
        now = time.monotonic()
        with self.lock:
            if len(self.pending_removals) >= 1000:
                self.pending_removals = dict(filter(lambda owed: owed[1].until > now, self.pending_removals.items()))
            self.pending_removals[incarnation] = PendingRemoval(packed, now + seconds)

    def has_pending_removal(self, incarnation: str) -> bool:
        """Return whether the removal of a record is pending."""
        pending = self.pending_removals.get(incarnation)
        if pending is None:
            return False
        if pending.until > time.monotonic():
            return True
        self.pending_removals.pop(incarnation, None)
        return False

    def _dialled(self) -> MasterConnection:
        from lockstead.stores.redis.bounded import bounded

        connection = cast(Pipelined, bounded(self.access, self.address, Bounds(DIAL_LIMIT), patience=DIAL_LIMIT))
        try:
            connection.connect()
            identity = self._identity(connection)
        except StoreError:
            connection.disconnect()
            raise
        except Exception as error:
            connection.disconnect()
            raise unconnected(error, self.where, is_secure=self.access.is_secure) from error
        return MasterConnection(connection, identity)

    def _identity(self, connection: Pipelined) -> Identity:
        from redis import exceptions

        asked = [("INFO", "server"), ("ROLE",), ("SCRIPT", "LOAD", SCRIPT)]
        connection.send_packed_command([b"".join(connection.pack_commands(asked))], check_health=False)
        replies: list[Any] = []
        for _ in asked:
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except exceptions.NoPermissionError as error:
                replies.append(error)
        info, role, sha = replies
        if isinstance(sha, Exception):
            raise unconnected(sha, self.where, is_secure=self.access.is_secure)
        if not isinstance(role, Exception) and role[0] != b"master":
            raise StoreUnavailable(
                f"Redis at {self.where} is a {role[0].decode().replace('slave', 'replica')}: Redlock needs independent "
                "masters"
            )
        if isinstance(info, Exception):
            if self.restart_delay > 0:
                raise StoreRefused(
                    f"this user may not read the uptime of Redis at {self.where}: grant it INFO, or set "
                    "restart_delay=0 if the masters lose no data in a restart"
                )
            return Identity("", 0.0)
        return _identity(info, self.where)


def _identity(info: bytes, where: str) -> Identity:
    known = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    version = known.get("redis_version", "0")
    if tuple(int(piece) for piece in version.split(".")[:2] if piece.isdigit()) < (5, 0):
        raise StoreRefused(f"Redis at {where} is too old ({version}): {OLDEST} or later is needed")
    if known.get("redis_mode", "standalone") != "standalone":
        raise StoreRefused(f"Redis at {where} runs as {known['redis_mode']}: Redlock needs independent masters")
    # the server rounds its uptime to whole seconds
    uptime = int(known.get("uptime_in_seconds", "0"))
    return Identity(known.get("run_id", ""), boot_now() - max(0, uptime - 1))
