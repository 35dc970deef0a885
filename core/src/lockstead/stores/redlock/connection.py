"""Non-blocking connections to one master, and the state of that master.

Answers are read as they arrive, in the order of the requests; answers that nobody waits for
any more are read and dropped first. So a connection is always usable, and a later request is always carried out after
an earlier one. Must not know what is asked.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bootclock import boot_now
from lockstead.stores.bounds import ANSWER_MAX, LISTING_MAX, Bounds
from lockstead.stores.kept import MALFORMED
from lockstead.stores.redis.access import Access, Address
from lockstead.stores.redis.connection import Connection, connected
from lockstead.stores.redis.errors import OLDEST, refusal
from lockstead.stores.redis.resp import ServerError
from lockstead.stores.redlock.scripts import RIGHTS, SCRIPT
from lockstead.stores.servers import endpoint

OnAnswer = Callable[[object], None]
"""Called with an answer, or with the exception in its place."""

BACKLOG_BYTES_MAX: Final = 64 * 1024
"""Bytes without an answer on one connection, above which nothing more is sent: a full socket would block."""

STALE_MIN: Final = 1.0
STALE_LIMITS: Final = 3
"""An answer outstanding for this many seconds and this many times the limit of a master is given up."""

DIAL_LIMIT: Final = 2.0
"""Seconds for connecting, and for sending; a caller waits far shorter, and uses the connection next time."""

DOWN_MIN: Final = 0.1
DOWN_MAX: Final = 2.0
"""Seconds without attempts to reach a master after a failure, growing while it stays unreachable."""

IDLE_MAX: Final = 64
"""Connections kept for each master."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A server's run id, and an instant (boot clock) at which it was running already."""

    run_id: str
    started_before: float


class MasterConnection:
    """One connection to one master. Used by one thread at a time."""

    __slots__ = ("_backlog", "_bounds", "_callbacks", "_room", "connection", "fileno", "identity", "is_open")

    def __init__(self, connection: Connection, identity: Identity) -> None:
        self.connection = connection
        self._callbacks: deque[tuple[OnAnswer, int, float]] = deque()
        # of the next answers the size is limited, not the time: reading does not wait
        self._room = ANSWER_MAX
        self._bounds = Bounds(math.inf)
        self._backlog = 0
        self.fileno = connection.raw.fileno()
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

    def post(self, packed: bytes, callbacks: list[OnAnswer]) -> None:
        """Send; each callback receives one answer, in order. If sending fails, that ends the connection."""
        try:
            self.connection.send(packed, Bounds(DIAL_LIMIT))
        except OSError as error:  # part of it may have been sent
            self.fail(error)
            return
        share = len(packed) // len(callbacks)
        self._backlog += share * len(callbacks)
        now = time.monotonic()
        self._callbacks.extend((callback, share, now) for callback in callbacks)

    def takes_listings(self) -> None:
        """Take long answers from now on."""
        self._room = LISTING_MAX
        self._bounds = Bounds(math.inf, self._room)

    def collect(self) -> None:
        """Read the available answers without blocking; unexpected data ends the connection."""
        try:
            answers = self.connection.arrived(self._bounds, len(self._callbacks))
        except (OSError, ValueError) as error:
            self.fail(error)
            return
        if answers:
            self._bounds = Bounds(math.inf, self._room)
        for answer in answers:
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
        self.connection.close()


@dataclass(slots=True)
class Master:
    """One of the servers. Safe to share between threads; its lock is held for memory only.

    trouble: why it cannot be reached now. is_silent: the last wait for its answer timed out. pending_removals: by
    incarnation, which counts as absent, the encoded request and until when it is sent again.
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
    pending_removals: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """`host:port`."""
        return endpoint(self.address)

    def may_vote_at(self, connection: MasterConnection) -> float:
        """Return the instant (boot clock) from which this server may vote: leases that it lost are over then."""
        if self.restart_delay <= 0:
            return 0.0
        return max(connection.identity.started_before, self.replaced_at) + self.restart_delay

    def take(self) -> MasterConnection | None:
        """Return an idle open connection, if any; one with outstanding answers first, to keep the order."""
        while True:
            with self.lock:
                if not self.idle:
                    return None
                at = next((at for at, connection in enumerate(self.idle) if connection.awaits), len(self.idle) - 1)
                connection = self.idle.pop(at)
            if connection.is_open:
                return connection

    def give_back(self, connection: MasterConnection) -> None:
        """Return a connection to the pool."""
        with self.lock:
            if self.is_open and connection.is_open and len(self.idle) < IDLE_MAX:
                self.idle.append(connection)
                return
        connection.close()

    def connect(self) -> MasterConnection:
        """Connect, load the script and identify the server. Raises StoreError: no command was sent. Blocks."""
        bounds = Bounds(DIAL_LIMIT)
        opened = connected(self.access, (self.address, False), bounds.ends_at)
        try:
            info, sha = opened.exchange([(b"INFO", b"server"), (b"SCRIPT", b"LOAD", SCRIPT)], bounds)
            if isinstance(sha, ServerError):
                raise refusal(sha, self.where, RIGHTS)
            return MasterConnection(opened, self._identity(info))
        except (OutcomeUnknown, *MALFORMED) as error:
            opened.close()
            raise StoreUnavailable(f"cannot connect to Redis at {self.where}: {error}") from error
        except BaseException:
            opened.close()
            raise

    def dial(self) -> MasterConnection | None:
        """Connect, identify the server and send pending removals; None and `trouble` if that fails. Blocks."""
        try:
            connection = self.connect()
        except StoreError as error:
            with self.lock:
                self.trouble = error
                self.down_for = min(DOWN_MAX, max(DOWN_MIN, self.down_for * 2))
                self.down_until = time.monotonic() + self.down_for
            return None
        with self.lock:
            self.trouble, self.down_until, self.down_for = None, 0.0, 0.0
            if self.run_id and self.run_id != connection.identity.run_id:
                # another server at this address, whatever its uptime: it may not have the earlier one's records
                self.replaced_at = boot_now()
            self.run_id = connection.identity.run_id
            owed = [(identity, packed) for identity, (packed, _until) in self.pending_removals.items()]
        if owed:
            connection.post(
                b"".join(packed for _id, packed in owed),
                [self.removal_confirmed(identity) for identity, _packed in owed],
            )
        return connection

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
                self.pending_removals = dict(filter(lambda owed: owed[1][1] > now, self.pending_removals.items()))
            self.pending_removals[incarnation] = packed, now + seconds

    def has_pending_removal(self, incarnation: str) -> bool:
        """Return whether the removal of a record is pending."""
        pending = self.pending_removals.get(incarnation)
        if pending is None:
            return False
        if pending[1] > time.monotonic():
            return True
        self.pending_removals.pop(incarnation, None)
        return False

    def _identity(self, info: object) -> Identity:
        if isinstance(info, bytes):
            return _identity(info, self.where)
        if self.restart_delay > 0:
            raise StoreRefused(
                f"this user may not read the uptime of Redis at {self.where}: grant it INFO, or set "
                "restart_delay=0 if the masters lose no data in a restart"
            )
        return Identity("", 0.0)


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
