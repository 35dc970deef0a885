"""One session with a PostgreSQL server, as scripts: what is sent, what is waited for, and what is known afterwards.

The scripts run on psycopg's libpq connection itself: its cursors have no time limit, and do not distinguish an error
before a result from one after it. The first means that nothing was changed; after a result, a commit may have been
carried out. Every statement is sent once. It is prepared by name only if there is no pooler, which may send each
statement to another server connection. Must not know what the statements are, nor how a caller waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.script import Script
from lockstead.stores.blocking import is_readable
from lockstead.stores.bounds import ANSWER_MAX, LISTING_MAX, AnswerTooLong, Bounds
from lockstead.stores.postgres.errors import Missing, not_connected
from lockstead.stores.postgres.libpq import (
    WELL,
    Row,
    attempts_of,
    cancel,
    failure,
    guard,
    line,
    name_of,
    received,
    rows,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGcancelConn, PGconn, PGresult

T = TypeVar("T")

PREPARE_AFTER: Final = 2
"""Uses of a statement on one connection after which it is prepared there: planning takes most of its time."""

RESULTS_MAX: Final = 8
"""Results of one statement that are read; ours have one. libpq returns the result of a COPY again and again."""

CANCEL_SHARE: Final = 0.2
CANCEL_MAX: Final = 0.5
"""The part of a limit, and seconds at most, that are reserved for cancelling a statement that does not end."""

CANCEL_ASIDE: Final = 10.0
"""Seconds that cancelling the statement of an interrupted caller may take."""


class Wait(NamedTuple):
    """A request to wait until a socket is ready; a script is thrown TimeoutError at ends_at (monotonic clock)."""

    descriptor: int
    ends_at: float
    reads: bool = True
    writes: bool = False


class Aside(NamedTuple):
    """A request for the result of a call that may block; a script is thrown TimeoutError at ends_at."""

    call: Callable[[], Any]
    ends_at: float


Exchange: TypeAlias = Script[Wait | Aside, Any, T]


class Session:
    """One connection, for one thread or task at a time. It may be used again while `is_good`.

    is_direct: whether the server itself answers, and not a pooler. opened_at: monotonic clock. place: the server and
    database, without credentials.
    """

    def __init__(self, pgconn: PGconn, place: str) -> None:
        self.place = place
        self.descriptor = int(pgconn.socket)
        self.opened_at = time.monotonic()
        self.is_good = True
        self.permit: object = None
        self.is_direct = False
        self._pgconn = pgconn
        self._warning = ""
        self._uses: dict[bytes, int] = {}
        self._prepared: dict[bytes, bytes] = {}
        self._bounds = Bounds(0.0)
        self._counted = received(self.descriptor)
        pgconn.notice_handler = self._noticed

    def learn(self, backend: str | None) -> bool:
        """Set and return `is_direct`. backend: the process id that the server says it has."""
        self.is_direct = backend == str(self._pgconn.backend_pid)
        return self.is_direct

    def parameter(self, name: str) -> str:
        """Return a parameter that the server reported on connecting ("server_encoding"); empty if it did not."""
        value = self._pgconn.parameter_status(name.encode())
        return "" if value is None else value.decode("utf-8", "replace")

    @property
    def host(self) -> str:
        """The connected host; a path for a socket of this machine."""
        return self._pgconn.host.decode("utf-8", "replace") or "/"

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return bool(self._pgconn.ssl_in_use)

    @property
    def version(self) -> int:
        """The server's version, as in 150018."""
        return int(self._pgconn.server_version)

    def is_quiet(self) -> bool:
        """Return whether nothing has arrived on the idle connection; a goodbye would be readable."""
        return not is_readable(self.descriptor)

    def exchange(self, statement: bytes, parameters: Sequence[str | None], limit: float) -> Exchange[list[Row]]:
        """Send one statement and return its rows, within `limit` seconds.

        Raises StoreUnavailable (nothing was changed), OutcomeUnknown or StoreRefused.
        """
        self._bounds = Bounds(limit, LISTING_MAX)
        ends_at = self._bounds.ends_at
        cancel_at = ends_at - min(CANCEL_MAX, limit * CANCEL_SHARE)
        values = [None if value is None else value.encode() for value in parameters]
        results: list[PGresult] = []
        self._warning, self.is_good = "", False
        try:
            name = self._prepared.get(statement)
            if name is None and self.is_direct:
                name = yield from self._prepare(statement, cancel_at)
            if name is None:
                self._pgconn.send_query_params(statement, values)
            else:
                self._pgconn.send_query_prepared(name, values)
            try:
                yield from self._collect(results, cancel_at)
            except TimeoutError:
                yield from self._cancel(ends_at)
                yield from self._collect(results, ends_at)
                self._raise_for(results, cancelled_after=limit)
                raise TimeoutError from None  # it ended too late, and what it did is done
        except TimeoutError:
            raise OutcomeUnknown(f"{self.place} did not answer within {limit:.3g} s") from None
        except AnswerTooLong as error:
            raise OutcomeUnknown(f"no clear answer from {self.place}: {error}") from error
        except psycopg.Error as error:
            self._raise_for(results)
            raise OutcomeUnknown(f"the connection to {self.place} was lost: {line(error)}") from error
        if len(results) != 1 or results[0].status not in WELL:
            self._raise_for(results, has_ended=True)
        if self._warning:
            # a commit that was not waited for where it has to be: a standby may not have it
            raise OutcomeUnknown(f"{self.place} warned of the change: {self._warning}")
        self.is_good = True
        return rows(results[0])

    def cancel_aside(self) -> None:
        """Cancel the statement of a caller that was interrupted and cannot wait: in a thread that ends by itself."""
        with suppress(psycopg.Error, RuntimeError):
            if (request := self._cancel_request()) is not None:
                call = partial(cancel, request, time.monotonic() + CANCEL_ASIDE)
                threading.Thread(target=call, name="lockstead-aside", daemon=True).start()

    def notifications(self) -> list[str]:
        """Return the notifications that have arrived. Raises StoreUnavailable if the connection is lost."""
        try:
            self._read()
            payloads = []
            while (notice := self._pgconn.notifies()) is not None:
                payloads.append(notice.extra.decode("utf-8", "replace"))
            if payloads:
                self._bounds = Bounds(math.inf, LISTING_MAX)  # for the next one
        except (psycopg.Error, AnswerTooLong) as error:
            self.is_good = False
            raise StoreUnavailable(f"the connection to {self.place} was lost: {line(error)}") from error
        return payloads

    def finish(self) -> None:
        """Close the connection. Idempotent; raises nothing."""
        self.is_good = False
        self._pgconn.finish()

    def _prepare(self, statement: bytes, ends_at: float) -> Exchange[bytes | None]:
        """Prepare a statement and return its name; None while it was used too seldom for that."""
        uses = self._uses[statement] = self._uses.get(statement, 0) + 1
        if uses <= PREPARE_AFTER:
            return None
        results: list[PGresult] = []
        name = name_of(statement)
        self._pgconn.send_prepare(name, statement)
        try:
            yield from self._collect(results, ends_at)
        except TimeoutError:
            raise StoreUnavailable(f"{self.place} did not answer in time; nothing was changed") from None
        self._raise_for(results)
        self._prepared[statement] = name
        return name

    def _raise_for(
        self, results: Sequence[PGresult], *, cancelled_after: float | None = None, has_ended: bool = False
    ) -> None:
        """Raise the error of these results, if any. has_ended: the server waits for the next statement."""
        error = failure(results, self.place, cancelled_after)
        if error is None:
            return
        self.is_good = has_ended and not isinstance(error, OutcomeUnknown | Missing)
        raise error

    def _noticed(self, notice: PGresult) -> None:
        if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"WARNING":
            self._warning = line(notice.get_error_message("utf-8")) or "?"

    def _collect(self, results: list[PGresult], ends_at: float) -> Exchange[None]:
        """Send what is not sent yet, and append the results of the statement."""
        pgconn = self._pgconn
        while pgconn.flush():  # the socket did not take all of it
            _check_time(ends_at)
            yield Wait(self.descriptor, ends_at, writes=True)
            self._read()
        while True:
            _check_time(ends_at)  # a server that keeps sending is late, too
            while pgconn.is_busy():
                yield Wait(self.descriptor, ends_at)
                self._read()
                if pgconn.is_busy():
                    _check_time(ends_at)
            result = pgconn.get_result()
            if result is None:
                return
            results.append(result)
            if len(results) > RESULTS_MAX:
                raise AnswerTooLong("it does not answer a statement")

    def _read(self) -> None:
        """Let libpq read what has arrived, and count it: libpq keeps as much as a server announces."""
        self._pgconn.consume_input()
        counted = received(self.descriptor)
        self._bounds.took(counted - self._counted)
        self._counted = counted

    def _cancel(self, ends_at: float) -> Exchange[None]:
        """Ask the server to stop the statement: one that waits would change something much later."""
        half_way = (time.monotonic() + ends_at) / 2
        with suppress(TimeoutError, psycopg.Error, StoreUnavailable):
            if (request := self._cancel_request()) is not None:
                yield Aside(partial(cancel, request, half_way), half_way)

    def _cancel_request(self) -> PGcancelConn | None:
        # an older libpq cannot cancel without blocking
        return self._pgconn.cancel_conn() if pq.version() >= 170000 else None


S = TypeVar("S", bound=Session)


def connect(
    make: Callable[[PGconn, str], S], conninfo: str, place: str, limit: float, *, may_be_clear: bool = False
) -> Exchange[S]:
    """Open a connection within `limit` seconds, to the first of its hosts that accepts one, and return make(it, place).

    may_be_clear: a server may ask another machine for the password in clear.

    Raises StoreUnavailable or StoreRefused: nothing was asked of the server yet.
    """
    ends_at = time.monotonic() + limit
    try:
        attempts = yield Aside(partial(attempts_of, conninfo), ends_at)
    except TimeoutError:
        raise StoreUnavailable(f"cannot connect to {place}: no name server answered within {limit:.3g} s") from None
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"cannot connect to {place}: {line(error)}") from None
    except (psycopg.Error, ValueError):
        # libpq's own message may repeat a part of the URL, which may be a password
        raise StoreRefused(
            f"cannot connect to {place}: libpq cannot read the URL, the PG* environment or the service file"
        ) from None
    errors: list[StoreError] = []
    for number, (attempt, allowed) in enumerate(attempts):
        now = time.monotonic()
        until = now + min(max(0.0, ends_at - now) / (len(attempts) - number), allowed)
        try:
            guarded = {**attempt, **guard(attempt, may_be_clear=may_be_clear)}
            return make((yield from _connected(make_conninfo("", **guarded), until)), place)
        except TimeoutError:
            errors.append(StoreUnavailable(f"cannot connect to {place}: no answer within {limit:.3g} s"))
        except AnswerTooLong as error:
            errors.append(StoreUnavailable(f"cannot connect to {place}: {error}"))
        except StoreError as error:
            errors.append(error)
        except psycopg.Error as error:
            errors.append(not_connected(line(error), place))
    # an error that may pass outweighs one that will not: one misconfigured host of several is not decisive
    raise next((error for error in errors if isinstance(error, StoreUnavailable)), errors[0])


def _connected(conninfo: str, ends_at: float) -> Exchange[PGconn]:
    # libpq asks name servers there, and looks for files
    pgconn: PGconn = yield Aside(partial(pq.PGconn.connect_start, conninfo.encode()), ends_at)
    try:
        while True:
            state = pq.PollingStatus.FAILED if pgconn.status == pq.ConnStatus.BAD else pgconn.connect_poll()
            if state == pq.PollingStatus.FAILED:
                raise psycopg.OperationalError(pgconn.get_error_message("utf-8"))
            if state == pq.PollingStatus.OK:
                pgconn.nonblocking = 1
                return pgconn
            _check_time(ends_at)
            reads = state == pq.PollingStatus.READING
            yield Wait(pgconn.socket, ends_at, reads=reads, writes=not reads)
            if received(pgconn.socket) > ANSWER_MAX:
                raise AnswerTooLong(f"more than {ANSWER_MAX >> 20} MiB came before the connection was established")
    except BaseException:
        pgconn.finish()
        raise


def _check_time(ends_at: float) -> None:
    if time.monotonic() > ends_at:
        raise TimeoutError
