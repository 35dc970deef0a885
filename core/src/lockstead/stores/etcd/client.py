# Generated from aio_client.py by `make blocking`: edit that file instead.
"""Client of an etcd: to which member a request is sent, over which connection, and as which user.

A request is sent once; only one that was certainly not sent is offered to the next member. Must not know what is asked.
"""

from __future__ import annotations

import ssl
import time
from functools import lru_cache, partial
from typing import Final

from h11 import ProtocolError

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.blocking import Limiter
from lockstead.stores.bootclock import boot_now
from lockstead.stores.bounds import Bounds
from lockstead.stores.driver import DriverBase
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.connection import NotHttp, opened
from lockstead.stores.etcd.encoding import Request, Response
from lockstead.stores.etcd.errors import NO_TLS, NOT_HTTP, WANTS_TLS, answered, is_token_spent, translated
from lockstead.stores.etcd.http1 import head_of
from lockstead.stores.etcd.members import Members
from lockstead.stores.pool import Pool

IDLE_MAX: Final = 10.0
"""Seconds after which an idle connection is not used again. Longer than the longest pause of a waiter, so that polling
needs no handshakes, and below the patience of anything that forgets connections on the way."""

CONNECTIONS_MAX: Final = 64

ANSWER_MAX: Final = 5 << 20
"""Bytes of all that is read for one command. etcd takes values of up to 1.5 MiB, which are 2 MiB in JSON: one that
somebody put in the place of a record has to be seen before an operator can remove it."""

HEADS_MAX: Final = 256
"""Heads of requests that are kept: they differ by the path and by the length of the body."""

PROBE_LIMIT: Final = 1.0
"""Seconds for finding out whether a member speaks TLS."""


class Client(DriverBase[Request, Response]):
    """The connections of one process to one etcd; an asynchronous client belongs to one event loop."""

    def __init__(self, members: Members) -> None:
        self.name = members.url
        self._members = members
        self.pool = Pool(members.url, partial(opened, members.tls), CONNECTIONS_MAX, idle_max=IDLE_MAX)
        self._signing_in = Limiter(1)
        self._head = lru_cache(HEADS_MAX)(head_of)

    def exchange(self, bounds: Bounds, request: Request, only: str | None = None) -> Response:
        """Send a request, to the first member that is reached or `only` to one (host:port). Raises StoreError."""
        token = self._token(bounds)
        response = self._send(request, token, bounds, only)
        if token is not None and is_token_spent(response):
            response = self._send(request, self._token(bounds, token), bounds, only)
        return response

    def _token(self, bounds: Bounds, spent: str | None = None) -> str | None:
        """Return a token other than the spent one, by a sign-in if there is none; None if the URL names no user."""
        members = self._members
        if not members.user or members.token not in (None, spent):
            return members.token
        permit = self._signing_in.acquire(bounds.ends_at)  # a sign-in is costly for the server
        if permit is None:
            raise StoreUnavailable(f"no sign-in at {self._members.url} within {bounds.limit:.3g} s; nothing was sent")
        try:
            if members.token in (None, spent):
                request = encoding.authenticate(members.user, members.password)
                response = self._send(request, None, bounds)
                has_users = b"authentication is not enabled" not in response.body
                members.token = str(answered(response, request)["token"]) if has_users else ""
            return members.token
        finally:
            del permit  # an error that is kept for later must not keep it

    def _send(self, request: Request, token: str | None, bounds: Bounds, only: str | None = None) -> Response:
        waiting = self._members.in_turn() if only is None else [only]
        while True:
            member, *waiting = waiting
            try:
                return self._send_to(member, request, token, bounds, 1 / (1 + len(waiting)))
            except StoreUnavailable:
                if not waiting:
                    raise

    def _send_to(self, member: str, request: Request, token: str | None, bounds: Bounds, share: float) -> Response:
        """Send a request to a member. share: the part of the time left that connecting may take."""
        connection = None
        if bounds.is_over:
            raise StoreUnavailable(f"{bounds.limit:.3g} s were over before {request.what} could be sent to etcd")
        try:
            connection = self.pool.take(member, bounds.part(share).ends_at)
            sent_at = boot_now()
            head = self._head(member, request.path, token, len(request.content))
            status, body = connection.exchange(head, request.content, bounds)
        except StoreUnavailable:
            self._members.failed(member)
            raise
        except Exception as error:
            self._members.failed(member)
            failure: StoreError | None = None
            if not self._members.has_served:
                failure = self._mistaken(member, error, bounds)
            is_sent = connection is not None
            raise failure or translated(error, request, member, bounds, is_sent=is_sent) from error
        finally:
            if connection is not None:
                self.pool.give_back(member, connection)
        response = Response(status, body, sent_at, member)
        self._members.note(response)
        return response

    def _mistaken(self, member: str, error: Exception, bounds: Bounds) -> StoreRefused | None:
        """Return what to correct if a member speaks something else: TLS where we do not, or the reverse."""
        if isinstance(error, NotHttp):
            return StoreRefused(NOT_HTTP.format(member))
        if isinstance(error, TimeoutError):
            return None
        bounds = Bounds(min(PROBE_LIMIT, bounds.ends_at - time.monotonic()))
        is_secure = self._members.tls is not None
        other = None if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if other is not None:
            other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
        try:
            connection = opened(other, member, bounds.ends_at)
            try:
                if is_secure:
                    status, _ = connection.exchange(self._head(member, "/version", None, 0), b"", bounds)
                    return StoreRefused(NO_TLS.format(member)) if status == 200 else None
            finally:
                connection.close()
        except (OSError, ValueError, ProtocolError) as failure:
            if is_secure or " alert " not in str(failure):  # a refused handshake is TLS, too
                return None
        return StoreRefused(WANTS_TLS.format(member))
