"""What an error of a PostgreSQL server, or of the way there, means for the caller: one line of the right class.

Must not know what was asked.
"""

from __future__ import annotations

from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

STANDBY: Final = (
    "is a standby, which takes no locks; name the primary, or all hosts with ?target_session_attrs=read-write"
)


class Missing(StoreUnavailable):
    """The tables are not there, or no longer. They are made on the next connection."""


class Forbidden(StoreRefused):
    """The role has no right to do it."""


_REFUSED: Final[tuple[tuple[str, str], ...]] = (
    (
        "password authentication failed",
        "correct the user or the password: in the URL, PGUSER and PGPASSWORD, or ~/.pgpass",
    ),
    (
        "server requested a cleartext password",
        "write sslmode=require (verify-full is better), or cleartext=true if everyone on the network is trusted",
    ),
    ("no password supplied", "give the password: in the URL, PGPASSWORD, or ~/.pgpass"),
    ("SASL authentication failed", "correct the user or the password: in the URL, PGUSER and PGPASSWORD, or ~/.pgpass"),
    ("authentication failed", "the server expects another way to log in: see its pg_hba.conf"),
    ("no pg_hba.conf entry", "the server lets nobody in from here that way: see its pg_hba.conf, and ?sslmode="),
    ("is not permitted to log in", "name a user that may log in"),
    ("no such user", "correct the user: in the URL or PGUSER"),
    ("no such database", "correct the database in the URL"),
    ("unsupported startup parameter", "leave that option out, or add it to ignore_startup_parameters of PgBouncer"),
    ("server does not support SSL", "turn TLS on there, or say ?sslmode=disable where the network is trusted"),
    ("SSL error", "TLS does not fit: see ?sslmode=, ?sslrootcert= and the server's certificate"),
    ("certificate", "TLS does not fit: see ?sslmode=, ?sslrootcert= and the server's certificate"),
    ("invalid response to SSL negotiation", "this is not a PostgreSQL server: correct host and port"),
    ("expected authentication request", "this is not a PostgreSQL server: correct host and port"),
    ("unsupported frontend protocol", "the server is too old: lockstead needs PostgreSQL 10 or later"),
)
"""Words of libpq's message for a connection that will never be taken, and what to do. A server that speaks another
language is not understood, and asked again: no harm, but the line is its own."""

_UNAVAILABLE: Final[tuple[tuple[str, str], ...]] = (
    ("too many clients", "raise max_connections, or put PgBouncer in front"),
    ("too many connections", "raise the limit of the role or the database, or put PgBouncer in front"),
    ("connection slots are reserved", "raise max_connections, or put PgBouncer in front"),
    ("no more connections allowed", "raise max_client_conn of PgBouncer"),
    ("session is read-only", STANDBY),
    ("hot standby mode", STANDBY),
)


def not_connected(said: str, place: str) -> StoreError:
    """Say what it means that no connection was made. Nothing was asked of the server."""
    if ("role" in said or "database" in said) and "does not exist" in said:
        return StoreRefused(f"cannot connect to {place}: {said}; correct it in the URL, or create it")
    for words, remedy in _UNAVAILABLE:
        if words in said:
            text = f"{place} {remedy}" if remedy is STANDBY else f"cannot connect to {place}: {said}; {remedy}"
            return StoreUnavailable(text)
    for words, remedy in _REFUSED:
        if words in said:
            return StoreRefused(f"cannot connect to {place}: {said}; {remedy}")
    return StoreUnavailable(f"cannot connect to {place}: {said}")


def refusal(code: str, severity: str, said: str, place: str, cancelled_after: float | None = None) -> StoreError:
    """Say what it means that the server answered a statement with an error, before any result of it.

    cancelled_after: the seconds after which the statement was cancelled.
    """
    if not code or severity != "ERROR" or code.startswith("08"):
        # the connection went with it, or a pooler speaks of a server that it lost: what that did nobody knows
        return OutcomeUnknown(f"{place} ended the connection: {said}")
    match code:
        case "57014":
            why = f"it did not end within {cancelled_after:.3g} s" if cancelled_after is not None else said
            return StoreUnavailable(f"{place} stopped the statement ({why}); nothing was changed")
        case "25006":
            return StoreUnavailable(f"{place} {STANDBY} (or default_transaction_read_only is on); nothing was changed")
        case "42501":
            return Forbidden(f"no right to keep locks in {place}: {said}; have it granted to the role")
        case "3F000" | "42P01":
            return Missing(f"the tables of the locks in {place} are gone ({said}); nothing was changed")
        case "53100":
            return StoreRefused(f"cannot keep locks in {place}: the disk is full ({said}); make room")
        case "22P05" | "22021" | "22P02":
            return StoreRefused(f"{place} cannot keep this text: {said}; leave out null and surrogate characters")
        case "22003":
            return StoreRefused(
                f"a counter of this lock in {place} was changed by another program and is out of range ({said}); "
                "break the lock, or delete the row of its key from the table record"
            )
        case "42703" | "42883" | "42804":
            return StoreRefused(f"the tables in {place} are not lockstead's: {said}; name another schema by ?schema=")
    if code[:2] in ("22", "23", "42"):
        return StoreRefused(f"{place} refused: {said} ({code})")
    # an error before a result takes the transaction back, whatever it is
    return StoreUnavailable(f"{place} could not do it: {said} ({code}); nothing was changed")
