"""How commands reach etcd: our own requests to its JSON gateway, blocking or awaiting, never repeated.

Must not know what a request says; that is what the scripts (`operations`) are for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.aio_script import drive as adrive
from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import Command, List, StoreClock, TokenSource, Traits
from lockstead.script import drive
from lockstead.stores.awaiting import aside
from lockstead.stores.bootclock import boot_now
from lockstead.stores.bounds import LISTING_MAX, AnswerTooLong, Bounds
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.batch import batch
from lockstead.stores.etcd.connection import Sockets
from lockstead.stores.etcd.encoding import Request, Response
from lockstead.stores.etcd.errors import answered, is_token_spent
from lockstead.stores.etcd.leases import Leases
from lockstead.stores.etcd.listener import Listener
from lockstead.stores.etcd.operations import Operations
from lockstead.stores.etcd.queue import Queue
from lockstead.stores.etcd.scripts import Operation, end
from lockstead.stores.etcd.settings import TLS_WAY, EtcdSettings
from lockstead.stores.etcd.transport import MISTAKE_LIMIT, Members, looks_mistaken, mistake, translated
from lockstead.stores.kept import MALFORMED, senseless
from lockstead.stores.loops import PerLoop
from lockstead.stores.port import Standing, StoreBase
from lockstead.stores.subscriptions import OnChange, Subscription
from lockstead.stores.transport import transport

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee
    from lockstead.stores.http import AwaitedPool
    from lockstead.values import Name

A = TypeVar("A")
T = TypeVar("T")

TRAITS: Final = Traits(
    scheme="etcd",
    guarantee="consensus: linearizable transactions, and leases that the cluster itself ends",
    clock=StoreClock.SERVER_EXPIRES,
    tokens=TokenSource.NATIVE,
    ttl_recommended=5.0,
)

CLEANUP_LIMIT: Final = 1.0
"""Seconds that `close` waits for the servers to end what is idle."""

BEHIND_US: Final = (b"no leader", b"leader changed", b"request timed out", b"server stopped", b"not capable")
"""What a member says that cannot serve just now, so that another one is asked next time."""


ANSWER_MAX: Final = 5 << 20
"""Bytes of all that is read for one command. etcd takes values of up to 1.5 MiB, which are 2 MiB in JSON: one that
somebody put in the place of a record has to be seen before an operator can remove it."""


class EtcdStore(StoreBase):
    """Records as keys of an etcd. Promises what a majority of its members promises: without one, nothing is granted."""

    traits = TRAITS

    def __init__(self, settings: EtcdSettings, url: str) -> None:
        self._settings = settings
        self.url = url
        self._inherited: list[object] = []
        self._is_open = True
        self._has_served = False
        self._start()
        self._members.tls()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._signing_in = threading.Lock()
        self._members = Members(self._settings)
        self._sockets: Sockets | None = None
        self._awaiting = PerLoop(self._members.awaiting, lambda transport: transport.aclose())
        self._token: str | None = None
        self._operations = Operations(self._settings.root, Leases(), Queue(self._settings.root))
        self._listener = Listener(self._operations.queue, self._members, self._acarried, lambda: self._token)

    # --- blocking ------------------------------------------------------------------------------------------------

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds: one transaction, and what its lease needs."""
        return cast(A, self._run(self._operations.script(command), _bounds(command, limit)))

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Renew many leases by one KeepAlive and one range; what is left over is carried out one by one."""
        ends_at = time.monotonic() + limit
        try:
            answers = self._batched(commands, ends_at)
        except StoreError as error:
            return [error] * len(commands)
        for number, command in enumerate(commands):
            if answers[number] is None:
                try:
                    answers[number] = self.perform(command, ends_at - time.monotonic())
                except StoreError as error:
                    answers[number] = error
        return answers

    def _batched(self, commands: Sequence[Command[Any]], ends_at: float) -> list[Any]:
        try:
            return self._carried(batch(self._operations, commands), ends_at - time.monotonic())
        except StoreError as error:
            if not _is_too_long(error):
                raise
        # somebody put more between the records than is read for all of them
        return self._carried(batch(self._operations, commands, is_ranged=False), ends_at - time.monotonic())

    def _carried(self, script: Operation[T], limit: float) -> T:
        return self._run(script, Bounds(limit, LISTING_MAX))

    def _run(self, script: Operation[T], bounds: Bounds) -> T:
        """Drive a script to its end. OutcomeUnknown for answers of another shape than any of etcd's own."""
        try:
            return drive(script, lambda request: self._sent(request, bounds))
        except MALFORMED as error:
            raise senseless(self.url, error) from error

    def _sent(self, request: Request, bounds: Bounds, only: int | None = None) -> Response:
        sockets, token = self._blocking(), self._token
        if self._settings.user is not None and token is None:
            token = self._signed_in(sockets, None, bounds)
        response = self._send(sockets, request, token, bounds, only)
        if self._settings.user is not None and is_token_spent(response):
            token = self._signed_in(sockets, token, bounds)
            response = self._send(sockets, request, token, bounds, only)
        return response

    def _send(
        self, sockets: Sockets, request: Request, token: str | None, bounds: Bounds, only: int | None = None
    ) -> Response:
        count = len(self._members) if only is None else 1
        for tried, (number, _url) in enumerate(self._members.in_turn(only)):
            self._check_time(bounds, request)
            member = self._settings.endpoints[number]
            sent_at = boot_now()
            try:
                status, body = sockets.exchange(member, request, token, bounds, 1 / (count - tried))
            except Exception as error:
                mistaken = None
                if looks_mistaken(error) and not self._has_served:
                    mistaken = mistake(self._members, number, self._looking(bounds))
                failure = self._judged(mistaken or error, request, number, bounds)
                if isinstance(failure, StoreUnavailable) and tried + 1 < count:
                    continue
                raise failure from error
            return self._received(number, Response(status, body, sent_at, member))
        raise StoreUnavailable(f"no member of etcd could be asked for {request.what}")

    def _signed_in(self, sockets: Sockets, spent: str | None, bounds: Bounds) -> str | None:
        with self._signing_in:
            if self._token is not None and self._token != spent:
                return self._token
            request = self._sign_in()
            return self._accepted(request, self._send(sockets, request, None, bounds))

    def _blocking(self) -> Sockets:
        with self._lock:
            self._check_open()
            if self._sockets is None:
                self._sockets = self._members.blocking()
            return self._sockets

    # --- waiting -------------------------------------------------------------------------------------------------

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Call on_change at every change of the record."""
        self._check_open()
        return self._listener.subscribe(name, on_change)

    def enqueue(self, name: Name, waiter_id: str, on_turn: OnChange) -> Subscription:
        """Take a place in the queue or keep it, and call on_turn when the turn has come."""
        self._check_open()
        return self._listener.enqueue(name, waiter_id, on_turn)

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        """Give up a place in the queue."""
        self._carried(self._operations.queue.leave(name.key, waiter_id), limit)

    def standing(self, name: Name, limit: float) -> list[Standing]:
        """Return the first of a key's queue."""
        return self._carried(self._operations.queue.shown(name.key), limit)

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """What of etcd keeps a promise."""
        from lockstead.stores.etcd.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Look at the members, their versions, their quorum, alarms and space."""
        from lockstead.stores.etcd.doctor import examination

        def each(request: Request) -> list[Response | StoreError]:
            return [self._sent_to(number, request, limit) for number in range(len(self._members))]

        said, secure = self._settings, self._settings.is_secure
        yield transport(said.hosts, tls=secure, is_verified=secure, has_password=said.user is not None, way=TLS_WAY)
        yield from examination(said, each)

    def _sent_to(self, number: int, request: Request, limit: float) -> Response | StoreError:
        try:
            return self._sent(request, Bounds(limit), number)
        except StoreError as error:
            return error

    # --- awaiting ------------------------------------------------------------------------------------------------

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command like `perform`, awaiting, from any event loop of asyncio."""
        return await self._arun(self._operations.script(command), _bounds(command, limit))

    async def _acarried(self, script: Operation[T], limit: float) -> T:
        return await self._arun(script, Bounds(limit, ANSWER_MAX))

    async def _arun(self, script: Operation[T], bounds: Bounds) -> T:
        try:
            return await adrive(script, lambda request: self._asent(request, bounds))
        except MALFORMED as error:
            raise senseless(self.url, error) from error

    async def _asent(self, request: Request, bounds: Bounds) -> Response:
        self._check_open()
        pool, token = await self._awaiting.get(), self._token
        if self._settings.user is not None and token is None:
            token = await self._asigned_in(pool, bounds)
        response = await self._asend(pool, request, token, bounds)
        if self._settings.user is not None and is_token_spent(response):
            token = await self._asigned_in(pool, bounds)
            response = await self._asend(pool, request, token, bounds)
        return response

    async def _asend(self, pool: AwaitedPool, request: Request, token: str | None, bounds: Bounds) -> Response:
        from lockstead.stores.http import aexchanged

        count = len(self._members)
        for tried, (number, url) in enumerate(self._members.in_turn()):
            self._check_time(bounds, request)
            sent_at = boot_now()
            try:
                asked = self._members.request(url, request, token)
                answer = await aexchanged(pool, asked, bounds, 1 / (count - tried))
            except Exception as error:
                mistaken = None
                if looks_mistaken(error) and not self._has_served:
                    with suppress(TimeoutError, StoreUnavailable):
                        look = partial(mistake, self._members, number, self._looking(bounds))
                        mistaken = await aside(look, bounds.ends_at)
                failure = self._judged(mistaken or error, request, number, bounds)
                if isinstance(failure, StoreUnavailable) and tried + 1 < count:
                    continue
                raise failure from error
            finally:
                if not self._is_open:
                    await pool.aclose()
            member = self._settings.endpoints[number]
            return self._received(number, Response(answer.status, answer.body, sent_at, member))
        raise StoreUnavailable(f"no member of etcd could be asked for {request.what}")

    async def _asigned_in(self, pool: AwaitedPool, bounds: Bounds) -> str | None:
        request = self._sign_in()
        return self._accepted(request, await self._asend(pool, request, None, bounds))

    # --- both ----------------------------------------------------------------------------------------------------

    def _check_time(self, bounds: Bounds, request: Request) -> None:
        if bounds.is_over:
            raise StoreUnavailable(f"{bounds.limit:.3g} s were over before {request.what} could be sent to etcd")

    def _looking(self, bounds: Bounds) -> float:
        return min(MISTAKE_LIMIT, max(0.05, bounds.ends_at - time.monotonic()))

    def _judged(self, error: Exception, request: Request, number: int, bounds: Bounds) -> StoreError:
        member = self._settings.endpoints[number]
        failure = error if isinstance(error, StoreError) else translated(error, request, member, bounds)
        if isinstance(failure, StoreUnavailable | OutcomeUnknown):
            self._members.failed(number)
        return failure

    def _received(self, number: int, response: Response) -> Response:
        if response.status != 200 and any(words in response.body for words in BEHIND_US):
            self._members.failed(number)
        else:
            self._members.served(number)
            self._has_served = True
        return response

    def _sign_in(self) -> Request:
        who = {"name": self._settings.user, "password": self._settings.password or ""}
        return encoding.request("Authenticate", "auth/authenticate", who)

    def _accepted(self, request: Request, response: Response) -> str | None:
        if b"authentication is not enabled" in response.body:
            self._token = ""
        else:
            self._token = str(answered(response, request)["token"])
        return self._token

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it, and every lease: they belong to the parent."""
        self._inherited += [self._sockets, self._awaiting, self._members, self._operations]
        self._listener.forget()
        self._start()

    def close(self) -> None:
        """End what carries no record, and close every connection. Idempotent; takes up to 2 s if etcd hangs."""
        if not self._is_open:
            return
        self._listener.close()
        ends_at = time.monotonic() + CLEANUP_LIMIT
        if self._sockets is not None or self._awaiting:
            for lease in [*self._operations.queue.forget(), *self._operations.leases.empty()]:
                with suppress(StoreError):
                    self._carried(end(lease), max(0.05, ends_at - time.monotonic()))
        with self._lock:
            self._is_open = False
            sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()
        self._awaiting.close()


def _is_too_long(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AnswerTooLong):
        cause = cause.__cause__
    return cause is not None


def _bounds(command: Command[Any], limit: float) -> Bounds:
    return Bounds(limit, LISTING_MAX if isinstance(command, List) else ANSWER_MAX)
