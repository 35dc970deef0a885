"""The outcome of a request to ZooKeeper: a value, an error that is a definite reply, or a StoreError.

A request that was given to kazoo has an unknown outcome until there is a reply. Must not know records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from kazoo import exceptions as kz
from kazoo.handlers.threading import KazooTimeoutError

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

REFUSALS: Final = (kz.NoNodeError, kz.NodeExistsError, kz.BadVersionError, kz.NotEmptyError)
"""Errors that are definite replies: the server processed the request and changed nothing."""

_REFUSED: Final = {
    kz.NoAuthError: "ZooKeeper allows no access: the ACL of the nodes names another user, or the password is wrong; "
    "give user:password@ in the URL, or ZOOKEEPER_USER and ZOOKEEPER_PASSWORD",
    kz.AuthFailedError: "ZooKeeper does not accept the user or the password",
    kz.InvalidACLError: "ZooKeeper knows no user for the ACL of new nodes: is digest authentication switched off?",
    kz.UnimplementedError: "this ZooKeeper cannot write several nodes in one step: version 3.4 or later is needed",
}


def outcomes(results: Sequence[Any], ends_at: float, *, writes: bool) -> list[Any]:
    """Wait for the outcomes of sent requests: values, or errors that are definite replies.

    Raises StoreError for the first that has neither.
    """
    found = []
    for result in results:
        try:
            found.append(result.get(timeout=max(0.0, ends_at - time.monotonic())))
        except REFUSALS as error:
            found.append(error)
        except KazooTimeoutError as error:
            raise doubt("no answer came within the limit", writes=writes) from error
        except Exception as error:
            raise failure(error, writes=writes) from error
    return found


def refused_at(results: Sequence[Any]) -> tuple[int, Exception] | None:
    """Return index and error of the refused operation of a multi; None if all were carried out. Raises StoreError."""
    for index, result in enumerate(results):
        if isinstance(result, kz.RolledBackError):
            continue
        if isinstance(result, REFUSALS):
            return index, result
        if isinstance(result, Exception):
            raise failure(result, writes=True) from result
    return None


def doubt(what: str, *, writes: bool) -> StoreError:
    """Return the error of a request without a reply: OutcomeUnknown if it writes, else StoreUnavailable."""
    kind = OutcomeUnknown if writes else StoreUnavailable
    return kind(f"ZooKeeper: {what}")


def failure(error: Exception, *, writes: bool) -> StoreError:
    """Return the StoreError for an error of kazoo."""
    refused = next((text for kind, text in _REFUSED.items() if isinstance(error, kind)), None)
    if refused is not None:
        return StoreRefused(refused)
    if isinstance(error, kz.NotReadOnlyCallError):
        return StoreUnavailable("this ZooKeeper server is read-only, because it sees no majority of its ensemble")
    if isinstance(error, kz.ConnectionLoss | kz.ConnectionClosedError | kz.ConnectionDropped):
        return doubt("the connection was lost before the answer", writes=writes)
    if isinstance(error, kz.SessionExpiredError):
        return doubt("the session expired before the answer", writes=writes)
    return doubt(f"{type(error).__name__}: {error}", writes=writes)
