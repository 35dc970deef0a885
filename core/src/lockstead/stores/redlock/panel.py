"""How all masters are asked at once: in parallel from one thread, without waiting longer than it helps.

A master that left somebody waiting is asked all the same and no longer waited for while a quorum of others is there.
Must not know what is asked, nor what the answers mean.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.stores.bootclock import boot_now
from lockstead.stores.redis.access import Access
from lockstead.stores.redis.errors import code_of, refusal
from lockstead.stores.redlock.lines import STALE_LIMITS, STALE_MIN, Line, Master, Sink
from lockstead.stores.redlock.scripts import SCRIPT, Seen, Words
from lockstead.stores.redlock.votes import Ballot, quorum_of

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

RIGHTS: Final = (
    "~PREFIX:* +eval +evalsha +script|load +info +role +select +exists +type +hlen +hget +hmget +hgetall +pttl "
    "+zcard +zrangebylex +hset +del +rename +pexpire +zadd +zrem"
)
"""What a user with an ACL needs on every master: docs/access.md."""

CHUNK: Final = 64
"""Questions sent to a master before answers are read."""


class Panel:
    """The masters of one store. Safe to share between threads. master_limit: seconds that one master is waited for."""

    def __init__(self, access: Access, master_limit: float, restart_delay: float) -> None:
        self._access = access
        self._restart_delay = restart_delay
        self.master_limit = master_limit
        self.masters = self._made()
        self._inherited: list[list[Master]] = []
        self.is_open = True

    def _made(self) -> list[Master]:
        return [Master(self._access, address, self._restart_delay) for address in self._access.addresses]

    @property
    def quorum(self) -> int:
        """How many masters decide."""
        return quorum_of(len(self.masters))

    def transport(self) -> Finding:
        """Say who can read what is sent to the masters."""
        return self._access.transport(self._access.addresses)

    def session(self, limit: float) -> Session:
        """Begin to ask: within `limit` seconds, with a connection to each master that can be reached."""
        if not self.is_open:
            raise StoreUnavailable("the store is closed")
        return Session(self, limit)

    def lines(self, limit: float) -> dict[int, Line]:
        """Return a connection to each master that can be reached now; waits for new ones no longer than `limit`."""
        lines: dict[int, Line] = {}
        missing: list[int] = []
        for place, master in enumerate(self.masters):
            line = master.take()
            if line is not None and line.awaits:
                line.collect()
                if line.is_stale(max(STALE_MIN, STALE_LIMITS * self.master_limit)):
                    line.fail(TimeoutError("it does not answer"))
            if line is None or not line.is_open:
                missing.append(place)
            else:
                lines[place] = line
        if missing:
            self._connect(missing, lines, limit)
        self._check_twins(lines)
        return lines

    def _connect(self, missing: list[int], lines: dict[int, Line], limit: float) -> None:
        now = time.monotonic()
        if len(lines) >= self.quorum:
            missing = [place for place in missing if self.masters[place].down_until <= now]
        if not missing:
            return
        dialling = _Dialling(missing, self.masters)
        lines.update(dialling.wait(limit))

    def _check_twins(self, lines: dict[int, Line]) -> None:
        seen: dict[str, int] = {}
        for place, line in lines.items():
            run_id = line.identity.run_id
            if run_id and run_id in seen:
                one, two = self.masters[seen[run_id]].where, self.masters[place].where
                for at, other in lines.items():
                    self.masters[at].give_back(other)
                raise StoreRefused(f"{one} and {two} are one server: every master has to be a server of its own")
            seen[run_id] = place

    def after_fork(self) -> None:
        """Forget the inherited connections without closing them, not even when the child ends."""
        self._inherited.append(self.masters)
        self.masters = self._made()

    def close(self) -> None:
        """Close every connection; those in use when they are given back."""
        self.is_open = False
        for master in self.masters:
            with master.lock:
                master.is_open = False
                idle, master.idle = master.idle, []
            for line in idle:
                line.close()


class _Dialling:
    """Connecting to several masters at once, each in a thread: who waits no longer leaves the rest to the pool."""

    def __init__(self, places: list[int], masters: list[Master]) -> None:
        # entered and left by C: what interrupts who waits must not leave it locked
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._under_way = set(places)
        self._ready: dict[int, Line] = {}
        self._is_over = False
        for place in places:
            threading.Thread(
                target=self._dial, args=(place, masters[place]), name="lockstead-dial", daemon=True
            ).start()

    def _dial(self, place: int, master: Master) -> None:
        line = master.dial()
        with self._lock:
            is_late = self._is_over
            if line is not None and not is_late:
                self._ready[place] = line
            self._under_way.discard(place)
            self._changed.notify()
        if line is not None and is_late:
            master.give_back(line)

    def wait(self, limit: float) -> dict[int, Line]:
        """Return what is connected within `limit` seconds."""
        with self._lock:
            self._changed.wait_for(lambda: not self._under_way, limit)
            self._is_over = True
            return self._ready


class Session:
    """One command's talk with the masters: any number of rounds over the same connections, which are given back.

    What is posted follows what was asked before, on every master.
    """

    def __init__(self, panel: Panel, limit: float) -> None:
        self._panel = panel
        self.ends_at = time.monotonic() + limit
        self._lines = panel.lines(min(limit, panel.master_limit))
        self._poll = select.poll()
        self._by_fileno: dict[int, int] = {}
        for place, line in self._lines.items():
            self._poll.register(line.fileno, select.POLLIN)
            self._by_fileno[line.fileno] = place
        # late answers are taken in, and connections that have ended are noticed before anything is sent on them
        self._collect(0.0)

    def __enter__(self) -> Session:
        """Use it."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Return the connections."""
        for place, line in self._lines.items():
            self._panel.masters[place].give_back(line)

    @property
    def left(self) -> float:
        """Seconds that are left for the command."""
        return self.ends_at - time.monotonic()

    def pack(self, words: Words) -> bytes | None:
        """Return a command as it goes over the wire; None where no master can be reached."""
        line = next(iter(self._lines.values()), None)
        return None if line is None else line.pack(*words)

    def ask(self, ballots: Sequence[Ballot]) -> list[object]:
        """Put questions to all masters; give for each what it decided, None where it could not.

        Waits until all are decided, every master has answered, or the time for a master is over.
        """
        decided: list[object] = []
        for start in range(0, len(ballots), CHUNK):
            decided += self._round(ballots[start : start + CHUNK])
        return decided

    def _round(self, ballots: Sequence[Ballot]) -> list[object]:
        now = boot_now()
        for ballot in ballots:
            ballot.packed = ballot.packed or self.pack(ballot.words) or b""
        for place, master in enumerate(self._panel.masters):
            line = self._lines.get(place)
            self._send(place, master, line if line is not None and line.is_open else None, ballots, now)
        waits_until = min(self.ends_at, time.monotonic() + self._panel.master_limit)
        decided: list[object] = [ballot.decide(ballot.tally, False) for ballot in ballots]
        while any(one is None for one in decided):
            awaited = {place for ballot in ballots for place in ballot.tally.silent}
            if not self._worth_waiting(awaited):
                break
            left = waits_until - time.monotonic()
            self._collect(left)
            for at, ballot in enumerate(ballots):
                if decided[at] is None:
                    decided[at] = ballot.decide(ballot.tally, False)
            if left <= 0:
                break
        if time.monotonic() >= waits_until:
            for place in {place for ballot in ballots for place in ballot.tally.silent}:
                self._panel.masters[place].is_silent = True
        return [
            ballot.decide(ballot.tally, True) if one is None else one
            for ballot, one in zip(ballots, decided, strict=True)
        ]

    def _worth_waiting(self, awaited: set[int]) -> bool:
        """Return whether anybody is waited for who can be expected to answer."""
        masters = self._panel.masters
        reachable = [place for place, line in self._lines.items() if line.is_open]
        lively = [place for place in reachable if not masters[place].is_silent]
        hoped_for = lively if len(lively) >= self._panel.quorum else reachable
        return any(place in awaited for place in hoped_for)

    def _send(self, place: int, master: Master, line: Line | None, ballots: Sequence[Ballot], now: float) -> None:
        if line is None or line.is_full:
            why = master.trouble or StoreUnavailable("it does not answer" if line else "it cannot be reached")
            for ballot in ballots:
                ballot.tally.failed[place] = why
            return
        may_vote_at = master.may_vote_at(line)
        asked: list[Ballot] = []
        for ballot in ballots:
            if now < may_vote_at:
                ballot.tally.young.add(place)
                if ballot.needs_vote:
                    ballot.tally.failed[place] = StoreUnavailable(
                        "it started lately and may have forgotten locks: it may not vote for another "
                        f"{may_vote_at - now:.0f} s"
                    )
                    continue
            ballot.tally.silent.add(place)
            asked.append(ballot)
        if asked:
            if any(ballot.lists for ballot in asked):
                line.takes_listings()
            line.post(
                b"".join(ballot.packed for ballot in asked), [self._sink(ballot, place, line) for ballot in asked]
            )

    def _sink(self, ballot: Ballot, place: int, line: Line) -> Sink:
        def take(answer: object) -> None:
            master = self._panel.masters[place]
            if not isinstance(answer, Exception):
                master.is_silent = False
                self._note(ballot, place, answer)
                return
            if code_of(answer) == "NOSCRIPT" and ballot.words[0] == "EVALSHA":
                # refused before anything was done, so this is not a repetition
                line.post(line.pack("EVAL", SCRIPT, *ballot.words[2:]), [take])
            elif _is_answer(answer):
                master.is_silent = False
                ballot.tally.silent.discard(place)
                ballot.tally.failed[place] = refusal(answer, master.where, RIGHTS)
            # else the connection ended: it may have been done, and stays silent

        return take

    def _note(self, ballot: Ballot, place: int, answer: object) -> None:
        ballot.tally.silent.discard(place)
        try:
            one = ballot.read(answer)
        except ValueError:
            ballot.tally.failed[place] = OutcomeUnknown("it answers what no script of ours says; look at what it is")
            return
        if ballot.clears:
            self._panel.masters[place].debts.pop(ballot.clears, None)
        if isinstance(one, dict):
            ballot.listings[place] = one
            return
        if one.incarnation is not None and self._panel.masters[place].owes(one.incarnation):
            one = Seen(False)  # on its way out: it is nobody's, and must not be taken up again
        ballot.tally.seen[place] = one

    def post(self, place: int, words: Words, sink: Sink) -> None:
        """Send something to one master, behind whatever it was asked before; nobody waits for the answer."""
        line = self._lines.get(place)
        if line is not None and line.is_open:
            line.post(line.pack(*words), [sink])

    def settle(self, is_settled: Callable[[], bool]) -> None:
        """Wait until something has come about, at most the time of one master."""
        waits_until = time.monotonic() + min(self._panel.master_limit, max(0.0, self.left))
        while not is_settled():
            if not self._worth_waiting({place for place, line in self._lines.items() if line.awaits and line.is_open}):
                return
            left = waits_until - time.monotonic()
            self._collect(left)
            if left <= 0:
                return

    def _collect(self, seconds: float) -> None:
        """Take in what comes within so many seconds; with none left, what is there already.

        A master whose answer has come in time is not silent because this process was too busy to look.
        """
        for fileno, _event in self._poll.poll(max(0, seconds) * 1000):
            line = self._lines[self._by_fileno[fileno]]
            line.collect()
            if not line.is_open:
                with suppress(KeyError, ValueError):
                    self._poll.unregister(fileno)


def _is_answer(error: Exception) -> bool:
    from redis import exceptions

    return isinstance(error, exceptions.ResponseError)
