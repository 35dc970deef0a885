"""Translation of the driver's errors: never sent, possibly applied, or refused permanently.

An unrecognised error means possibly applied. Must not know commands or rows. No message repeats a credential: of the
driver's errors, only the server's message is shown.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Final

import cassandra
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ProtocolError
from cassandra.protocol import ErrorMessage, ProtocolException, RequestValidationException, ServerError

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

PROTOCOL: Final = 4
"""The version of the native protocol: the newest that both Cassandra and ScyllaDB support."""

_OLD: Final = "it speaks no version 4 of the native protocol: Cassandra 2.2 or later is needed, or ScyllaDB"
_FOREIGN: Final = "the server is not Cassandra, or requires TLS: correct the port, or add tls=true"

_UNKNOWN: Final = "a node does not know the table: it was dropped, or the nodes do not agree on the schema yet"

BAD_STATE: Final = (ProtocolException, cassandra.RequestValidationException, RequestValidationException, ServerError)
"""The server cannot read the state of a page that is not its own: nodes and versions differ in how they say so."""

_REFUSED: Final = (cassandra.RequestValidationException, RequestValidationException)
"""The server rejected the statement before executing it. The driver has two classes for that."""


def failure(error: BaseException, url: str, *, writes: bool) -> StoreError:
    """Return the StoreError for the failure of a statement. writes: whether it is a write."""
    if isinstance(error, NoHostAvailable):
        # the driver tries the next node only while nothing was sent
        return unreachable(error, url)
    if isinstance(error, cassandra.Unauthorized):
        return StoreRefused(f"{url}: {_said(error)}; grant SELECT and MODIFY on the table to this user")
    if is_unknown_there(error):
        return StoreUnavailable(f"{url}: {_UNKNOWN}: {_said(error)}")
    if isinstance(error, _REFUSED):
        return StoreRefused(f"{url}: the server refused the statement: {_said(error)}")
    if isinstance(error, cassandra.Unavailable):
        text = f"{url}: {error.alive_replicas} of {error.required_replicas} replicas needed are alive"
        # the server also reports this if a replica fails between the vote and the commit
        return OutcomeUnknown(text) if writes else StoreUnavailable(text)
    text = f"{url}: {_said(error)}"
    return OutcomeUnknown(text) if writes else StoreUnavailable(text)


def unreachable(error: BaseException, url: str) -> StoreError:
    """Return the StoreError for a failure to connect; nothing was sent yet."""
    causes = list(_causes(error))
    if any(isinstance(cause, cassandra.AuthenticationFailed) for cause in causes):
        return StoreRefused(
            f"{url}: user or password is wrong or missing; give user:password@ in the URL, or CASSANDRA_USERNAME and "
            "CASSANDRA_PASSWORD in the environment"
        )
    for cause in causes:
        # the driver puts the TLS error into the text of an OSError
        if isinstance(cause, ssl.SSLError) or "[SSL" in str(cause):
            return StoreRefused(f"{url}: TLS failed: {_said(cause)}; check ca= and the host name, or leave tls out")
        if isinstance(cause, ProtocolError):
            return StoreRefused(f"{url}: {_FOREIGN}")
        if "protocol_version" in str(cause):
            return StoreRefused(f"{url}: {_OLD}")
    return StoreUnavailable(f"{url}: no node can be reached: {'; '.join(map(_said, causes)) or 'none was tried'}")


def is_none_known(error: BaseException) -> bool:
    """Return whether the driver had no node to use: all known nodes are down, or it has forgotten the others."""
    return isinstance(error, NoHostAvailable) and not error.errors


def is_unknown_there(error: BaseException) -> bool:
    """Return whether a node does not know the keyspace or table; a new one may not have reached it yet."""
    message = str(error).lower()
    return isinstance(error, cassandra.InvalidRequest) and ("exist" in message or "unconfigured table" in message)


def not_created(error: BaseException, url: str, cql: str) -> StoreError:
    """Return the StoreError for a failure to create the schema. cql: the statements that an administrator must run."""
    if is_unknown_there(error):
        return StoreUnavailable(f"{url}: {_UNKNOWN}: {_said(error)}")
    if isinstance(error, _REFUSED):
        return StoreRefused(f"{url}: the schema does not exist, and: {_said(error)}; let an administrator run: {cql}")
    return StoreUnavailable(f"{url}: the schema could not be created: {_said(error)}")


def _causes(error: BaseException) -> Iterable[BaseException]:
    if not isinstance(error, NoHostAvailable):
        yield error
        return
    found = error.errors
    for cause in found.values() if isinstance(found, Mapping) else ():
        if isinstance(cause, BaseException):
            yield cause


def _said(error: BaseException) -> str:
    """Return the server's message in one line."""
    message = error.summary_msg() if isinstance(error, ErrorMessage) else str(error)
    return f"{type(error).__name__}: {' '.join(message.split())}" if message else type(error).__name__
