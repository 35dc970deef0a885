"""Decides what the blocking API looks like: Client, Lock, Lease. Its awaiting twin is `aio`.

Runs scripts and hands what they decide to the engine; knows no store and decides nothing of the protocol.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from lockstead import opening
from lockstead.errors import LeaseLost, NotAcquired, StoreError, StoreRefused
from lockstead.events import Attached, Detached, Listener, Released, ReleaseFailed, log
from lockstead.holding import Breaking, Holding, breaking, holding
from lockstead.protocol import release as leaving
from lockstead.protocol.acquire import Acquisition, Contended, Grant, acquire
from lockstead.protocol.commands import List, Script, TokenSource, ask
from lockstead.protocol.fence import draw_token, verify
from lockstead.protocol.members import attach, withdraw
from lockstead.protocol.renew import Over, renew
from lockstead.protocol.terms import LeaseId
from lockstead.runtime import context
from lockstead.runtime.engine import Engine, fresh_nonce, wait_in_line
from lockstead.runtime.held import HeldLease, lost_on_attach
from lockstead.runtime.interrupt import Interrupter, LeaseLostInterrupt, interrupter, leaves_quietly
from lockstead.runtime.line import ThreadBell
from lockstead.runtime.run import Limits, run
from lockstead.settings import Settings
from lockstead.stores.port import Store
from lockstead.values import Duration, LeaseTicket, Name, Sequencer, Space, checked_key, seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Client:
    """An opened store and the keeper of all its leases. Open one with `connect`, or bring your own store.

    Closing it ends the keeping: leases still held are left to expire.
    """

    def __init__(self, store: Store, *, listener: Listener = log) -> None:
        self._engine = Engine(store, listener)

    @classmethod
    def _of(cls, engine: Engine) -> Self:
        made = cls.__new__(cls)
        made._engine = engine
        return made

    def lock(self, key: str, **settings: Any) -> Lock:
        """Name a lock of this store; asks nothing. Settings as in `Settings.make`."""
        return Lock._of(self._engine, checked_key(key), Settings.make(**settings))

    def list(self) -> list[Holding]:
        """Show every key that is held, by name."""
        settings = Settings()
        terms = self._engine.terms(settings)
        listed = _converse(self._engine, settings, ask(List(Space.LOCK))).answer
        held = [holding(name.key, leaving.sight(name, seen, terms), terms) for name, seen in listed.entries]
        return sorted(held, key=lambda one: one.key)

    def verify(self, sequencer: Sequencer | str) -> bool:
        """Tell whether a sequencer names the lease that holds its key at this instant. Absent or expired is no."""
        said = Sequencer.parse(sequencer) if isinstance(sequencer, str) else sequencer
        settings = Settings()
        return _converse(self._engine, settings, verify(said, self._engine.terms(settings)))

    def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching; waits for live members."""
        said = LeaseTicket.parse(ticket)
        return self.lock(said.key, ttl=said.ttl).release(said, drain=drain)

    def close(self) -> None:
        """Close the keeper and the store. Idempotent."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._engine.store.url}>"


def connect(url: str, *, client: object | None = None, listener: Listener = log) -> Client:
    """Open a store by URL; `client` brings the caller's own client object (a `storage.Client`, say).

    ValueError for a URL that cannot be, StoreRefused when the client library or the store is missing.
    """
    return Client(opening.open_store(url, client), listener=listener)


class Lock:
    """A key one can ask for; holds nothing, and naming one asks nothing and imports no client library.

    Not reentrant: each acquisition is a holder of its own. Safe to share between threads.
    """

    def __init__(self, url: str, *, client: object | None = None, **settings: Any) -> None:
        target = opening.target(url)
        self._key = target.key
        self._settings = Settings.make(**{**target.settings, **settings})
        self._open = functools.partial(opening.shared_engine, target, client)
        self._opened: Engine | None = None

    @classmethod
    def _of(cls, engine: Engine, key: str, settings: Settings) -> Self:
        made = cls.__new__(cls)
        made._key = key
        made._settings = settings
        made._opened = engine
        return made

    @property
    def key(self) -> str:
        """The lock's name inside its store."""
        return self._key

    @property
    def settings(self) -> Settings:
        """The settings, complete and checked."""
        return self._settings

    @property
    def _engine(self) -> Engine:
        if self._opened is None:
            self._opened = self._open()
            self._opened.warn_once(self._key, self._settings)
        return self._opened

    # --- asking --------------------------------------------------------------------------------------------------

    def acquire(self, timeout: Duration | None = None, *, reclaim: bool = False) -> Lease:
        """Wait for the lock, for ever by default; 0 is one try. NotAcquired after `timeout` seconds.

        Ends within timeout + 1 s even if the store hangs. reclaim: take the lock from an earlier process of the same
        explicit owner, whose death the caller vouches for. Raises StoreUnavailable or OutcomeUnknown if the store is
        still silent at the end.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        engine, started_at = self._engine, self._engine.clock.now()
        if limit != 0:
            engine.refuse_self_wait(Name(self._key))
        outcome = self._ask(limit, started_at, reclaim=reclaim)
        if isinstance(outcome, Contended):
            raise engine.not_acquired(Name(self._key), outcome, engine.clock.now() - started_at)
        return outcome

    def try_acquire(self, *, reclaim: bool = False) -> Lease | None:
        """Try once: the lease, or None if somebody else holds it. Waits for nobody, and for the store at most 1 s."""
        outcome = self._ask(0.0, self._engine.clock.now(), reclaim=reclaim)
        return None if isinstance(outcome, Contended) else outcome

    def _ask(self, limit: float | None, started_at: float, *, reclaim: bool) -> Lease | Contended:
        engine, settings = self._engine, self._settings
        want = engine.want(Name(self._key), settings, reclaim=reclaim)
        if limit != 0:
            want.on_wait = functools.partial(engine.waiting, want)
        gives_up_at = None if limit is None else started_at + limit
        bell = ThreadBell()
        try:
            waits = limit != 0
            first = not waits or engine.lines.enter(self._key, bell)
            in_time = first or wait_in_line(engine, self._key, bell, gives_up_at)
            script = acquire(
                want,
                engine.terms(settings),
                gives_up_at=gives_up_at,
                tries_once=not waits or not in_time,
                look_first=not first,
            )
            outcome = run(script, engine.store, engine.clock, Limits(settings.request_timeout, gives_up_at), bell)
            if isinstance(outcome, Grant):
                return self._lease(outcome, want, started_at)
        except BaseException as error:
            # an interrupt may fall after the grant, when nobody has the lease yet who could release it
            want.unsettled = want.unsettled or not isinstance(error, Exception)
            engine.given_up(want, settings)
            raise
        finally:
            engine.lines.leave(self._key, bell)
        engine.given_up(want, settings)
        return outcome

    def _lease(self, grant: Grant, want: Acquisition, started_at: float) -> Lease:
        engine = self._engine
        waited = max(0.0, grant.sent_at - started_at)
        kept = engine.granted(grant, want, self._settings, waited)
        return Lease(engine, kept, engine.took(self._key))

    def hold(
        self,
        timeout: Duration | None = None,
        *,
        interrupt: bool = False,
        drain: Duration | None = None,
        reclaim: bool = False,
    ) -> Hold:
        """Hold the lock for a `with` block, or, as a decorator, for each call of a function.

        Leaving it: lease lost and body returned, LeaseLost; body raised, its exception passes, with a note if the
        lease was lost; release failed, a warning. interrupt: interrupt the block when the lease is lost.
        """
        return Hold(self, timeout, interrupt=interrupt, drain=drain, reclaim=reclaim)

    def __enter__(self) -> NoReturn:
        raise TypeError("a Lock is not held by itself: use 'with lock.hold():'")

    def __exit__(self, *_: object) -> None:
        raise TypeError("a Lock is not held by itself: use 'with lock.hold():'")

    # --- tickets -------------------------------------------------------------------------------------------------

    def attach(self, ticket: LeaseTicket | str) -> Lease:
        """Carry on with a lease from its ticket, as a member. LeaseLost if it is not there any more.

        The ttl is the lease's own. ValueError for what is no ticket, or a ticket of another lock.
        """
        engine = self._engine
        said = opening.checked_ticket(ticket, self._key, engine.store.url)
        settings, nonce = self._settings.for_ttl(said.ttl), fresh_nonce()
        lease = LeaseId(Name(said.key), said.holder, said.incarnation, said.ttl)
        fields = engine.registration_fields(nonce, said.ttl, settings)
        joined = _converse(engine, settings, attach(lease, nonce, fields, engine.terms(settings)))
        if isinstance(joined, Over):
            raise lost_on_attach(said, joined)
        kept = engine.attached(joined, settings)
        engine.emit(Attached(self._key, said.holder))
        return Lease(engine, kept, None)

    def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching. True if we removed it.

        Waits, at most `drain` seconds, until no member is live; if one still is, the lease is left to expire.
        """
        engine = self._engine
        said = opening.checked_ticket(ticket, self._key, engine.store.url)
        settings = self._settings.for_ttl(said.ttl)
        lease = LeaseId(Name(said.key), said.holder, said.incarnation, said.ttl)
        bound = settings.drain_bound(engine.traits.granularity) if drain is None else seconds(drain, "drain")
        script = leaving.release(
            lease, engine.terms(settings), shared=True, bound_at=engine.clock.now() + bound, salt=said.holder
        )
        outcome = _converse(engine, settings, script)
        removed = outcome is leaving.Outcome.REMOVED
        engine.emit(Released(self._key, said.holder, removed, outcome.value))
        engine.lines.ring(self._key)
        return removed

    # --- looking and breaking ------------------------------------------------------------------------------------

    def inspect(self) -> Holding | None:
        """Show who holds the lock, since when, why, until when, with which token; None if nobody does."""
        terms = self._engine.terms(self._settings)
        sight = _converse(self._engine, self._settings, leaving.look(Name(self._key), terms))
        return None if sight is None else holding(self._key, sight, terms)

    def break_lease(
        self, *, reason: str, by: str | None = None, now: bool = False, incarnation: str | None = None
    ) -> Breaking | None:
        """Revoke the lease, as an operator; None if there is none. The holder finds out at its next renewal.

        now: remove it at once; the answer says for how long the old holder may still believe. incarnation (of an
        inspection): break exactly that lease and no later one. Leaves an audit entry.
        """
        engine, settings = self._engine, self._settings
        terms = engine.terms(settings)
        revoked = opening.revocation(reason, by, settings)
        script = leaving.break_lease(
            Name(self._key), revoked, terms, now=now, incarnation=incarnation, salt=fresh_nonce()
        )
        broken = _converse(engine, settings, script)
        if broken is None:
            return None
        report = breaking(self._key, broken, terms, engine.clock.wall())
        part, entry = leaving.audit_entry(broken, revoked, engine.clock.wall(), fresh_nonce())
        _converse(engine, settings, leaving.audit(Name(self._key), part, entry))
        engine.lines.ring(self._key)
        return report

    def __repr__(self) -> str:
        return f"<Lock {self._key!r}>"


class Lease(HeldLease):
    """A time-bounded right to a key. A context manager that releases; its block is not entered if it is lost."""

    def sequencer(self) -> Sequencer:
        """Give key, mode and fencing token, for the resource to check; draws the token when first asked.

        LeaseLost if the lease is not ours any more, StoreRefused if the store has no tokens.
        """
        self.check()
        if self._tenure.token is None:
            engine, tenure = self._engine, self._tenure
            if engine.traits.tokens is TokenSource.NONE:
                raise StoreRefused(f"{engine.traits.scheme} has no fencing tokens; use a store that has")
            script = draw_token(tenure.lease, self._kept.terms, salt=fresh_nonce())
            token = _converse(engine, tenure.settings, script)
            if token is None:
                self._find_loss()
            tenure.token = token
        if self._tenure.token is None:
            self._raise_lost()
        return Sequencer(self.key, self._tenure.token)

    def _find_loss(self) -> NoReturn:
        engine, tenure = self._engine, self._tenure
        verdict = _converse(engine, tenure.settings, renew(tenure.lease, {}, self._kept.terms))
        if isinstance(verdict, Over):
            engine.keeper.lose(self._kept, verdict.reason, verdict.detail)
            self._raise_lost()
        raise NotAcquired(f"no token could be drawn for {self.key!r}: its record changes too fast", key=self.key)

    def detach(self) -> LeaseTicket:
        """Stop keeping the lease without giving it back, and give the ticket to carry on with.

        The belief of this process ends here; the record lives on for what is left of its ttl.
        """
        self.check()
        ticket = self._ticket()
        engine, tenure = self._engine, self._tenure
        engine.keeper.leave(self._kept, engine.clock.now())
        engine.keeper.settle(self._kept, 2 * tenure.settings.request_timeout)
        if tenure.registration is not None:
            try:
                _converse(engine, tenure.settings, withdraw(tenure.registration))
            except StoreError as error:
                engine.emit(ReleaseFailed(self.key, self.holder, error))
        engine.keeper.left(self._kept)
        self._ended()
        engine.emit(Detached(self.key, self.holder))
        return ticket

    def share(self) -> LeaseTicket:
        """Give a ticket and go on working: registers this process as a member first, so that a release waits for it.

        LeaseLost if the lease is not ours any more.
        """
        self.check()
        engine, tenure = self._engine, self._tenure
        if tenure.registration is None:
            nonce = fresh_nonce()
            fields = engine.registration_fields(nonce, tenure.lease.ttl, tenure.settings)
            tenure.shared = True
            joined = _converse(engine, tenure.settings, attach(tenure.lease, nonce, fields, self._kept.terms))
            if isinstance(joined, Over):
                engine.keeper.lose(self._kept, joined.reason, joined.detail)
                self._raise_lost()
            engine.keeper.register(self._kept, joined)
        return self._ticket()

    def release(self, drain: Duration | None = None) -> bool:
        """Give the lease back: True if we removed it. A member only withdraws its registration.

        If a ticket was ever made, waits (at most `drain` seconds) until no member is live, and leaves the lease to
        expire if one still is. Never touches another holder's lease. Raises StoreUnavailable or OutcomeUnknown if
        the store stays silent: the ttl frees the key.
        """
        engine, tenure = self._engine, self._tenure
        now = engine.clock.now()
        if not self._may_leave(now):
            return False
        try:
            engine.keeper.settle(self._kept, 2 * tenure.settings.request_timeout)
            bound = tenure.settings.drain_bound(engine.traits.granularity) if drain is None else seconds(drain, "drain")
            script = leaving.give_back(tenure, self._kept.terms, bound_at=now + bound)
            outcome = _converse(engine, tenure.settings, script)
        except (StoreError, KeyboardInterrupt):
            self._release_failed()
            raise
        finally:
            self._gave_back()
        removed = outcome is leaving.Outcome.REMOVED
        engine.emit(Released(self.key, self.holder, removed, outcome.value))
        return removed

    def guard(self) -> Guard:
        """Interrupt the `with` block it opens when the lease is lost; see `runtime.interrupt` for what can be."""
        return Guard(self)

    def __enter__(self) -> Self:
        self.check()
        context.enter(self)
        return self

    @leaves_quietly
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.leave(self)
        _leave(self, error, None)


class Guard:
    """A `with` block that is interrupted when its lease is lost, and then raises LeaseLost."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._interrupter: Interrupter | None = None

    def __enter__(self) -> Lease:
        self._lease.check()
        self._interrupter = interrupter()
        self._interrupter.arm()
        self._lease._engine.keeper.on_lost(self._lease._kept, self._interrupter.fire, at_once=True)
        return self._lease

    @leaves_quietly
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._interrupter is None:
            return
        was_fired = self._interrupter.disarm()
        self._lease._engine.keeper.not_on_lost(self._lease._kept, self._interrupter.fire)
        if isinstance(error, LeaseLostInterrupt):
            raise self._lease.lost_error() from None
        if was_fired and error is None:
            raise self._lease.lost_error()


class Hold:
    """What `lock.hold()` gives: a context manager with a lease of its own, and a decorator."""

    def __init__(
        self, lock: Lock, timeout: Duration | None, *, interrupt: bool, drain: Duration | None, reclaim: bool
    ) -> None:
        self._lock = lock
        self._timeout = timeout
        self._interrupt = interrupt
        self._drain = drain
        self._reclaim = reclaim
        self._lease: Lease | None = None
        self._guard: Guard | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise TypeError("this hold is entered already: call lock.hold() once for each block")
        lease = self._lock.acquire(self._timeout, reclaim=self._reclaim)
        self._lease = lease
        context.enter(lease)
        if self._interrupt:
            try:
                self._guard = lease.guard()
                self._guard.__enter__()
            except BaseException:
                self._guard = None
                self.__exit__(LeaseLost, lease.lost_error(), None)
                raise
        return lease

    @leaves_quietly
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, guard = self._lease, self._guard
        self._lease = self._guard = None
        if lease is None:
            return
        context.leave(lease)
        lost: LeaseLost | None = None
        if guard is not None:
            try:
                guard.__exit__(kind, error, trace)
            except LeaseLost as found:
                lost = found
        _leave(lease, lost or error, self._drain)
        if lost is not None:
            raise lost from None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is async: decorate it with AsyncLock(...).hold()")
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: use 'with lock.hold():' inside it")

        @functools.wraps(function)
        def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            again = Hold(self._lock, self._timeout, interrupt=self._interrupt, drain=self._drain, reclaim=self._reclaim)
            with again:
                return function(*args, **kwargs)

        return holding_it


def _leave(lease: Lease, error: BaseException | None, drain: Duration | None) -> None:
    """Give a lease back at the end of its block, and raise LeaseLost if the block returned without holding it."""
    lost = lease._loss_at_exit()
    try:
        lease.release(drain)
    except StoreError as failed:
        lease._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))
    lease._raise_at_exit(lost, error)


def current_lease() -> Any:
    """Give the innermost lease of this context; LookupError if there is none."""
    lease = context.current()
    if lease is None:
        raise LookupError("no lease is held in this context; enter 'with lock.hold():' first")
    return lease


def _converse(engine: Engine, settings: Settings, script: Script[T]) -> T:
    return run(script, engine.store, engine.clock, Limits(settings.request_timeout), ThreadBell())
