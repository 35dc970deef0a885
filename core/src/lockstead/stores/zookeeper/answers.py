"""The outcome of a request to a ZooKeeper: a value, an error that is an answer, or a StoreError.

What was given to kazoo is of unknown outcome until an answer says otherwise. Must not know records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from kazoo import exceptions as kz
from kazoo.handlers.threading import KazooTimeoutError

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

REFUSALS: Final = (kz.NoNodeError, kz.NodeExistsError, kz.BadVersionError, kz.NotEmptyError)
"""Errors that are answers: what was asked for was judged, and nothing was changed."""


def outcomes(results: Sequence[Any], ends_at: float, *, writes: bool) -> list[Any]:
    """Wait for what comes of requests that were sent; raises StoreError for the first that has no clear answer."""
    return [outcome(result, ends_at, writes=writes) for result in results]


def outcome(result: Any, ends_at: float, *, writes: bool) -> Any:
    """Wait for what comes of one request: its value, or an error that is an answer."""
    try:
        return result.get(timeout=max(0.0, ends_at - time.monotonic()))
    except REFUSALS as error:
        return error
    except KazooTimeoutError as error:
        raise doubt("no answer came within the limit", writes=writes) from error
    except Exception as error:
        raise failure(error, writes=writes) from error


def refused_at(results: Sequence[Any]) -> tuple[int, Exception] | None:
    """Return which operation of a multi was refused, and how; None if all were carried out. Raises StoreError."""
    for index, result in enumerate(results):
        if isinstance(result, kz.RolledBackError):
            continue
        if isinstance(result, REFUSALS):
            return index, result
        if isinstance(result, Exception):
            raise failure(result, writes=True) from result
    return None


def doubt(what: str, *, writes: bool) -> StoreError:
    """Return the error of a request without an answer: only what writes may have changed something."""
    return OutcomeUnknown(f"ZooKeeper: {what}") if writes else StoreUnavailable(f"ZooKeeper: {what}")


def failure(error: Exception, *, writes: bool) -> StoreError:
    """Translate an error of kazoo."""
    if isinstance(error, kz.NoAuthError):
        return StoreRefused(
            "ZooKeeper allows no access: the ACL of the nodes names another user, or the password is wrong; give "
            "user:password@ in the URL, or ZOOKEEPER_USER and ZOOKEEPER_PASSWORD"
        )
    if isinstance(error, kz.AuthFailedError):
        return StoreRefused("ZooKeeper does not accept the user or the password")
    if isinstance(error, kz.InvalidACLError):
        return StoreRefused("ZooKeeper knows no user for the ACL of new nodes: is digest authentication switched off?")
    if isinstance(error, kz.UnimplementedError):
        return StoreRefused("this ZooKeeper cannot write several nodes in one step: version 3.4 or later is needed")
    if isinstance(error, kz.NotReadOnlyCallError):
        return StoreUnavailable("this ZooKeeper server is read-only, because it sees no majority of its ensemble")
    if isinstance(error, kz.ConnectionLoss | kz.ConnectionClosedError | kz.ConnectionDropped):
        return doubt("the connection was lost before the answer", writes=writes)
    if isinstance(error, kz.SessionExpiredError):
        return doubt("the session expired before the answer", writes=writes)
    return doubt(f"{type(error).__name__}: {error}", writes=writes)
