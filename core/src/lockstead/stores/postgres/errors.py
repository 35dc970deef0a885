"""Translation of errors of PostgreSQL and libpq to StoreErrors, each with a message of one line.

Must not know the statements.
"""

from __future__ import annotations

from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

STANDBY: Final = (
    "is a standby, which takes no locks; name the primary, or all hosts with ?target_session_attrs=read-write"
)


class Missing(StoreUnavailable):
    """The tables do not exist. The next connection creates them."""


class Forbidden(StoreRefused):
    """The role lacks a permission."""


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
"""Parts of libpq's message for a connection that will never be accepted, and the remedy. A server that speaks another
language is not understood: it counts as unavailable, and the message is its own."""

_UNAVAILABLE: Final[tuple[tuple[str, str], ...]] = (
    ("too many clients", "raise max_connections, or put PgBouncer in front"),
    ("too many connections", "raise the limit of the role or the database, or put PgBouncer in front"),
    ("connection slots are reserved", "raise max_connections, or put PgBouncer in front"),
    ("no more connections allowed", "raise max_client_conn of PgBouncer"),
    ("session is read-only", STANDBY),
    ("hot standby mode", STANDBY),
)


def not_connected(said: str, place: str) -> StoreError:
    """Return the error of a connection that could not be opened. Nothing was asked of the server."""
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
    """Return the error of a statement that the server answered with an error before any result.

    cancelled_after: the seconds after which the statement was cancelled.
    """
    if not code or severity != "ERROR" or code.startswith("08"):
        # the connection ended with it, or a pooler lost its server: whether the change was made is unknown
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
    # any error before a result rolls the transaction back
    return StoreUnavailable(f"{place} could not do it: {said} ({code}); nothing was changed")
