"""AsyncElection: one leader of many candidates. Terms are in `aio_term`.

Making one sends no request and imports no client library; what campaigns and observes is imported on first use.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, cast

from lockstead import registry
from lockstead.aio_hold import AsyncHold
from lockstead.aio_loading import load
from lockstead.errors import LeaseLost, LocksteadError, NotAcquired, StoreError, StoreRefused
from lockstead.settings import Given
from lockstead.stores import url as urls
from lockstead.values import EXCLUSIVE, VALUE_BYTES_MAX, Duration, Name, seconds

if TYPE_CHECKING:
    from lockstead.aio_term import AsyncTerm
    from lockstead.protocol.commands import Script
    from lockstead.protocol.election import Sighting
    from lockstead.runtime.awaiting import AsyncWaker
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.run import Limits
    from lockstead.views import Leader

TTL: Final = 15.0
"""The ttl of a term in seconds, if none is set: how long the key has no leader after one has died."""

CLOSED: Final = "the election was closed"

_NEVER: Final = object()
"""What an observer has seen before its first read."""


class AsyncLeading(AsyncHold):
    """The return value of `election.lead()`: a context manager whose block leads."""

    async def __aenter__(self) -> AsyncTerm:
        return cast("AsyncTerm", await super().__aenter__())


class AsyncElection(registry.NamedLock):
    """An election by name: of all processes that campaign, one leads at a time. Safe to share between threads.

    owner: the name of this candidate, host/pid by default. value: what it advertises as leader, such as its address; at
    most 1 KiB of printable text, no secrets; the owner by default. fenced: refuse a store without fencing tokens, where
    nothing stops a leader that was paused. Other settings as in `Settings.make`; the ttl is 15 s by default.
    """

    _on_campaign: Callable[[], None] = staticmethod(lambda: None)
    """Called before each campaign, by the thread that campaigns."""

    def __init__(
        self,
        url: str,
        *,
        value: str | None = None,
        fenced: bool = True,
        client: object | None = None,
        **settings: Unpack[Given],
    ) -> None:
        super().__init__(url, client=client, **cast(Any, {"ttl": TTL, **registry.target(url).settings, **settings}))
        self._candidate(value, fenced=fenced)

    @classmethod
    def _at(cls, engine: Engine, key: str, settings: Given, *, value: str | None, fenced: bool = True) -> Self:
        """Return an election of an open store."""
        made = cls._of(engine, key, {"ttl": TTL, **settings})
        made._candidate(value, fenced=fenced)
        return made

    def _candidate(self, value: str | None, *, fenced: bool) -> None:
        if self._settings.mode != EXCLUSIVE:
            raise ValueError("an election has one leader: leave out mode='shared'")
        self._value = None if value is None else registry.checked_text(value, "value", VALUE_BYTES_MAX)
        self._is_closed = False
        self._must_rest = False
        self._term: weakref.ref[AsyncTerm] | None = None
        self._fenced = fenced
        if self._opened is None and not urls.may_have_tokens(self._named):
            self._refuse_unfenced(self._named.scheme)

    def _refuse_unfenced(self, scheme: str) -> None:
        if self._fenced:
            raise ValueError(
                f"{scheme}: has no fencing tokens, so nothing stops a leader that was paused; take another store, or "
                "pass fenced=False (--unfenced)"
            )

    async def _ready(self) -> Engine:
        engine = await load(self._open_now) if self._opened is None else self._opened
        from lockstead.protocol.commands import TokenSource

        if engine.traits.tokens is TokenSource.NONE:
            self._refuse_unfenced(engine.traits.scheme)
        return engine

    # --- leading -------------------------------------------------------------------------------------------------

    def lead(
        self,
        timeout: Duration | None = None,
        *,
        max_term: Duration | None = None,
        interrupt: bool = False,
        reclaim: bool = False,
    ) -> AsyncLeading:
        """Campaign, and lead for an `async with` block; leaving it resigns. NotAcquired after `timeout` seconds.

        max_term: end the term after so long, so that another process gets its turn. interrupt: cancel the block's task
        when the term ends. reclaim: take the term of an earlier process of the same explicit owner; the caller must be
        sure that it is dead. At the end: LeaseLost if the term was lost.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        longest = None if max_term is None else seconds(max_term, "max_term")
        return AsyncLeading(partial(self._campaign, limit, longest, reclaim=reclaim), interrupt=interrupt, drain=None)

    async def run(
        self,
        on_elected: Callable[[AsyncTerm], Awaitable[object]],
        *,
        on_deposed: Callable[[str], Awaitable[object]] | None = None,
        on_leader: Callable[[Leader | None], Awaitable[object]] | None = None,
        max_term: Duration | None = None,
        reclaim: bool = False,
    ) -> None:
        """Campaign again and again until `close`; call on_elected with each term, and resign when it returns.

        on_deposed is called once for each term, with the reason: when the term ends, at the latest `abort_margin`
        before its deadline, while on_elected may still be running; or else after it returned. It ends before the next
        on_elected is called. on_leader is called with each leader that is seen. An error of on_elected ends this; those
        of the others are events.
        """
        longest = None if max_term is None else seconds(max_term, "max_term")
        engine = await self._ready()
        from lockstead.runtime.awaiting import Background

        is_over: list[bool] = []
        observer = None if on_leader is None else Background(partial(self._report, engine, on_leader, is_over))
        try:
            while True:
                try:
                    term = await self._campaign(None, longest, reclaim=reclaim)
                except NotAcquired:
                    if self._is_closed:
                        return
                    raise
                await self._serve(engine, term, on_elected, on_deposed)
        finally:
            is_over.append(True)
            engine.leader_view(self._key).observers.wake_all()
            if observer is not None:
                await observer.end()

    def close(self) -> None:
        """End `run`, campaigns, observers, and the term, whose block must end as if it was lost. Idempotent."""
        self._is_closed = True
        term = None if self._term is None else self._term()
        if term is not None:
            term._end(CLOSED)
        if self._opened is not None:
            self._opened.local_queue.wake_first(self._key)
            self._opened.leader_view(self._key).observers.wake_all()

    async def _campaign(self, limit: float | None, max_term: float | None, *, reclaim: bool) -> AsyncTerm:
        """Acquire the lease with the value, and draw its token: the term begins with both."""
        began = monotonic()
        engine = await self._ready()
        from lockstead.acquisition import Acquisition
        from lockstead.aio_lease import ask_for
        from lockstead.aio_term import AsyncTerm
        from lockstead.protocol.commands import TokenSource
        from lockstead.runtime.engine import default_owner

        value = self._value or self._settings.owner or default_owner()
        while True:
            self._on_campaign()
            left = None if limit is None else max(0.0, limit - (monotonic() - began))
            self._refuse_if_closed()
            await self._rest(engine, left)
            self._refuse_if_closed()
            spent = monotonic() - began
            acquisition = Acquisition(
                engine,
                self._key,
                self._settings,
                limit,
                reclaim=reclaim,
                spent=spent,
                value=value,
                refuse_if_closed=self._refuse_if_closed,
            )
            term = await ask_for(acquisition, AsyncTerm)
            if term is None:
                raise acquisition.not_acquired()
            try:
                if engine.traits.tokens is not TokenSource.NONE:
                    await term.sequencer()
                if term.time_left <= self._settings.abort_margin:
                    # too little is left to begin: `on_deposed` would be late
                    await term.renew()
                break
            except BaseException as error:
                with suppress(StoreError):
                    await term.release(unused=True)
                is_transient = isinstance(error, LocksteadError) and not isinstance(error, StoreRefused)
                if not is_transient or (limit is not None and monotonic() - began >= limit):
                    raise
        term._election = weakref.ref(self)
        self._term = weakref.ref(term)
        if max_term is not None:
            term._end_after(max_term)
        if self._is_closed:
            term._end(CLOSED)
        return term

    async def _rest(self, engine: Engine, left: float | None) -> None:
        """Leave the key to the others for a moment, after a term that this process ended."""
        if self._must_rest:
            from lockstead.aio_lease import converse

            self._must_rest = False
            pause = self._settings.backoff_max if left is None else min(self._settings.backoff_max, left)
            limits = self._limits(self._refuse_if_closed)
            await converse(engine, self._settings, _paused(Name(self._key), pause), limits)

    async def _serve(
        self,
        engine: Engine,
        term: AsyncTerm,
        on_elected: Callable[[AsyncTerm], Awaitable[object]],
        on_deposed: Callable[[str], Awaitable[object]] | None,
    ) -> None:
        from lockstead.runtime.awaiting import AsyncWaker, Background

        try:
            async with term:
                over = AsyncWaker(engine)
                deposing = Background(partial(self._depose, engine, term, over, on_deposed))
                term.on_lost(over.ring)
                try:
                    await on_elected(term)
                finally:
                    over.ring()
                    await deposing.join()
                if term.is_held:
                    # its work is done: it would lead again at once
                    term.resign()
        except LeaseLost as lost:
            if lost.holder != term.holder:
                raise

    async def _depose(
        self,
        engine: Engine,
        term: AsyncTerm,
        over: AsyncWaker,
        on_deposed: Callable[[str], Awaitable[object]] | None,
    ) -> None:
        while not await over.wait(60.0):
            pass
        if on_deposed is None:
            return
        why = "its work has ended" if term.is_held else term._why_ended()
        try:
            await on_deposed(why)
        except Exception as error:  # noqa: BLE001 - reported, as for `on_lost`
            _report_failed(engine, term.key, term.holder, error)

    # --- observing -----------------------------------------------------------------------------------------------

    async def leader(self) -> Leader | None:
        """Return the leader, as one request shows it; None if there is none. It may have changed since."""
        engine = await self._ready()
        from lockstead.aio_lease import converse
        from lockstead.protocol.election import look
        from lockstead.views import leader

        found, _left = await converse(engine, self._settings, look(Name(self._key), engine.context(self._settings)))
        return leader(engine.leader_view(self._key).note(found))

    def observe(self) -> AsyncIterator[Leader | None]:
        """Yield the leader, and again after each change that is seen, until `close`; None: there is none.

        Some changes may be skipped; a lower token never follows a higher one. Reads when the store reports a change,
        and every eighth of the ttl; one observer of a process reads for all. A store that does not answer is tried
        again. Writes nothing.
        """
        return self._observed([])

    async def _observed(self, is_over: list[bool]) -> AsyncIterator[Leader | None]:
        engine = await self._ready()
        from lockstead.views import leader

        last: object = _NEVER
        while True:
            try:
                last = found = await self._changed(engine, last, is_over)
            except NotAcquired:
                return
            yield leader(found)

    async def _changed(self, engine: Engine, last: object, is_over: list[bool]) -> Sighting | None:
        """Return the leader when it is not `last`. The first observer of this process reads, the others wait for it."""
        from lockstead.protocol.election import until_changed
        from lockstead.runtime.aio_drive import run
        from lockstead.runtime.awaiting import AsyncWaker
        from lockstead.runtime.local_queue import RECHECK_INTERVAL

        def refuse() -> None:
            if is_over:
                raise NotAcquired("the observer has ended", key=self._key)
            self._refuse_if_closed()

        view, waker = engine.leader_view(self._key), AsyncWaker(engine)
        queue, reads = view.observers, view.reads
        queue.enter(self._key, waker)
        try:
            while True:
                refuse()
                is_first = queue.is_first(self._key, waker)
                # without a reader, what was seen before is out of date
                if view.reads and view.seen != last and (view.reads > reads or not is_first):
                    return view.seen
                if is_first:
                    break
                await waker.wait(RECHECK_INTERVAL)
                waker.take()
            script = until_changed(Name(self._key), engine.context(self._settings), last, view.note)
            return await run(script, engine.store, engine.clock, self._limits(refuse), waker)
        finally:
            waker.is_over = True
            queue.leave(self._key, waker)

    async def _report(
        self,
        engine: Engine,
        on_leader: Callable[[Leader | None], Awaitable[object]],
        is_over: list[bool],
    ) -> None:
        try:
            async for found in self._observed(is_over):
                try:
                    await on_leader(found)
                except Exception as error:  # noqa: BLE001 - reported, as for `on_lost`
                    _report_failed(engine, self._key, "", error)
        except Exception as error:  # noqa: BLE001 - the campaign meets the same error, and raises it
            _report_failed(engine, self._key, "", error)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise NotAcquired(f"the election of {self._key!r} was closed", key=self._key)
        if self._opened is not None:
            self._opened.refuse_if_closed()

    def _limits(self, refuse: Callable[[], None]) -> Limits:
        from lockstead.runtime.run import Limits

        return Limits(self._settings.request_timeout, refuse_if_closed=refuse)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the term of this process, too."""
        return {**super().__getstate__(), "_term": None}


def _report_failed(engine: Engine, key: str, holder: str, error: Exception) -> None:
    from lockstead.events import CallbackFailed

    engine.emit(CallbackFailed(key, holder, error))


def _paused(name: Name, length: float) -> Script[None]:
    from lockstead.protocol.commands import Pause

    yield Pause(name, length, length, wake_on_change=False)
