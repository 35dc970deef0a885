"""What libpq's results and counts say, and what it is told: the same for blocking and for awaiting connections.

Must not know what is asked, nor wait.
"""

from __future__ import annotations

import os
import socket
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from psycopg import pq
from psycopg.conninfo import make_conninfo

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused
from lockstead.stores.postgres.errors import refusal
from lockstead.stores.transport import is_local

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Row: TypeAlias = "list[str | None]"

TCP_INFO: Final = getattr(socket, "TCP_INFO", 11)
_COUNT: Final = struct.Struct("128xQ")
"""Linux: `tcpi_bytes_received` in `struct tcp_info`."""

WHERE: Final = frozenset(("host", "hostaddr", "port", "require_auth", "sslmode"))
"""What decides where a password goes, and whether in clear."""

WELL: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def failure(results: Sequence[PGresult], place: str, called_back: float | None = None) -> StoreError | None:
    """Return what the results of one statement mean; None if all of it went well, or there are none.

    called_back: the limit (seconds) after which the statement was called back.
    """
    if not results:
        return None
    first, last = results[0], results[-1]
    if first.status == pq.ExecStatus.FATAL_ERROR:
        code = first.error_field(pq.DiagnosticField.SQLSTATE)
        severity = first.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or first.error_field(
            pq.DiagnosticField.SEVERITY
        )
        message = first.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or first.error_message
        text = line(message.decode("utf-8", "replace"))
        return refusal((code or b"").decode(), (severity or b"").decode("utf-8", "replace"), text, place, called_back)
    if last.status == pq.ExecStatus.FATAL_ERROR:
        return OutcomeUnknown(f"{place} failed while it committed: {line(last.get_error_message('utf-8'))}")
    return None


def settled(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters, and those of WHERE that libpq takes from the environment or from a service file."""
    # libpq refuses this value after it has read both, and before it looks up a name or connects
    unusable = make_conninfo("", **{**parameters, "target_session_attrs": "?"})
    found = ((one.keyword.decode(), one.val) for one in pq.PGconn.connect_start(unusable.encode()).info)
    return {**{name: value.decode() for name, value in found if value and name in WHERE}, **parameters}


def guard(attempt: Mapping[str, Any], *, may_be_clear: bool) -> dict[str, str]:
    """Return what keeps libpq from answering a server that asks for the password itself, where TLS may be missing.

    attempt: with all that `settled` finds.
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
    """Return the bytes that have come over a connection so far; 0 where the system does not count them."""
    try:
        # of a copy: an interrupt may come at any step, and what is left of the socket object then closes its descriptor
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(descriptor)) as own:
            return int(_COUNT.unpack(own.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _COUNT.size))[0])
    except (OSError, struct.error):
        return 0


def name_of(statement: bytes) -> bytes:
    """Return the name under which a statement is prepared: the same text, on whatever connection it is found."""
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
