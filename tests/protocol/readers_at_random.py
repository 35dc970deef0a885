"""Readers and writers at random in virtual time: lost, late and doubled requests, late answers, stalls and crashes.

Every process runs the real scripts, one command at a time, in a random order. After each step nobody may believe in a
lease beside a believing writer.
"""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

from lockstead.errors import LossReason, OutcomeUnknown, StoreUnavailable
from lockstead.protocol import keeping
from lockstead.protocol.acquire import AcquireRequest, Grant, acquire
from lockstead.protocol.commands import Pause, Paused, Script, Traits
from lockstead.protocol.lifecycle import LeaseState, State
from lockstead.protocol.members import (
    DOWNGRADED,
    Attached,
    Introduction,
    MemberRenewed,
    attach,
    member_name,
    nonce_of,
    renew_member,
)
from lockstead.protocol.readers import attempt_shared
from lockstead.protocol.record import Record, encode
from lockstead.protocol.release import UsedLease, give_back, may_remove_after_loss, sweep
from lockstead.protocol.renew import Over, Renewed, renew
from lockstead.values import EXCLUSIVE, SHARED
from tests.protocol.bench import APT, Bench, Session

TTL = 10.0
STEPS = 600


class Talk:
    """One script of a process, and the answer that is on its way to it."""

    def __init__(self, run: Run, script: Script[Any]) -> None:
        self.run = run
        self.error: Exception | None = None
        self.answers: list[Any] = []
        self.ready_at = 0.0
        self.session = Session.__new__(Session)
        self._try(lambda: self.session.__init__(run.bench, script))  # type: ignore[misc]

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.session.is_over

    @property
    def outcome(self) -> Any:
        return self.error or self.session.outcome

    def _try(self, step: Any) -> None:
        try:
            step()
        except (StoreUnavailable, OutcomeUnknown) as error:
            self.error = error
        command = None if self.is_over else self.session.command
        if isinstance(command, Pause):
            self.ready_at = self.run.bench.now + command.draw(self.run.dice.random)

    def step(self) -> None:
        run, session = self.run, self.session
        if self.answers:
            self._try(lambda: session.answer(self.answers.pop()))
        elif isinstance(session.command, Pause):
            if run.bench.now >= self.ready_at:
                self._try(lambda: session.answer(Paused(run.bench.now - session.sent_at)))
        else:
            self._send()

    def _send(self) -> None:
        run, session, fate = self.run, self.session, self.run.dice.random()
        if fate < run.trouble:
            command = session.command
            if fate < run.trouble / 4:
                self._try(lambda: session.unsent(0.1))
                return
            if fate < run.trouble / 2:
                run.bench.store.perform(command)
            if fate > run.trouble / 3:
                run.network.append(command)
            self._try(lambda: session.late(0.1))
        else:
            self.answers.append(run.bench.store.perform(session.command))


class Process:
    """A client that acquires, renews, downgrades and releases, again and again."""

    def __init__(self, run: Run, name: str, mode: str) -> None:
        self.run, self.name, self.wish = run, name, mode
        self.context = run.bench.context()
        self.state: LeaseState | None = None
        self.request: AcquireRequest | None = None
        self.talk: Talk | None = None
        self.doing = ""
        self.sweeps: list[Talk] = []
        self.is_dead = False

    def believes(self) -> bool:
        return not self.is_dead and self.state is not None and self.state.believes(self.run.bench.now)

    @property
    def mode(self) -> str:
        return self.wish if self.state is None else self.state.mode

    def step(self) -> None:
        if self.sweeps and self.run.dice.random() < 0.4:
            self.sweeps[0].step()
            if self.sweeps[0].is_over:
                self.sweeps.pop(0)
        elif self.talk is None:
            self._begin()
        else:
            self.talk.step()
            if self.talk.is_over:
                doing, outcome, self.talk = self.doing, self.talk.outcome, None
                getattr(self, f"_after_{doing}")(outcome)

    def _do(self, doing: str, script: Script[Any]) -> None:
        self.doing, self.talk = doing, Talk(self.run, script)

    def _begin(self) -> None:
        dice, bench = self.run.dice, self.run.bench
        if self.state is None:
            self._ask()
        elif self.state.state is State.LOST or not self.state.believes(bench.now) or dice.random() < 0.12:
            self._leave()
        elif self.state.mode == EXCLUSIVE and dice.random() < 0.4:
            self._do("registration", attach(self.state.lease, self.name, self._registration(), self.context))
        elif dice.random() < 0.5:
            self._renew()

    def _registration(self) -> dict[str, str]:
        return encode(Record(self.state.lease.holder if self.state else self.name, TTL, owner=self.name))

    def _ask(self) -> None:
        run = self.run
        holder = f"{self.name}/{run.count()}"
        issuer = run.issuer()
        if self.wish == SHARED and issuer is not None and run.dice.random() < 0.6:
            own = issuer.registration
            assert own is not None
            introduced_by = Introduction(nonce_of(own.holder), own.incarnation)
            fields = encode(Record(holder, TTL, owner=self.name))
            script = attach(
                issuer.lease, nonce_of(holder), fields, self.context, mode=SHARED, introduced_by=introduced_by
            )
            self._do("attach", script)
            return
        own_fields = encode(Record(holder, TTL, owner=self.name))
        if self.wish == SHARED:
            group = encode(Record(f"shared/{nonce_of(holder)}", TTL, mode=SHARED))
            request = AcquireRequest(APT, holder, self.name, group, nonce=nonce_of(holder), registration=own_fields)
        else:
            request = AcquireRequest(APT, holder, self.name, own_fields)
        self.request = request
        tries_once = run.dice.random() < 0.3
        self._do(
            "acquire",
            acquire(
                request,
                self.context,
                attempt=attempt_shared if self.wish == SHARED else None,
                gives_up_at=run.bench.now + run.dice.choice([3.0, 30.0, math.inf]),
                tries_once=tries_once,
            ),
        )

    def _after_acquire(self, outcome: Any) -> None:
        request, settings = self.request, self.run.bench.settings
        assert request is not None
        if isinstance(outcome, Grant):
            self.state = keeping.granted(outcome, request, settings, 0.5)
            self.run.granted[self.wish] += 1
            return
        self.sweeps.append(Talk(self.run, sweep(APT, request.holder, self.context)))
        if request.group is not None:
            name = member_name(request.group, request.nonce)
            self.sweeps.append(Talk(self.run, sweep(name, request.registered_as, self.context)))

    def _after_attach(self, outcome: Any) -> None:
        if isinstance(outcome, Attached):
            self.state = keeping.attached(outcome, self.run.bench.settings, 0.5)
            self.run.granted["ticket"] += 1

    def _renew(self) -> None:
        state = self.state
        assert state is not None
        if state.registration is None:
            self._do("renewal", renew(state.lease, {}, self.context))
        else:
            self._do("renewal", renew_member(state.lease, state.registration, {}, self.context, mode=state.mode))

    def _after_renewal(self, outcome: Any) -> None:
        state, now = self.state, self.run.bench.now
        assert state is not None
        match outcome:
            case Over():
                state.lose(outcome.reason, outcome.detail)
            case MemberRenewed():
                state.registered(outcome.registration_deadline, now)
                state.renewed(outcome.sent_at, outcome.record_deadline, now)
            case Renewed():
                state.renewed(outcome.sent_at, outcome.deadline, now)

    def _after_registration(self, outcome: Any) -> None:
        state = self.state
        assert state is not None
        if isinstance(outcome, Over):
            state.lose(outcome.reason, outcome.detail)
        elif isinstance(outcome, Attached):
            state.registration = outcome.registration
            state.registered(outcome.registration_deadline, self.run.bench.now)
            if state.believes(self.run.bench.now):
                state.downgraded()
                self.run.granted["downgrade"] += 1
                self._do("downgrade", renew(state.lease, DOWNGRADED, self.context))

    def _after_downgrade(self, outcome: Any) -> None:
        if not isinstance(outcome, Exception):
            self._after_renewal(outcome)

    def _leave(self) -> None:
        state, now = self.state, self.run.bench.now
        assert state is not None
        if state.state is State.HELD and not state.believes(now):
            state.lose(LossReason.EXPIRED)
        if state.state is State.LOST and not may_remove_after_loss(state, now):
            self.state = None
            return
        state.leave()
        self._do("release", give_back(state, self.context, bound_at=now + 20))

    def _after_release(self, outcome: Any) -> None:
        state, self.state = self.state, None
        assert state is not None
        if isinstance(outcome, Exception) and state.is_owner:
            used = UsedLease(state.lease.incarnation, is_shared=state.shared, is_clean=state.reason is None)
            self.sweeps.append(Talk(self.run, sweep(APT, state.lease.holder, self.context, used)))


class Run:
    """One random run. trouble: the share of requests that go wrong."""

    def __init__(self, seed: int, traits: Traits) -> None:
        self.dice = Random(seed)
        self.bench = Bench(traits, ttl=TTL)
        self.trouble = self.dice.choice([0.0, 0.1, 0.3])
        self.network: list[Any] = []
        self.granted: Counter[str] = Counter()
        self._count = 0
        modes = [SHARED, SHARED, EXCLUSIVE, self.dice.choice([SHARED, EXCLUSIVE])]
        self.processes = [Process(self, f"p{number}", mode) for number, mode in enumerate(modes)]

    def count(self) -> int:
        self._count += 1
        return self._count

    def issuer(self) -> LeaseState | None:
        """Return the lease of a reader, which may have ended meanwhile, as in a ticket."""
        states = [one.state for one in self.processes if one.state is not None and one.state.mode == SHARED]
        return self.dice.choice(states) if states else None

    def play(self) -> str | None:
        """Return what went wrong; None if nothing did."""
        for number in range(STEPS):
            self._step()
            believers = [one for one in self.processes if one.believes()]
            if len(believers) > 1 and any(one.mode == EXCLUSIVE for one in believers):
                return f"step {number}: {', '.join(f'{one.name} {one.mode}' for one in believers)}"
        return None

    def _step(self) -> None:
        dice, bench = self.dice, self.bench
        chance = dice.random()
        if self.network and chance < 0.1:
            # late, and perhaps once more later
            at = dice.randrange(len(self.network))
            bench.store.perform(self.network[at])
            if dice.random() < 0.7:
                del self.network[at]
        elif chance < 0.12:
            bench.now += dice.choice([1.0, TTL / 2, TTL * 1.2])
        elif chance < 0.13:
            number = dice.randrange(len(self.processes))
            old = self.processes[number]
            if old.talk is not None and not isinstance(old.talk.session.command, Pause):
                self.network.append(old.talk.session.command)
            self.processes[number] = Process(self, f"{old.name}'", old.wish)
        else:
            dice.choice(self.processes).step()
        bench.now += dice.random() * 0.1


def played(seed: int, traits: Traits) -> tuple[str | None, Counter[str]]:
    run = Run(seed, traits)
    return run.play(), run.granted
