"""How one statement goes to a PostgreSQL server and back within a limit, and what is then known of it.

By psycopg's libpq connection itself: its cursors have no time limit, and do not tell an error that came before a result
from one that came after it. The first means that nothing was changed; behind a result stands a commit that may have
been carried out. Every statement is sent once. It is prepared by name only where no pooler stands between: that may
hand each to another connection of its own. Must not know what is asked.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_attempts, conninfo_to_dict, make_conninfo

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import ANSWER_MAX, LISTING_MAX, AnswerTooLong, Bounds
from lockstead.stores.postgres.errors import Missing, not_connected, refusal
from lockstead.stores.transport import is_local

if TYPE_CHECKING:
    from psycopg.pq import abc
    from psycopg.pq.abc import PGresult

Row: TypeAlias = "list[str | None]"

PREPARE_AFTER: Final = 2
"""Uses of a statement on one connection after which it is prepared there: planning takes most of its time."""

CANCEL_SHARE: Final = 0.2
CANCEL_MAX: Final = 0.5
"""The part of a limit, and seconds at most, that are left for calling a statement back which does not end."""

TCP_INFO: Final = getattr(socket, "TCP_INFO", 11)
_COUNT: Final = struct.Struct("128xQ")
"""Linux: `tcpi_bytes_received` in `struct tcp_info`."""

_WELL: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)

_POLL_READ: Final = select.POLLIN | select.POLLPRI
_POLL_BOTH: Final = _POLL_READ | select.POLLOUT


class _Late(Exception):  # noqa: N818 - not an error: time is up
    """The time for waiting is over."""


class Connection:
    """One connection, used by one thread at a time. After an error that leaves it in doubt `is_good` is False."""

    def __init__(self, pgconn: abc.PGconn, place: str) -> None:
        self._pgconn = pgconn
        self._place = place
        self._poll = select.poll()
        self._poll.register(pgconn.socket, _POLL_READ)
        self._warned = False
        self._uses: dict[bytes, int] = {}
        self._prepared: dict[bytes, bytes] = {}
        self._bounds = Bounds(0.0)
        self._counted = _received(pgconn.socket)
        self.is_direct = False
        self.opened_at = time.monotonic()
        self.is_good = True
        pgconn.notice_handler = self._noticed

    @property
    def place(self) -> str:
        """The server and database, as they may be shown."""
        return self._place

    def learn(self, backend: str | None) -> bool:
        """Return whether the server itself answers and no pooler: by the number of the process that it says it has."""
        self.is_direct = backend == str(self._pgconn.backend_pid)
        return self.is_direct

    @property
    def descriptor(self) -> int:
        """The socket."""
        return int(self._pgconn.socket)

    def said(self, name: str) -> str:
        """Return what the server said of itself when it was connected to ("server_encoding"); empty if nothing."""
        value = self._pgconn.parameter_status(name.encode())
        return "" if value is None else value.decode("utf-8", "replace")

    @property
    def host(self) -> str:
        """The host that was connected to; a path for a socket of this machine."""
        return self._pgconn.host.decode("utf-8", "replace") or "/"

    @property
    def is_encrypted(self) -> bool:
        """Whether what is sent goes through TLS."""
        return bool(self._pgconn.ssl_in_use)

    @property
    def version(self) -> int:
        """The server's version, as in 150018."""
        return int(self._pgconn.server_version)

    def is_usable(self) -> bool:
        """Return whether the idle connection stands and nothing has come: a goodbye would be waiting to be read."""
        return not self._poll.poll(0)

    def ask(self, statement: bytes, parameters: Sequence[str | None], limit: float) -> list[Row]:
        """Send one statement and give its rows, within `limit` seconds.

        Raises StoreUnavailable (nothing was changed), OutcomeUnknown or StoreRefused.
        """
        self._bounds = Bounds(limit, LISTING_MAX)
        ends_at = self._bounds.ends_at
        self._warned = False
        values = [None if value is None else value.encode() for value in parameters]
        results: list[PGresult] = []
        try:
            self.is_good = False
            called_back_at = ends_at - min(CANCEL_MAX, limit * CANCEL_SHARE)
            name = self._prepared.get(statement)
            if name is None and self.is_direct:
                name = self._name_of(statement, called_back_at)
            if name is None:
                self._pgconn.send_query_params(statement, values)
            else:
                self._pgconn.send_query_prepared(name, values)
            try:
                self._collect(results, called_back_at)
            except _Late:
                self._call_back(ends_at)
                self._collect(results, ends_at)
                raise_for(results, self._place, called_back=limit)
                raise _Late from None  # it ended all the same, too late: what it did is done
        except _Late:
            raise OutcomeUnknown(f"{self._place} did not answer within {limit:.3g} s") from None
        except AnswerTooLong as error:
            raise OutcomeUnknown(f"no clear answer of {self._place}: {error}") from error
        except psycopg.Error as error:
            raise_for(results, self._place)
            raise OutcomeUnknown(f"the connection to {self._place} was lost: {_line(error)}") from error
        if len(results) != 1 or results[0].status not in _WELL:
            raise_for(results, self._place, leave=self)
        if self._warned:
            # a commit that was not waited for where it has to be: a standby may not have it
            raise OutcomeUnknown(f"{self._place} warned of the change: {self._warning}")
        self.is_good = True
        return _rows(results[0])

    def _name_of(self, statement: bytes, ends_at: float) -> bytes | None:
        """Prepare a statement and give its name, None while it is used too seldom for that."""
        uses = self._uses[statement] = self._uses.get(statement, 0) + 1
        if uses <= PREPARE_AFTER:
            return None
        results: list[PGresult] = []
        name = name_of(statement)
        self._pgconn.send_prepare(name, statement)
        try:
            self._collect(results, ends_at)
        except _Late:
            raise StoreUnavailable(f"{self._place} did not answer in time; nothing was changed") from None
        raise_for(results, self._place)
        self._prepared[statement] = name
        return name

    def notifications(self) -> list[str]:
        """Return what was notified since, without waiting. Raises StoreUnavailable when the connection is gone."""
        try:
            self._take_in()
            said = []
            while (notice := self._pgconn.notifies()) is not None:
                said.append(notice.extra.decode("utf-8", "replace"))
            if said:
                self._bounds = Bounds(math.inf, LISTING_MAX)  # for the next one
        except (psycopg.Error, AnswerTooLong) as error:
            self.is_good = False
            raise StoreUnavailable(f"the connection to {self._place} was lost: {_line(error)}") from error
        return said

    def close(self) -> None:
        """Say goodbye."""
        self.is_good = False
        self._pgconn.finish()

    def _noticed(self, notice: PGresult) -> None:
        if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"WARNING":
            self._warned = True
            self._warning = _line(notice.get_error_message("utf-8"))

    _warning = ""

    def _collect(self, results: list[PGresult], ends_at: float) -> None:
        pgconn = self._pgconn
        poll = self._poll
        if pgconn.flush():
            self._flush(ends_at)
        while True:
            # a server that goes on sending is never late by what it has not sent
            if time.monotonic() > ends_at:
                raise _Late
            while pgconn.is_busy():
                # as `_ready` does, without its frame: every statement comes through here
                if not poll.poll(max(0, int((ends_at - time.monotonic()) * 1000) + 1)):
                    raise _Late
                self._take_in()
                if time.monotonic() > ends_at and pgconn.is_busy():
                    raise _Late
            result = pgconn.get_result()
            if result is None:
                return
            results.append(result)

    def _take_in(self) -> None:
        """Have libpq read what has come, and count that: it keeps as much as a server announces."""
        self._pgconn.consume_input()
        received = _received(self.descriptor)
        self._bounds.took(received - self._counted)
        self._counted = received

    def _flush(self, ends_at: float) -> None:
        """Send what the socket did not take at once."""
        poll, pgconn = self._poll, self._pgconn
        poll.modify(self.descriptor, _POLL_BOTH)
        try:
            while pgconn.flush():
                if _ready(poll, ends_at) & _POLL_READ:
                    self._take_in()
        finally:
            poll.modify(self.descriptor, _POLL_READ)

    def _call_back(self, ends_at: float) -> None:
        """Ask the server to stop what it does for us: a statement that waits would change something much later."""
        if pq.version() < 170000:
            return  # that libpq cannot do it without blocking
        half_way = time.monotonic() + (ends_at - time.monotonic()) / 2
        try:
            cancel = self._pgconn.cancel_conn()
            cancel.start()
            poll = select.poll()
            while (state := cancel.poll()) in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
                poll.register(cancel.socket, _POLL_READ if state == pq.PollingStatus.READING else select.POLLOUT)
                _ready(poll, half_way)
        except (_Late, psycopg.Error):
            return


def raise_for(
    results: Sequence[PGresult], place: str, *, leave: Connection | None = None, called_back: float | None = None
) -> None:
    """Raise what the results of one statement mean, unless all of it went well.

    leave: the connection, which stays good where the server refused the statement and goes on. called_back: the
    limit (seconds) after which the statement was called back.
    """
    if not results:
        return
    first, last = results[0], results[-1]
    if first.status == pq.ExecStatus.FATAL_ERROR:
        code = first.error_field(pq.DiagnosticField.SQLSTATE)
        severity = first.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or first.error_field(
            pq.DiagnosticField.SEVERITY
        )
        message = first.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or first.error_message
        text = _line(message.decode("utf-8", "replace"))
        error = refusal((code or b"").decode(), (severity or b"").decode("utf-8", "replace"), text, place, called_back)
        if leave is not None and not isinstance(error, OutcomeUnknown | Missing):
            leave.is_good = True
        raise error
    if last.status == pq.ExecStatus.FATAL_ERROR:
        raise OutcomeUnknown(f"{place} failed while it committed: {_line(last.get_error_message('utf-8'))}")


def connect(conninfo: str, place: str, limit: float, *, may_be_clear: bool = False) -> Connection:
    """Open a connection within `limit` seconds, to the first of its hosts that takes one.

    may_be_clear: a server may ask another machine's password in clear.

    Raises StoreUnavailable or StoreRefused: nothing was asked of the server yet.
    """
    ends_at = time.monotonic() + limit
    try:
        parameters = conninfo_to_dict(conninfo, client_encoding="UTF8", fallback_application_name="lockstead")
        allowed = float(parameters.pop("connect_timeout", 0) or 0)
        attempts = conninfo_attempts(parameters)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"cannot connect to {place}: {_line(error)}") from None
    except (psycopg.Error, ValueError):
        # libpq's own words may repeat a part of the URL, which may be a password
        raise StoreRefused(f"cannot connect to {place}: libpq cannot read the URL or the PG* environment") from None
    said: list[StoreError] = []
    for number, attempt in enumerate(attempts):
        share = max(0.0, ends_at - time.monotonic()) / (len(attempts) - number)
        until = time.monotonic() + (min(share, allowed) if allowed > 0 else share)
        try:
            guarded = {**attempt, **_guard(attempt, may_be_clear=may_be_clear)}
            return Connection(_connected(make_conninfo("", **guarded), until), place)
        except _Late:
            said.append(StoreUnavailable(f"cannot connect to {place}: no answer within {limit:.3g} s"))
        except AnswerTooLong as error:
            said.append(StoreUnavailable(f"cannot connect to {place}: {error}"))
        except StoreRefused as error:
            said.append(error)
        except psycopg.Error as error:
            said.append(not_connected(_line(error), place))
    # what can be waited for weighs more than what cannot: one host of several that is misconfigured is not a verdict
    raise next((error for error in said if isinstance(error, StoreUnavailable)), said[0])


def _guard(attempt: Mapping[str, Any], *, may_be_clear: bool) -> dict[str, str]:
    """Return what keeps libpq from answering a server that asks for the password itself, where TLS may be missing."""
    host = str(attempt.get("hostaddr") or attempt.get("host") or os.environ.get("PGHOST") or "/")
    mode = attempt.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    has_own = attempt.get("require_auth") or os.environ.get("PGREQUIREAUTH")
    if may_be_clear or has_own or is_local(host) or mode not in ("disable", "allow", "prefer"):
        return {}
    if pq.version() < 160000:
        raise StoreRefused(
            f"this libpq ({pq.version() // 10000}) cannot keep a password from being sent to {host} in clear; write "
            "sslmode=verify-full, or cleartext=true where everybody on the way is trusted"
        )
    return {"require_auth": "!password"}


def _connected(conninfo: str, ends_at: float) -> abc.PGconn:
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        poll = select.poll()
        while True:
            if pgconn.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError(pgconn.get_error_message("utf-8"))
            state = pgconn.connect_poll()
            if state == pq.PollingStatus.OK:
                pgconn.nonblocking = 1
                return pgconn
            if state == pq.PollingStatus.FAILED:
                raise psycopg.OperationalError(pgconn.get_error_message("utf-8"))
            # a new socket may come under an old number: nothing is registered for longer than one look
            descriptor = pgconn.socket
            poll.register(descriptor, _POLL_READ if state == pq.PollingStatus.READING else select.POLLOUT)
            _ready(poll, ends_at)
            poll.unregister(descriptor)
            if _received(descriptor) > ANSWER_MAX:
                raise AnswerTooLong(f"more than {ANSWER_MAX >> 20} MiB came before the connection stood")
    except BaseException:
        pgconn.finish()
        raise


def _received(descriptor: int) -> int:
    """Return the bytes that have come over a connection so far; 0 where the system does not count them."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        return int(_COUNT.unpack(borrowed.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _COUNT.size))[0])
    except (OSError, struct.error):
        return 0
    finally:
        borrowed.detach()


def _ready(poll: select.poll, ends_at: float) -> int:
    left = ends_at - time.monotonic()
    found = poll.poll(int(left * 1000) + 1) if left > 0 else []
    if not found:
        raise _Late
    event = found[0][1]
    return event if event & (_POLL_READ | select.POLLOUT) else event | _POLL_READ  # an error is read as one


def name_of(statement: bytes) -> bytes:
    """Return the name under which a statement is prepared: the same text, on whatever connection it is found."""
    return b"lockstead_%08x" % zlib.crc32(statement)


def _rows(result: PGresult) -> list[Row]:
    columns, get = range(result.nfields), result.get_value
    return [
        [None if (value := get(row, column)) is None else value.decode() for column in columns]
        for row in range(result.ntuples)
    ]


def _line(error: object) -> str:
    return " ".join(str(error).split())
