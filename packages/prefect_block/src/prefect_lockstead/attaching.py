"""Working under a lease in another process, as a member that is attached by a ticket.

For process pools, Dask, Ray and others that context variables do not reach. The owner calls `lease.share()` and passes
the ticket as a parameter; its release waits for every member.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import lockstead
from lockstead import urls
from lockstead.aio_hold import AsyncHold
from lockstead.aio_lease import AsyncLease
from lockstead.hold import Hold
from lockstead.telemetry import install_once
from prefect_lockstead import awaiting, blocking
from prefect_lockstead.places import Place

F = TypeVar("F", bound=Callable[..., Any])


class attached(Hold):  # noqa: N801 - used as `with attached(ticket):`
    """A block, `with` or `async with`, or a function under the lease of a ticket; interrupted when that is lost.

    `@attached(parameter="ticket")` reads the ticket from that parameter at each call. LeaseLost if the lease is gone.
    A ticket must not decide where this process sends its credentials: name the store here, and a ticket of another
    store is refused. store: its URL, or the name of a saved LocksteadStore. Or block: the name of a saved block, as in
    `@locked`; url: the lock's URL. client: the store's own client object, only with a URL. It promises only that the
    lease is valid, not that its owner still works.
    """

    def __init__(
        self,
        ticket: lockstead.LeaseTicket | str | None = None,
        *,
        parameter: str | None = None,
        store: str | None = None,
        block: str | None = None,
        url: str | None = None,
        client: object | None = None,
        **settings: Any,
    ) -> None:
        if (ticket is None) == (parameter is None):
            raise TypeError("attached takes a ticket, or parameter= with the name of the parameter that brings it")
        if block is not None and (url is not None or client is not None or store is not None):
            raise TypeError("attached takes a block, or a URL and a client, and not both")
        if store is not None and url is not None:
            raise TypeError("attached takes store= or url=, and not both")
        if block is None and url is None and store is None:
            raise TypeError(
                "attached: name the lock's store by store=, block= or url= (with client=, if needed): a ticket must "
                "not decide where this process sends its credentials"
            )
        if client is not None and url is None and ":" not in (store or ""):
            raise TypeError(f"attached: the saved store {store!r} brings its own client: leave client= out")
        self._ticket = None if ticket is None else lockstead.LeaseTicket.parse(ticket)
        self._parameter = parameter
        self._store = store
        self._block = block
        self._url = url
        self._client = client
        self._settings = settings
        self._async_hold: AsyncHold | None = None
        super().__init__(self._attach, interrupt=True, drain=None)

    def _named(self) -> lockstead.LeaseTicket:
        install_once()
        if self._ticket is None:
            raise TypeError(f"attached(parameter={self._parameter!r}) is for a function: give a block the ticket")
        return self._ticket

    def _attach(self) -> lockstead.Lease:
        ticket = self._named()
        place = self._known(ticket) or blocking.find_lock(self._saved(ticket))
        return lockstead.Lock(place.url, client=place.client, **self._settings).attach(ticket)

    async def _attach_async(self) -> AsyncLease:
        ticket = self._named()
        place = self._known(ticket) or await awaiting.find_lock(self._saved(ticket))
        return await lockstead.AsyncLock(place.url, client=place.client, **self._settings).attach(ticket)

    def _saved(self, ticket: lockstead.LeaseTicket) -> str:
        return self._block or f"{self._store}#{ticket.key}"

    def _known(self, ticket: lockstead.LeaseTicket) -> Place | None:
        """Return where the lock is; None if a saved block has to be asked."""
        if self._url is not None:
            return Place(self._url, self._client)
        if self._store is not None and ":" in self._store:
            return Place(urls.lock_url(self._store, ticket.key), self._client)
        return None

    async def __aenter__(self) -> AsyncLease:
        if self._async_hold is not None:
            raise TypeError("this block is entered already: call attached(ticket) once for each block")
        hold = AsyncHold(self._attach_async, interrupt=True, drain=None)
        lease = await hold.__aenter__()
        self._async_hold = hold
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold, self._async_hold = self._async_hold, None
        if hold is not None:
            await hold.__aexit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        signature = inspect.signature(function)
        if self._parameter is not None and self._parameter not in signature.parameters:
            raise TypeError(f"{function.__qualname__} has no parameter {self._parameter!r} to bring the ticket")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: use 'with attached(ticket):' inside it")

        def of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> attached:
            ticket = self._ticket
            if self._parameter is not None:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                ticket = bound.arguments[self._parameter]
            where = {"store": self._store, "block": self._block, "url": self._url, "client": self._client}
            return attached(ticket, **where, **self._settings)  # type: ignore[arg-type]  # as they were given

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def working_async(*args: Any, **kwargs: Any) -> Any:
                async with of(args, kwargs):
                    return await function(*args, **kwargs)

            return working_async  # type: ignore[return-value]  # it has the signature of what it wraps

        @functools.wraps(function)
        def working(*args: Any, **kwargs: Any) -> Any:
            with of(args, kwargs):
                return function(*args, **kwargs)

        return working  # type: ignore[return-value]  # it has the signature of what it wraps
