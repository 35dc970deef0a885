"""libpq's results, counts and parameters, and the calls of it that block.

Must not know what the statements are.
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
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_attempts, conninfo_to_dict, make_conninfo

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused
from lockstead.stores.postgres.errors import refusal
from lockstead.stores.transport import is_local

if TYPE_CHECKING:
    from psycopg.pq.abc import PGcancelConn, PGresult

Row: TypeAlias = "list[str | None]"

TCP_INFO: Final = getattr(socket, "TCP_INFO", 11)
_COUNT: Final = struct.Struct("128xQ")
"""Linux: `tcpi_bytes_received` in `struct tcp_info`."""

SETTLED: Final = frozenset(("connect_timeout", "host", "hostaddr", "port", "require_auth", "sslmode"))
"""The parameters that decide where a password is sent, whether in clear, and how long a host may take."""

WELL: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def failure(results: Sequence[PGresult], place: str, cancelled_after: float | None = None) -> StoreError | None:
    """Return the error of the results of one statement; None if it succeeded, or there are no results.

    cancelled_after: the limit (seconds) after which the statement was cancelled.
    """
    if not results:
        return None
    first, last = results[0], results[-1]
    if first.status == pq.ExecStatus.FATAL_ERROR:
        field = pq.DiagnosticField
        code = first.error_field(field.SQLSTATE) or b""
        severity = first.error_field(field.SEVERITY_NONLOCALIZED) or first.error_field(field.SEVERITY) or b""
        message = first.error_field(field.MESSAGE_PRIMARY) or first.error_message
        said = line(message.decode("utf-8", "replace"))
        return refusal(code.decode(), severity.decode("utf-8", "replace"), said, place, cancelled_after)
    if last.status == pq.ExecStatus.FATAL_ERROR:
        return OutcomeUnknown(f"{place} failed while it committed: {line(last.get_error_message('utf-8'))}")
    return None


def attempts_of(conninfo: str) -> list[tuple[dict[str, Any], float]]:
    """Return the addresses to try, each with all parameters, and the seconds that each may take. Blocks.

    Raises psycopg.Error or ValueError.
    """
    parameters = conninfo_to_dict(conninfo, client_encoding="UTF8", fallback_application_name="lockstead")
    # libpq refuses this value after it has read the environment and the service file, and before it looks up a name
    unusable = make_conninfo("", **{**parameters, "target_session_attrs": "?"})
    found = ((one.keyword.decode(), one.val) for one in pq.PGconn.connect_start(unusable.encode()).info)
    parameters = {**{name: value.decode() for name, value in found if value and name in SETTLED}, **parameters}
    allowed = float(parameters.pop("connect_timeout", None) or 0)
    # libpq itself would hold the GIL while it looks names up
    return [(attempt, allowed if allowed > 0 else math.inf) for attempt in conninfo_attempts(parameters)]


def cancel(request: PGcancelConn, ends_at: float) -> None:
    """Ask the server to stop a statement, by `ends_at` (monotonic clock) at the latest. Raises nothing.

    `PGcancelConn.blocking` would hold the GIL until the server answers.
    """
    under_way = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}
    with suppress(psycopg.Error):
        request.start()
        state: int = pq.PollingStatus.WRITING
        while state in under_way and (left := ends_at - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(request.socket, under_way[pq.PollingStatus(state)])
            if poll.poll(1000 * left):
                state = request.poll()


def guard(attempt: Mapping[str, Any], *, may_be_clear: bool) -> dict[str, str]:
    """Return the parameters that keep libpq from sending the password itself where TLS may be missing.

    attempt: as from `attempts_of`.
    """
    host = str(attempt.get("hostaddr") or attempt.get("host") or "/")
    mode = attempt.get("sslmode") or "prefer"
    if may_be_clear or attempt.get("require_auth") or is_local(host) or mode not in ("disable", "allow", "prefer"):
        return {}
    if pq.version() < 160000:
        raise StoreRefused(
            f"this libpq ({pq.version() // 10000}) cannot keep a password from being sent to {host} in clear; write "
            "sslmode=verify-full, or cleartext=true where everybody on the way is trusted"
        )
    return {"require_auth": "!password"}


def received(descriptor: int) -> int:
    """Return the bytes received on a connection so far; 0 if the system does not count them."""
    try:
        # of a copy: an interrupt may come at any step, and what is left of the socket object then closes its descriptor
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(descriptor)) as own:
            return int(_COUNT.unpack(own.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _COUNT.size))[0])
    except (OSError, struct.error):
        return 0


def name_of(statement: bytes) -> bytes:
    """Return the name under which a statement is prepared, the same on every connection."""
    return b"lockstead_%08x" % zlib.crc32(statement)


def rows(result: PGresult) -> list[Row]:
    """Return the rows of a result."""
    columns, get = range(result.nfields), result.get_value
    return [
        [None if (value := get(row, column)) is None else value.decode() for column in columns]
        for row in range(result.ntuples)
    ]


def line(error: object) -> str:
    """Return a message on one line."""
    return " ".join(str(error).split())
