"""Elections as a program uses them, blocking and awaiting: terms, callbacks, observers."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import lockstead
from lockstead import AsyncElection, Election, LeaseLost, LossReason, NotAcquired, Term
from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.events import CallbackFailed
from lockstead.protocol.commands import Create, Extend, Read, Remove, Snapshot, TokenSource, Traits
from lockstead.protocol.election import Sighting
from lockstead.runtime.engine import Engine
from lockstead.runtime.leader_view import LeaderView
from lockstead.stores.memory import MemoryStore
from lockstead.term import _end_if_over
from lockstead.values import Space
from tests.inventory import STORES
from tests.runtime.faulty import Faulty, SetClock, until

QUICK = {"backoff_min": 0.01, "backoff_max": 0.05}
_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory:#election-{next(_numbers)}"


@pytest.fixture
def ends() -> Iterator[list[Election]]:
    """Return a list of elections that are closed at the end."""
    made: list[Election] = []
    yield made
    for one in made:
        one.close()


def at(store: Any, events: list[Any] | None = None, **said: Any) -> Election:
    """Return an election on a store of its own."""
    engine = Engine(store, (lambda _event: None) if events is None else events.append)
    return Election._at(engine, "k", {**QUICK, **said}, value=None)


def background(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- making one ------------------------------------------------------------------------------------------------------


def test_naming_an_election_of_any_scheme_imports_no_client_library() -> None:
    urls = [f"{store.url.format(who='', port=1)}#k" for store in STORES.values()]
    script = f"""
import sys, lockstead
for url in {urls}:
    lockstead.Election(url, owner="a", value="http://a", fenced=False)
names = ("redis", "psycopg", "kazoo", "cassandra", "google", "asyncio", "ssl", "socket", "sqlite3", "pendulum")
print([name for name in (*names, "lockstead.runtime.engine", "lockstead.protocol.commands") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ({"value": ""}, ValueError, "value must be printable text, not ''"),
        ({"value": "a\x1b[31m"}, ValueError, "value must be printable text"),
        ({"value": "a\nb"}, ValueError, "value must be printable text"),
        ({"value": "\u202eevil"}, ValueError, "value must be printable text"),
        ({"value": "v" * 2048}, ValueError, "value has 2048 bytes; it may have 1024"),
        ({"value": "é" * 513}, ValueError, "value has 1026 bytes"),
        ({"value": 7}, TypeError, "value must be text, not int"),
        ({"ttl": 0.1}, ValueError, "ttl is 0.1 s"),
        ({"mode": "shared"}, ValueError, "an election has one leader"),
        ({"colour": "red"}, TypeError, "colour"),
    ],
)
def test_each_wrong_argument_has_its_own_message(said: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        Election("memory:#k", **said)
    assert "\n" not in str(caught.value)


def test_a_store_without_tokens_is_refused_unless_unfenced() -> None:
    with pytest.raises(ValueError, match=r"redlock: has no fencing tokens.*fenced=False"):
        Election("redlock://h1,h2,h3#k")
    assert Election("redlock://h1,h2,h3#k", fenced=False).key == "k"


class Tokenless(MemoryStore):
    """A store without fencing tokens, as its traits say."""

    @property
    def traits(self) -> Traits:
        return replace(super().traits, tokens=TokenSource.NONE)


def test_a_store_that_turns_out_to_have_no_tokens_is_refused_at_first_use() -> None:
    election = Election._at(Engine(Tokenless()), "k", {}, value="x")
    with pytest.raises(ValueError, match="fenced=False"):
        election.leader()
    unfenced = Election._at(Engine(Tokenless()), "k", {}, value="x", fenced=False)
    with unfenced.lead() as term:
        assert term.token is None
        found = unfenced.leader()
        assert found is not None
        assert (found.value, found.token) == ("x", None)


def test_the_ttl_is_15_seconds_unless_it_is_set() -> None:
    assert Election("memory:#k").settings.ttl == 15
    assert Election("memory:?ttl=20#k").settings.ttl == 20
    assert Election("memory:?ttl=20#k", ttl=30).settings.ttl == 30


def test_an_election_can_be_pickled(url: str) -> None:
    election = Election(url, owner="a", value="x")
    with election.lead():
        copy = pickle.loads(pickle.dumps(election))
        found = copy.leader()
        assert found is not None
        assert (found.owner, found.value) == ("a", "x")


# --- leading ---------------------------------------------------------------------------------------------------------


def test_a_term_has_its_token_when_it_begins_and_shows_its_value(url: str) -> None:
    election = Election(url, owner="a", value="http://a")
    with election.lead(timeout=5) as term:
        assert isinstance(term, Term)
        assert term.token == term.sequencer().token
        found = election.leader()
        assert found is not None
        assert (found.owner, found.value, found.token, found.is_certain) == ("a", "http://a", term.token, False)
        assert found.since_epoch == pytest.approx(time.time(), abs=60)
        term.advertise("http://b")
        found = election.leader()
        assert found is not None
        assert found.value == "http://b"
        info = lockstead.Lock(url).inspect()
        assert info is not None
        assert info.value == "http://b"
        with pytest.raises(ValueError, match="2048 bytes"):
            term.advertise("v" * 2048)
        with pytest.raises(NotAcquired, match="'a'"):
            Election(url, owner="b").lead(timeout=0).__enter__()
    assert election.leader() is None


def test_the_value_is_the_owner_by_default(url: str) -> None:
    election = Election(url, owner="pod-1")
    with election.lead():
        found = election.leader()
        assert found is not None
        assert found.value == "pod-1"


def test_e02_resigning_frees_the_key_when_the_block_is_left(url: str) -> None:
    election, other = Election(url, owner="a", **QUICK), Election(url, owner="b", **QUICK)
    with election.lead() as term:
        term.resign()
        assert not term.is_held
        assert term.ended_by_choice
        with pytest.raises(LeaseLost, match="ended its term") as caught:
            term.check()
        assert caught.value.reason is LossReason.ENDED
        with pytest.raises(LeaseLost):
            term.advertise("x")
        assert lockstead.Lock(url).inspect() is not None, "the body has not ended"
        with pytest.raises(NotAcquired):
            other.lead(timeout=0).__enter__()
    with other.lead(timeout=0) as term:
        assert term.previous_lease.ending is lockstead.LeaseOutcome.CLEAN


def test_e05_resigning_to_an_heir(url: str) -> None:
    election = Election(url, owner="a", backoff_min=0.01, backoff_max=30)
    with election.lead() as term:
        term.resign(to="c")
    assert election.leader() is None
    with pytest.raises(NotAcquired):
        Election(url, owner="b", backoff_max=30).lead(timeout=0).__enter__()
    with Election(url, owner="c").lead(timeout=0) as term:
        assert term.previous_lease.ending is lockstead.LeaseOutcome.CLEAN
    with Election(url, owner="c").lead() as term, pytest.raises(ValueError, match="to must be printable"):
        term.resign(to="\x1b")


def test_e06_max_term_ends_the_block(url: str) -> None:
    election = Election(url, owner="a", **QUICK)
    lost: list[str] = []
    with election.lead(max_term=0.05) as term:
        term.on_lost(lambda: lost.append("lost"))
        until(lambda: not term.is_held)
        until(lambda: lost == ["lost"])
    assert election.leader() is None
    with pytest.raises(LeaseLost, match="max_term has passed"), election.lead(max_term=0.05, interrupt=True):
        threading.Event().wait(30)


def test_e06_this_candidate_pauses_after_a_term_that_it_ended(url: str) -> None:
    election = Election(url, owner="a", backoff_min=0.1, backoff_max=0.4)
    with election.lead() as term:
        term.resign()
    began = time.monotonic()
    with election.lead():
        assert time.monotonic() - began >= 0.4
    began = time.monotonic()
    with election.lead():
        assert time.monotonic() - began < 0.4


def test_e06_a_client_that_is_closed_early_does_not_say_that_max_term_has_passed(url: str) -> None:
    with Election(url, owner="a").lead() as term:
        _end_if_over(weakref.ref(term), term._now() + 60)
        assert term.is_held
        _end_if_over(weakref.ref(term), term._now())
        assert term.ended_by_choice


def test_e02_a_resignation_that_fails_is_swept_as_a_clean_end() -> None:
    store = Faulty()
    down = [OutcomeUnknown("lost")] * 4

    def before(command: Any) -> None:
        if isinstance(command, Remove) and down:
            raise down.pop()

    store.before = before
    election = at(store, request_timeout=0.1)
    with election.lead(timeout=5) as term:
        term.resign()
    until(lambda: election.leader() is None)
    with election.lead(timeout=20) as after:
        assert after.previous_lease.ending is lockstead.LeaseOutcome.CLEAN


def test_a_term_that_is_lost_raises_at_the_end_of_its_block(url: str) -> None:
    election = Election(url, owner="a", ttl=1.5)
    with pytest.raises(LeaseLost, match="REVOKED"), election.lead() as term:
        lockstead.Lock(url).break_lease(reason="x", by="y")
        until(lambda: not term.is_held)


def test_e07_an_earlier_process_of_the_same_owner_is_superseded() -> None:
    store = MemoryStore()
    first = Election._at(Engine(store), "k", {"owner": "pod-0"}, value="old")
    second = Election._at(Engine(store), "k", {"owner": "pod-0"}, value="new")
    with pytest.raises(LeaseLost), first.lead() as old, second.lead(timeout=5, reclaim=True) as new:
        assert old.token is not None
        assert new.token is not None
        assert new.token > old.token
        old.renew()


class Drawing(Faulty):
    """Has tokens that are drawn and published, which fails a number of times."""

    def __init__(self, failures: int, error: Exception) -> None:
        super().__init__()
        self.left, self.error = failures, error
        self.drawn = itertools.count(1)

    @property
    def traits(self) -> Traits:
        return replace(super().traits, tokens=TokenSource.DRAWN)

    def perform(self, command: Any, limit: float) -> Any:
        if isinstance(command, Extend) and "token" in command.fields and self.left:
            self.left -= 1
            raise self.error
        answer = super().perform(command, limit)
        is_drawn = isinstance(answer, Snapshot) and command.name.space is Space.COMPANION
        return replace(answer, token=next(self.drawn)) if is_drawn else answer


def test_e01_no_term_begins_without_its_token() -> None:
    refused = at(Drawing(1, StoreRefused("no")))
    with pytest.raises(StoreRefused):
        refused.lead(timeout=0).__enter__()
    assert lockstead.Client(refused._opened.store).lock("k").inspect() is None  # type: ignore[union-attr]
    patient = at(Drawing(9, StoreUnavailable("no")))
    with patient.lead(timeout=60) as term:
        assert term.token is not None


def test_e01_a_term_begins_with_time_left_though_its_grant_was_slow() -> None:
    store = Faulty()
    clock = SetClock()
    engine = Engine(store, lambda _event: None, clock)
    # the answer to the grant comes shortly before the deadline, and no keeper has looked yet
    engine.keeper._round = lambda: 60.0  # type: ignore[method-assign]
    store.after = lambda command: setattr(clock, "at", clock.at + 13.5) if isinstance(command, Create) else None
    with Election._at(engine, "k", {}, value="x").lead(timeout=0) as term:
        assert term.time_left > 14


# --- run -------------------------------------------------------------------------------------------------------------


def test_m18_callbacks_are_in_order_and_tokens_grow(url: str, ends: list[Election]) -> None:
    election = Election(url, owner="a", **QUICK)
    ends.append(election)
    said: list[Any] = []

    def work(term: Term) -> None:
        said.append(("elected", term.token))
        until(lambda: not term.is_held)
        said.append("work ends")

    def stop(why: str) -> None:
        said.append(("deposing", why))
        time.sleep(0.05)
        said.append("deposed")

    thread = background(lambda: election.run(work, on_deposed=stop, max_term=0.05))
    until(lambda: said.count("deposed") >= 3)
    election.close()
    thread.join(10)
    assert not thread.is_alive()
    terms = [one[1] for one in said if one[0] == "elected"]
    assert terms == sorted(set(terms))
    rounds = [[one if isinstance(one, str) else one[0] for one in said[n : n + 4]] for n in range(0, len(said), 4)]
    assert {tuple(sorted(one)) for one in rounds} == {("deposed", "deposing", "elected", "work ends")}
    assert all(one[0] == "elected" for one in rounds)


def test_e02_on_deposed_is_called_when_the_term_is_lost_while_the_work_runs(url: str, ends: list[Election]) -> None:
    election = Election(url, owner="a", ttl=1.5, **QUICK)
    ends.append(election)
    deposed, returns = threading.Event(), threading.Event()
    whys: list[str] = []

    def stop(why: str) -> None:
        whys.append(why)
        deposed.set()

    background(lambda: election.run(lambda _term: returns.wait(30), on_deposed=stop))
    until(lambda: election.leader() is not None)
    lockstead.Lock(url).break_lease(reason="drill", by="ops")
    assert deposed.wait(20), "the work has not returned, and does not notice"
    assert "REVOKED" in whys[0]
    election.close()
    returns.set()
    time.sleep(0.05)
    assert len(whys) == 1


def test_e02_on_deposed_is_called_after_work_that_returns(url: str, ends: list[Election]) -> None:
    election = Election(url, owner="a", **QUICK)
    ends.append(election)
    whys: list[str] = []
    thread = background(lambda: election.run(lambda _term: None, on_deposed=whys.append))
    until(lambda: len(whys) >= 3)
    election.close()
    thread.join(10)
    assert set(whys) == {"its work has ended"}


def test_an_error_of_the_work_ends_run_and_resigns(url: str) -> None:
    election = Election(url, owner="a")
    whys: list[str] = []

    def work(_term: Term) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        election.run(work, on_deposed=whys.append, on_leader=lambda _leader: None)
    assert whys == ["its work has ended"]
    assert election.leader() is None


def test_an_error_of_the_other_callbacks_is_an_event() -> None:
    events: list[Any] = []
    election = at(MemoryStore(), events)

    def fail(*_said: object) -> None:
        raise KeyError("x")

    thread = background(lambda: election.run(lambda _term: time.sleep(0.05), on_deposed=fail, on_leader=fail))
    until(lambda: len([one for one in events if isinstance(one, CallbackFailed)]) >= 3)
    election.close()
    thread.join(10)
    assert not thread.is_alive()


def test_close_ends_a_campaign_and_observers(url: str) -> None:
    other = Election(url, owner="b", **QUICK)
    with Election(url, owner="a").lead():
        campaign = background(lambda: other.run(lambda _term: None))
        observer = background(lambda: [None for _ in other.observe()])
        until(lambda: other._opened is not None)
        other.close()
        other.close()
        campaign.join(20)
        observer.join(20)
    assert not campaign.is_alive()
    assert not observer.is_alive()
    with pytest.raises(NotAcquired, match="was closed"):
        other.lead().__enter__()


def test_run_waits_out_a_store_that_does_not_answer() -> None:
    store = Faulty()
    down = threading.Event()
    down.set()

    def before(_command: Any) -> None:
        if down.is_set():
            raise StoreUnavailable("down")

    store.before = before
    election = at(store)
    elected = threading.Event()
    thread = background(lambda: election.run(lambda _term: elected.set()))
    time.sleep(0.1)
    down.clear()
    assert elected.wait(20)
    election.close()
    thread.join(10)
    assert not thread.is_alive()


# --- observing -------------------------------------------------------------------------------------------------------


def test_an_observer_sees_leaders_values_and_none(url: str, ends: list[Election]) -> None:
    election, other = Election(url, owner="a", value="1", **QUICK), Election(url)
    ends.append(other)
    seen: list[str | None] = []
    background(lambda: [seen.append(one and one.value) for one in other.observe()])  # type: ignore[func-returns-value]
    until(lambda: seen == [None])
    with election.lead() as term:
        until(lambda: seen[-1] == "1")
        term.advertise("2")
        until(lambda: seen[-1] == "2")
    until(lambda: seen[-1] is None)


def test_e04_the_observers_of_a_process_share_one_reader() -> None:
    store = Faulty()
    reads: list[float] = []
    store.before = lambda command: reads.append(time.monotonic()) if isinstance(command, Read) else None
    election = at(store, ttl=4)
    seen: list[list[Any]] = [[] for _ in range(20)]
    threads = [
        background(lambda one=one: [one.append(found and found.token) for found in election.observe()])  # type: ignore[misc]
        for one in seen
    ]
    until(lambda: all(seen))
    before = len(reads)
    with election.lead() as term:
        until(lambda: all(one[-1] == term.token for one in seen))
        # 20 observers, each on its own, would need 20 reads; the campaign itself reads, too
        assert len(reads) - before < 15
    election.close()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_m20_a_late_answer_does_not_show_an_earlier_term() -> None:
    view = LeaderView()
    new, old = Sighting("b", "y", 8, None), Sighting("a", "x", 7, None)
    assert view.note(new) is new
    assert view.note(old) is new
    assert view.note(None) is None
    assert view.note(old) is None
    assert view.seen is None


def test_an_election_that_is_closed_in_a_term_ends_without_a_pause(url: str) -> None:
    election = Election(f"{url}#led", owner="a", backoff_max=300.0)
    began = time.monotonic()
    election.run(lambda _term: election.close())
    assert time.monotonic() - began < 100


def test_a_closed_client_ends_an_observer() -> None:
    election = at(MemoryStore())
    seen = election.observe()
    assert next(seen) is None
    assert election._opened is not None
    election._opened.close()
    with pytest.raises(StoreRefused, match="closed"):
        next(seen)


def test_elections_on_stores_that_processes_share(shared_url: str) -> None:
    """On Cloud Storage the token is drawn, and the value written with the first request."""
    said: dict[str, Any] = {"ttl": 20, "backoff_min": 0.05, "backoff_max": 2}
    first, heir = (Election(f"{shared_url}#k", owner=owner, value=f"http://{owner}", **said) for owner in "ab")
    with first.lead(timeout=30) as term:
        assert term.token is not None
        seen = heir.observe()
        found = next(seen)
        assert found is not None
        assert (found.value, found.token) == ("http://a", term.token)
        term.advertise("http://a:2")
        found = heir.leader()
        assert found is not None
        assert found.value == "http://a:2"
        term.resign(to="b")
    assert heir.leader() is None
    with heir.lead(timeout=30) as after:
        assert after.token is not None
        assert after.token > term.token
        assert after.previous_lease.ending is lockstead.LeaseOutcome.CLEAN


# --- awaiting --------------------------------------------------------------------------------------------------------


def test_an_awaiting_election_does_the_same(url: str) -> None:
    said: list[Any] = []

    async def work(term: lockstead.AsyncTerm) -> None:
        said.append(term.token)
        over = asyncio.Event()
        term.on_lost(partial(asyncio.get_running_loop().call_soon_threadsafe, over.set))
        await over.wait()

    async def deposed(why: str) -> None:
        said.append(why)

    async def shown(found: lockstead.Leader | None) -> None:
        said.append(found and found.owner)

    async def main() -> None:
        election = AsyncElection(url, owner="a", **QUICK)
        task = asyncio.create_task(election.run(work, on_deposed=deposed, on_leader=shown, max_term=0.1))
        await asyncio.to_thread(until, lambda: said.count("max_term has passed") >= 2)
        election.close()
        await asyncio.wait_for(task, 20)
        again = AsyncElection(url, owner="b")
        async with again.lead(timeout=5) as term:
            await term.advertise("http://b")
            found = await again.leader()
            assert found is not None
            assert (found.owner, found.value, found.token) == ("b", "http://b", term.token)
            async for one in again.observe():
                assert one == found
                break
            term.resign(to="c")
        assert await again.leader() is None

    asyncio.run(main())
    assert "a" in said


def test_a_cancelled_run_deposes_and_resigns(url: str) -> None:
    whys: list[str] = []

    async def work(_term: lockstead.AsyncTerm) -> None:
        await asyncio.sleep(60)

    async def deposed(why: str) -> None:
        whys.append(why)

    async def main() -> None:
        election = AsyncElection(url, owner="a")
        task = asyncio.create_task(election.run(work, on_deposed=deposed))
        async for one in election.observe():
            if one is not None:
                break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await election.leader() is None

    asyncio.run(main())
    assert whys == ["its work has ended"]
