"""How one master is reached: connections that never wait, and what is known of the master behind them.

Connections are redis-py's; answers are taken as they come, in the order asked, and whatever nobody waits for any more
is read and thrown away before anything else is asked on the same connection. So no connection is ever in doubt, and
what is sent after a question is done after it. Must not know what is asked.
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
from lockstead.stores.bounds import ANSWER_MAX, LISTING_MAX, Bounds
from lockstead.stores.redis.access import Access, Address, RedisPyConnection
from lockstead.stores.redis.errors import OLDEST, unconnected
from lockstead.stores.redlock.scripts import SCRIPT

Sink = Callable[[object], None]
"""Takes an answer, or the exception that stands for it."""

BACKLOG_BYTES_MAX: Final = 64 * 1024
"""Bytes without an answer on one connection, above which nothing more is sent: a full socket would block."""

STALE_MIN: Final = 1.0
STALE_LIMITS: Final = 3
"""An answer that is outstanding for so many seconds, and so many times the time of a master, does not come any more."""

DIAL_LIMIT: Final = 2.0
"""Seconds for each step of connecting; who asks waits far shorter, and uses the connection next time."""

DOWN_MIN: Final = 0.1
DOWN_MAX: Final = 2.0
"""Seconds for which a master that could not be reached is not waited for, growing while it stays away."""

IDLE_MAX: Final = 64
"""Connections kept for each master."""


class Pipelined(RedisPyConnection, Protocol):
    """What is used beyond that of redis-py's connection: to write many commands, and read without waiting."""

    def pack_command(self, *words: object) -> Sequence[bytes]:
        """Write one command."""
        ...

    def pack_commands(self, commands: Sequence[Sequence[object]]) -> Sequence[bytes]:
        """Write several commands."""
        ...

    def read_response(
        self, disable_decoding: bool = False, *, timeout: float = 0, disconnect_on_error: bool = True
    ) -> Any:
        """Read one reply, raising what is an error; a time-out leaves what was read so far in its place."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which server answers: its run id, and the instant (boot clock) before which it had started."""

    run_id: str
    started_before: float


class Line:
    """One connection to one master. Used by one thread at a time."""

    __slots__ = ("_backlog", "_connection", "_room", "_sinks", "fileno", "identity", "is_open")

    def __init__(self, connection: Pipelined, identity: Identity) -> None:
        self._connection = connection
        self._sinks: deque[tuple[Sink, int, float]] = deque()
        self._room = ANSWER_MAX
        self._bound()
        self._backlog = 0
        self.fileno = -1 if connection._sock is None else connection._sock.fileno()
        self.identity = identity
        self.is_open = True

    @property
    def awaits(self) -> bool:
        """Whether answers are outstanding."""
        return bool(self._sinks)

    def is_stale(self, seconds: float) -> bool:
        """Return whether an answer is outstanding for longer than that: the server may be well, and the way dead."""
        return bool(self._sinks) and time.monotonic() - self._sinks[0][2] > seconds

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be sent until answers have come."""
        return self._backlog > BACKLOG_BYTES_MAX

    def pack(self, *words: str | bytes | int) -> bytes:
        """Return a command as it goes over the wire, to any master."""
        return b"".join(self._connection.pack_command(*words))

    def post(self, packed: bytes, sinks: list[Sink]) -> bool:
        """Send; each sink is given one answer, in order. False if it could not be sent whole: then all is over here."""
        try:
            self._connection.send_packed_command([packed], check_health=False)
        except Exception as error:  # noqa: BLE001 - whatever it was, some of it may have gone out
            self.fail(error)
            return False
        share = len(packed) // len(sinks)
        self._backlog += share * len(sinks)
        now = time.monotonic()
        self._sinks.extend((sink, share, now) for sink in sinks)
        return True

    def takes_listings(self) -> None:
        """Take long answers from now on."""
        self._room = LISTING_MAX
        self._bound()

    def _bound(self) -> None:
        """Bound the next answer: its bytes alone, for nobody waits for it here."""
        connected = self._connection._sock
        if connected is not None:
            connected.bounds = Bounds(math.inf, self._room)

    def collect(self) -> None:
        """Take every answer that is there, without waiting; what comes unasked ends the connection."""
        from redis import exceptions

        if not self._sinks:
            self.fail(ConnectionError("it was closed, or said something unasked"))
            return
        while self._sinks:
            answer: object
            try:
                answer = self._connection.read_response(disable_decoding=True, timeout=0, disconnect_on_error=False)
            except exceptions.ResponseError as error:
                answer = error
            except exceptions.TimeoutError:
                return
            except Exception as error:  # noqa: BLE001 - nothing can be read from it any more
                self.fail(error)
                return
            self._bound()
            sink, share, _sent_at = self._sinks.popleft()
            self._backlog -= share
            sink(answer)

    def fail(self, error: Exception) -> None:
        """End it: nothing is known of what is outstanding."""
        self.close()
        sinks, self._sinks = self._sinks, deque()
        for sink, _share, _sent_at in sinks:
            sink(error)

    def close(self) -> None:
        """Close it. Idempotent."""
        self.is_open = False
        with suppress(Exception):
            self._connection.disconnect()


@dataclass(slots=True)
class Debt:
    """A removal that a master has not confirmed: how it is asked, and until when it is worth asking."""

    packed: bytes
    until: float


@dataclass(slots=True)
class Master:
    """One of the servers. Safe to share between threads; its lock is held for memory only.

    trouble: why it cannot be reached now. silent: the last who waited for it did so in vain. debts: incarnations that
    are to go from it, by name; what it shows of them counts as absent.
    """

    access: Access
    address: Address
    restart_delay: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    idle: list[Line] = field(default_factory=list)
    is_open: bool = True
    trouble: StoreError | None = None
    is_silent: bool = False
    down_until: float = 0.0
    down_for: float = 0.0
    run_id: str = ""
    replaced_at: float = 0.0
    debts: dict[str, Debt] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """`host:port`."""
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def may_vote_at(self, line: Line) -> float:
        """Return the instant (boot clock) from which this server may vote: its memory is then as old as any lease."""
        if self.restart_delay <= 0:
            return 0.0
        return max(line.identity.started_before, self.replaced_at) + self.restart_delay

    def take(self) -> Line | None:
        """Return an open connection; those with outstanding answers first, for what follows has to stay behind them."""
        while True:
            with self.lock:
                if not self.idle:
                    return None
                at = next((at for at, line in enumerate(self.idle) if line.awaits), len(self.idle) - 1)
                line = self.idle.pop(at)
            if line.is_open:
                return line

    def give_back(self, line: Line) -> None:
        """Keep a connection for the next one."""
        with self.lock:
            if self.is_open and line.is_open and len(self.idle) < IDLE_MAX:
                self.idle.append(line)
                return
        line.close()

    def dial(self) -> Line | None:
        """Connect, look whom we have, and send what is owed; None and `trouble` where that fails. Blocks."""
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
                # another server at this address, whatever its uptime: it need not know what the last one knew
                self.replaced_at = boot_now()
            self.run_id = line.identity.run_id
            owed = [(identity, debt.packed) for identity, debt in self.debts.items()]
        if owed:
            line.post(b"".join(packed for _id, packed in owed), [self.paid(identity) for identity, _packed in owed])
        return line

    def paid(self, incarnation: str) -> Sink:
        """Return what takes the answer to a removal that is owed."""

        def take(answer: object) -> None:
            if not isinstance(answer, Exception):
                self.debts.pop(incarnation, None)

        return take

    def owe(self, incarnation: str, packed: bytes, seconds: float) -> None:
        """Note that a record has to go from here; forgotten when its ttl has done it anyhow."""
        now = time.monotonic()
        with self.lock:
            if len(self.debts) >= 1000:
                self.debts = dict(filter(lambda owed: owed[1].until > now, self.debts.items()))
            self.debts[incarnation] = Debt(packed, now + seconds)

    def owes(self, incarnation: str) -> bool:
        """Return whether a record is to go from here."""
        debt = self.debts.get(incarnation)
        if debt is None:
            return False
        if debt.until > time.monotonic():
            return True
        self.debts.pop(incarnation, None)
        return False

    def _dialled(self) -> Line:
        try:
            connection = cast(Pipelined, self.access.connection(self.address, Bounds(DIAL_LIMIT), patience=DIAL_LIMIT))
        except StoreError:
            raise
        except Exception as error:
            raise StoreRefused(f"no connection to Redis can be made: {type(error).__name__}: {error}") from error
        try:
            connection.connect()
            identity = self._identity(connection)
        except StoreError:
            connection.disconnect()
            raise
        except Exception as error:
            connection.disconnect()
            raise unconnected(error, self.where, is_secure=self.access.is_secure) from error
        return Line(connection, identity)

    def _identity(self, connection: Pipelined) -> Identity:
        from redis import exceptions

        asked = [("INFO", "server"), ("ROLE",), ("SCRIPT", "LOAD", SCRIPT)]
        connection.send_packed_command([b"".join(connection.pack_commands(asked))], check_health=False)
        said: list[Any] = []
        for _ in asked:
            try:
                said.append(connection.read_response(disable_decoding=True))
            except exceptions.NoPermissionError as error:
                said.append(error)
        info, role, sha = said
        if isinstance(sha, Exception):
            raise unconnected(sha, self.where, is_secure=self.access.is_secure)
        if not isinstance(role, Exception) and role[0] != b"master":
            raise StoreUnavailable(
                f"Redis at {self.where} is a {role[0].decode().replace('slave', 'replica')}: Redlock needs masters "
                "that know nothing of one another"
            )
        if isinstance(info, Exception):
            if self.restart_delay > 0:
                raise StoreRefused(
                    f"Redis at {self.where} does not let this user see when it started: grant it INFO, or set "
                    "restart_delay=0 if its masters forget nothing"
                )
            return Identity("", 0.0)
        return _identity(info, self.where)


def _identity(info: bytes, where: str) -> Identity:
    known = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    version = known.get("redis_version", "0")
    if tuple(int(piece) for piece in version.split(".")[:2] if piece.isdigit()) < (5, 0):
        raise StoreRefused(f"Redis at {where} is too old ({version}): {OLDEST} or later is needed")
    if known.get("redis_mode", "standalone") != "standalone":
        raise StoreRefused(
            f"Redis at {where} runs as {known['redis_mode']}: Redlock needs masters that know nothing of one another"
        )
    # the server counts whole seconds, from a start that may fall anywhere in one
    uptime = int(known.get("uptime_in_seconds", "0"))
    return Identity(known.get("run_id", ""), boot_now() - max(0, uptime - 1))
