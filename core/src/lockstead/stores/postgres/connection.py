# Generated from aio_connection.py by `make blocking`: edit that file instead.
"""How one statement goes to a PostgreSQL server and back within a limit, and what is then known of it.

By psycopg's libpq connection itself: its cursors have no time limit, and do not tell an error that came before a result
from one that came after it. The first means that nothing was changed; behind a result stands a commit that may have
been carried out. Every statement is sent once. It is prepared by name only where no pooler stands between: that may
hand each to another connection of its own. Must not know what is asked.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_attempts, conninfo_to_dict, make_conninfo

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.blocking import Readiness, aside
from lockstead.stores.bounds import ANSWER_MAX, LISTING_MAX, AnswerTooLong, Bounds
from lockstead.stores.postgres.errors import Missing, not_connected
from lockstead.stores.postgres.libpq import WELL, Row, failure, guard, line, name_of, received, rows, settled

if TYPE_CHECKING:
    from psycopg.pq import abc
    from psycopg.pq.abc import PGresult

PREPARE_AFTER: Final = 2
"""Uses of a statement on one connection after which it is prepared there: planning takes most of its time."""

RESULTS_MAX: Final = 8
"""Results of one statement that are taken in; ours have one. libpq returns that of a COPY again and again."""

CANCEL_SHARE: Final = 0.2
CANCEL_MAX: Final = 0.5
"""The part of a limit, and seconds at most, that are left for calling a statement back which does not end."""

CANCEL_ASIDE: Final = 10.0
"""Seconds that a statement of a cancelled caller may take to be called back."""


class Connection:
    """One connection, for one thread or task at a time. After an error that leaves it in doubt `is_good` is False."""

    def __init__(self, pgconn: abc.PGconn, place: str) -> None:
        self._pgconn = pgconn
        self._place = place
        self._readiness = Readiness(pgconn.socket)
        self._warned = False
        self._uses: dict[bytes, int] = {}
        self._prepared: dict[bytes, bytes] = {}
        self._bounds = Bounds(0.0)
        self._counted = received(pgconn.socket)
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
        return not self._readiness.is_readable()

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
            except TimeoutError:
                self._call_back(ends_at)
                self._collect(results, ends_at)
                self._raise_for(results, called_back=limit)
                raise TimeoutError from None  # it ended all the same, too late: what it did is done
        except TimeoutError:
            raise OutcomeUnknown(f"{self._place} did not answer within {limit:.3g} s") from None
        except AnswerTooLong as error:
            raise OutcomeUnknown(f"no clear answer of {self._place}: {error}") from error
        except psycopg.Error as error:
            self._raise_for(results)
            raise OutcomeUnknown(f"the connection to {self._place} was lost: {line(error)}") from error
        except GeneratorExit:  # collected, perhaps in a thread that holds a lock: no thread is started
            raise
        except BaseException:
            self._call_back_aside()
            raise
        if len(results) != 1 or results[0].status not in WELL:
            self._raise_for(results, goes_on=True)
        if self._warned:
            # a commit that was not waited for where it has to be: a standby may not have it
            raise OutcomeUnknown(f"{self._place} warned of the change: {self._warning}")
        self.is_good = True
        return rows(results[0])

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
        except TimeoutError:
            raise StoreUnavailable(f"{self._place} did not answer in time; nothing was changed") from None
        self._raise_for(results)
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
            raise StoreUnavailable(f"the connection to {self._place} was lost: {line(error)}") from error
        return said

    def close(self) -> None:
        """Close the connection. Idempotent; raises nothing."""
        self.is_good = False
        self._pgconn.finish()

    def _raise_for(
        self, results: Sequence[PGresult], *, called_back: float | None = None, goes_on: bool = False
    ) -> None:
        """Raise what results mean, unless all went well. goes_on: the server has ended the statement and waits."""
        error = failure(results, self._place, called_back)
        if error is None:
            return
        if goes_on and not isinstance(error, OutcomeUnknown | Missing):
            self.is_good = True
        raise error

    def _noticed(self, notice: PGresult) -> None:
        if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"WARNING":
            self._warned = True
            self._warning = line(notice.get_error_message("utf-8"))

    _warning = ""

    def _collect(self, results: list[PGresult], ends_at: float) -> None:
        pgconn, readiness = self._pgconn, self._readiness
        if pgconn.flush():
            self._flush(ends_at)
        while True:
            # a server that goes on sending is never late by what it has not sent
            if time.monotonic() > ends_at:
                raise TimeoutError
            while pgconn.is_busy():
                readiness.readable(ends_at)
                self._take_in()
                if time.monotonic() > ends_at and pgconn.is_busy():
                    raise TimeoutError
            result = pgconn.get_result()
            if result is None:
                return
            results.append(result)
            if len(results) > RESULTS_MAX:
                raise AnswerTooLong("it says what does not answer a statement")

    def _take_in(self) -> None:
        """Have libpq read what has come, and count that: it keeps as much as a server announces."""
        self._pgconn.consume_input()
        counted = received(self.descriptor)
        self._bounds.took(counted - self._counted)
        self._counted = counted

    def _flush(self, ends_at: float) -> None:
        """Send what the socket did not take at once."""
        while self._pgconn.flush():
            if time.monotonic() > ends_at:
                raise TimeoutError
            if self._readiness.ready(ends_at):
                self._take_in()

    def _call_back(self, ends_at: float) -> None:
        """Ask the server to stop what it does for us: a statement that waits would change something much later."""
        if pq.version() < 170000:
            return  # that libpq cannot do it without blocking
        half_way = time.monotonic() + (ends_at - time.monotonic()) / 2
        try:
            cancel = self._pgconn.cancel_conn()
            cancel.start()
            state: int = pq.PollingStatus.WRITING
            while state in _UNDER_WAY:
                _looked(cancel.socket, state, half_way)
                state = cancel.poll()
        except (TimeoutError, psycopg.Error):
            return

    def _call_back_aside(self) -> None:
        """Do the same for a caller that was cancelled or interrupted and cannot wait: in a thread that ends with it."""
        with suppress(psycopg.Error, RuntimeError):
            if pq.version() >= 170000:
                cancel = self._pgconn.cancel_conn()
                threading.Thread(target=_cancelled, args=(cancel,), name="lockstead-aside", daemon=True).start()


def _cancelled(cancel: abc.PGcancelConn) -> None:
    with suppress(psycopg.Error):
        _cancel(cancel, time.monotonic() + CANCEL_ASIDE)


def _cancel(cancel: abc.PGcancelConn, ends_at: float) -> None:
    """Call a statement back in a thread. `PGcancelConn.blocking` holds the GIL until the server answers."""
    cancel.start()
    state: int = pq.PollingStatus.WRITING
    while state in _UNDER_WAY and (left := ends_at - time.monotonic()) > 0:
        poll = select.poll()
        poll.register(cancel.socket, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT)
        if poll.poll(1000 * left):
            state = cancel.poll()


_UNDER_WAY: Final = (pq.PollingStatus.READING, pq.PollingStatus.WRITING)


def _looked(descriptor: int, state: int, ends_at: float) -> None:
    """Wait for what libpq waits for. A new socket may come under an old number: this one is looked at once."""
    if time.monotonic() > ends_at:
        raise TimeoutError
    if state == pq.PollingStatus.READING:
        Readiness(descriptor).readable(ends_at)
    else:
        Readiness(descriptor).ready(ends_at, reads=False)


def connect(conninfo: str, place: str, limit: float, *, may_be_clear: bool = False) -> Connection:
    """Open a connection within `limit` seconds, to the first of its hosts that takes one.

    may_be_clear: a server may ask another machine's password in clear.

    Raises StoreUnavailable or StoreRefused: nothing was asked of the server yet.
    """
    ends_at = time.monotonic() + limit
    try:
        parameters = conninfo_to_dict(conninfo, client_encoding="UTF8", fallback_application_name="lockstead")
        allowed = float(parameters.pop("connect_timeout", 0) or 0)
        attempts = aside(partial(_attempts, parameters), ends_at)
    except TimeoutError:
        raise StoreUnavailable(f"cannot connect to {place}: no name server answered within {limit:.3g} s") from None
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"cannot connect to {place}: {line(error)}") from None
    except (psycopg.Error, ValueError):
        # libpq's own words may repeat a part of the URL, which may be a password
        raise StoreRefused(f"cannot connect to {place}: libpq cannot read the URL or the PG* environment") from None
    said: list[StoreError] = []
    for number, attempt in enumerate(attempts):
        share = max(0.0, ends_at - time.monotonic()) / (len(attempts) - number)
        until = time.monotonic() + (min(share, allowed) if allowed > 0 else share)
        try:
            guarded = {**attempt, **guard(attempt, may_be_clear=may_be_clear)}
            return Connection(_connected(make_conninfo("", **guarded), until), place)
        except TimeoutError:
            said.append(StoreUnavailable(f"cannot connect to {place}: no answer within {limit:.3g} s"))
        except AnswerTooLong as error:
            said.append(StoreUnavailable(f"cannot connect to {place}: {error}"))
        except StoreRefused as error:
            said.append(error)
        except psycopg.Error as error:
            said.append(not_connected(line(error), place))
    # what can be waited for weighs more than what cannot: one host of several that is misconfigured is not a verdict
    raise next((error for error in said if isinstance(error, StoreUnavailable)), said[0])


def _attempts(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the addresses to try, each with all parameters. libpq itself would hold the GIL as it looks them up."""
    return conninfo_attempts(settled(parameters))


def _connected(conninfo: str, ends_at: float) -> abc.PGconn:
    # libpq asks name servers there, and looks for files
    pgconn = aside(partial(pq.PGconn.connect_start, conninfo.encode()), ends_at)
    try:
        while True:
            if pgconn.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError(pgconn.get_error_message("utf-8"))
            state = pgconn.connect_poll()
            if state == pq.PollingStatus.OK:
                pgconn.nonblocking = 1
                return pgconn
            if state == pq.PollingStatus.FAILED:
                raise psycopg.OperationalError(pgconn.get_error_message("utf-8"))
            _looked(pgconn.socket, state, ends_at)
            if received(pgconn.socket) > ANSWER_MAX:
                raise AnswerTooLong(f"more than {ANSWER_MAX >> 20} MiB came before the connection stood")
    except BaseException:
        pgconn.finish()
        raise
