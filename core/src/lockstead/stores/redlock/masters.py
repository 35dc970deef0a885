"""Asking all masters in parallel from one thread.

A master that did not answer in time is still asked, but not waited for while a quorum of others is reachable. Must not
know what is asked, nor what the answers mean.
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
from lockstead.stores.redis.resp import ServerError, encoded
from lockstead.stores.redlock.connection import STALE_LIMITS, STALE_MIN, Master, MasterConnection, OnAnswer
from lockstead.stores.redlock.scripts import RIGHTS, SCRIPT, Part, Seen
from lockstead.stores.redlock.votes import Question, quorum_of

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

CHUNK: Final = 64
"""Questions sent to a master before answers are read."""


class MasterGroup:
    """The masters of one store. Safe to share between threads. master_limit: seconds to wait for one master."""

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
        """The number of masters in a quorum."""
        return quorum_of(len(self.masters))

    def transport(self) -> Finding:
        """Return a finding on the encryption of the connections."""
        return self._access.transport(self._access.addresses)

    def exchange(self, limit: float) -> Exchange:
        """Start an exchange of at most `limit` seconds, with a connection to each reachable master."""
        if not self.is_open:
            raise StoreUnavailable("the store is closed")
        return Exchange(self, limit)

    def connections(self, limit: float) -> dict[int, MasterConnection]:
        """Return a connection to each reachable master, by position; waits at most `limit` seconds for new ones."""
        connections: dict[int, MasterConnection] = {}
        missing: list[int] = []
        for place, master in enumerate(self.masters):
            connection = master.take()
            if connection is not None and connection.awaits:
                connection.collect()
                if connection.is_stale(max(STALE_MIN, STALE_LIMITS * self.master_limit)):
                    connection.fail(TimeoutError("it does not answer"))
            if connection is None or not connection.is_open:
                missing.append(place)
            else:
                connections[place] = connection
        if missing:
            self._connect(missing, connections, limit)
        self._check_twins(connections)
        return connections

    def _connect(self, missing: list[int], connections: dict[int, MasterConnection], limit: float) -> None:
        now = time.monotonic()
        if len(connections) >= self.quorum:
            missing = [place for place in missing if self.masters[place].down_until <= now]
        if not missing:
            return
        dialling = _Dialling(missing, self.masters)
        connections.update(dialling.wait(limit))

    def _check_twins(self, connections: dict[int, MasterConnection]) -> None:
        seen: dict[str, int] = {}
        for place, connection in connections.items():
            run_id = connection.identity.run_id
            if run_id and run_id in seen:
                one, two = self.masters[seen[run_id]].where, self.masters[place].where
                for at, other in connections.items():
                    self.masters[at].give_back(other)
                raise StoreRefused(f"{one} and {two} are the same server: every master must be a separate server")
            seen[run_id] = place

    def after_fork(self) -> None:
        """Drop the inherited connections without closing them, not even at exit."""
        self._inherited.append(self.masters)
        self.masters = self._made()

    def close(self) -> None:
        """Close every connection; those in use when they are returned."""
        self.is_open = False
        for master in self.masters:
            with master.lock:
                master.is_open = False
                idle, master.idle = master.idle, []
            for connection in idle:
                connection.close()


class _Dialling:
    """Connecting to several masters at once, each in a thread; connections that come too late go to the pool."""

    def __init__(self, places: list[int], masters: list[Master]) -> None:
        # acquired and released in C: an interrupt of the waiter must not leave it locked
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._under_way = set(places)
        self._ready: dict[int, MasterConnection] = {}
        self._is_over = False
        for place in places:
            threading.Thread(
                target=self._dial, args=(place, masters[place]), name="lockstead-dial", daemon=True
            ).start()

    def _dial(self, place: int, master: Master) -> None:
        connection = master.dial()
        with self._lock:
            is_late = self._is_over
            if connection is not None and not is_late:
                self._ready[place] = connection
            self._under_way.discard(place)
            self._changed.notify()
        if connection is not None and is_late:
            master.give_back(connection)

    def wait(self, limit: float) -> dict[int, MasterConnection]:
        """Return the connections established within `limit` seconds, by position."""
        with self._lock:
            self._changed.wait_for(lambda: not self._under_way, limit)
            self._is_over = True
            return self._ready


class Exchange:
    """One command's requests to the masters: any number of rounds over the same connections, which are then returned.

    On every master, a later request is carried out after an earlier one.
    """

    def __init__(self, group: MasterGroup, limit: float) -> None:
        self._group = group
        self.ends_at = time.monotonic() + limit
        self._connections = group.connections(min(limit, group.master_limit))
        self._poll = select.poll()
        self._by_fileno: dict[int, int] = {}
        for place, connection in self._connections.items():
            self._poll.register(connection.fileno, select.POLLIN)
            self._by_fileno[connection.fileno] = place
        # before sending: read late answers, and find connections that have ended
        self._collect(0.0)

    def __enter__(self) -> Exchange:
        """Return the exchange."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Return the connections."""
        for place, connection in self._connections.items():
            self._group.masters[place].give_back(connection)

    @property
    def left(self) -> float:
        """Seconds left for the command."""
        return self.ends_at - time.monotonic()

    def ask(self, questions: Sequence[Question]) -> None:
        """Ask all masters; the answer of a question that could not be decided stays None.

        Waits until all are decided, every master has answered, or the limit for a master is over.
        """
        for start in range(0, len(questions), CHUNK):
            self._round(questions[start : start + CHUNK])

    def _round(self, questions: Sequence[Question]) -> None:
        now = boot_now()
        for place, master in enumerate(self._group.masters):
            connection = self._connections.get(place)
            is_open = connection is not None and connection.is_open
            self._send(place, master, connection if is_open else None, questions, now)

        def silent() -> set[int]:
            return {place for question in questions for place in question.votes.silent}

        waits_until = min(self.ends_at, time.monotonic() + self._group.master_limit)
        self._wait(lambda: all(question.is_decided() for question in questions), silent, waits_until)
        if time.monotonic() >= waits_until:
            for place in silent():
                self._group.masters[place].is_silent = True
        for question in questions:
            question.is_decided(is_last=True)

    def _wait(self, is_done: Callable[[], bool], awaited: Callable[[], set[int]], waits_until: float) -> None:
        """Read answers until `is_done` returns true, or no master that is awaited can be expected to answer in time."""
        while not is_done() and self._worth_waiting(awaited()):
            left = waits_until - time.monotonic()
            self._collect(left)
            if left <= 0:
                return

    def _worth_waiting(self, awaited: set[int]) -> bool:
        """Return whether a master is outstanding that can be expected to answer."""
        masters = self._group.masters
        reachable = [place for place, connection in self._connections.items() if connection.is_open]
        lively = [place for place in reachable if not masters[place].is_silent]
        hoped_for = lively if len(lively) >= self._group.quorum else reachable
        return any(place in awaited for place in hoped_for)

    def _send(
        self, place: int, master: Master, connection: MasterConnection | None, questions: Sequence[Question], now: float
    ) -> None:
        if connection is None or connection.is_full:
            why = master.trouble or StoreUnavailable("it does not answer" if connection else "it cannot be reached")
            for question in questions:
                question.votes.failed[place] = why
            return
        may_vote_at = master.may_vote_at(connection)
        asked: list[Question] = []
        for question in questions:
            if now < may_vote_at:
                question.votes.young.add(place)
                if question.needs_vote:
                    question.votes.failed[place] = StoreUnavailable(
                        "it restarted recently and may have lost locks: it may not vote for another "
                        f"{may_vote_at - now:.0f} s"
                    )
                    continue
            question.votes.silent.add(place)
            asked.append(question)
        if asked:
            if any(question.lists for question in asked):
                connection.takes_listings()
            connection.post(
                b"".join(question.packed for question in asked),
                [self._callback(question, place, connection) for question in asked],
            )

    def _callback(self, question: Question, place: int, connection: MasterConnection) -> OnAnswer:
        def on_answer(answer: object) -> None:
            master = self._group.masters[place]
            if not isinstance(answer, Exception):
                master.is_silent = False
                self._note(question, place, answer)
                return
            if code_of(answer) == "NOSCRIPT" and question.command[0] == b"EVALSHA":
                # refused before anything was done, so this is not a repetition
                connection.post(encoded([(b"EVAL", SCRIPT, *question.command[2:])]), [on_answer])
            elif isinstance(answer, ServerError):
                master.is_silent = False
                question.votes.silent.discard(place)
                question.votes.failed[place] = refusal(answer, master.where, RIGHTS)
            # else the connection ended and the outcome is unknown: the master stays silent

        return on_answer

    def _note(self, question: Question, place: int, answer: object) -> None:
        question.votes.silent.discard(place)
        try:
            one = question.read(answer)
        except ValueError:
            question.votes.failed[place] = OutcomeUnknown("unexpected answer to a script; check that it is Redis")
            return
        if question.clears:
            self._group.masters[place].pending_removals.pop(question.clears, None)
        if isinstance(one, Part):
            question.listings[place] = one
            return
        if one.incarnation is not None and self._group.masters[place].has_pending_removal(one.incarnation):
            one = Seen(False)  # being removed: it counts as absent
        question.votes.seen[place] = one

    def post(self, place: int, packed: bytes, callback: OnAnswer) -> None:
        """Send a command to one master, after all earlier requests; nobody waits for the answer."""
        connection = self._connections.get(place)
        if connection is not None and connection.is_open:
            connection.post(packed, [callback])

    def settle(self, is_settled: Callable[[], bool]) -> None:
        """Wait until `is_settled` returns true, at most for the limit of one master."""
        waits_until = time.monotonic() + min(self._group.master_limit, max(0.0, self.left))

        def awaited() -> set[int]:
            return {place for place, one in self._connections.items() if one.awaits and one.is_open}

        self._wait(is_settled, awaited, waits_until)

    def _collect(self, seconds: float) -> None:
        """Read the answers that arrive within `seconds`; at least those that have arrived already.

        Otherwise a busy process would take a master for silent whose answer arrived in time.
        """
        for fileno, _event in self._poll.poll(max(0, seconds) * 1000):
            connection = self._connections[self._by_fileno[fileno]]
            connection.collect()
            if not connection.is_open:
                with suppress(KeyError, ValueError):
                    self._poll.unregister(fileno)
