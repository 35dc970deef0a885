"""What `@locked` makes of each kind of function; without Prefect."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead import Lease, LeaseLost, Lock, current_lease, nesting
from prefect_lockstead import AlreadyHeld, locked

PAUSE = 60.0
"""Seconds that a body sleeps which a loss is to end."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#{{dist}}?ttl=2s"


def lock(url: str, dist: str = "apt") -> Lock:
    return Lock(url.format(dist=dist))


def held_elsewhere(url: str) -> Lease:
    """Take the lock in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lock(url).acquire).result()


def broken_soon(url: str, inside: threading.Event, at: list[float] | None = None) -> threading.Thread:
    """Take the lock away as soon as the body runs; at: gets the instant."""

    def break_it() -> None:
        assert inside.wait(60)
        assert lock(url).break_lease(reason="a test", now=True) is not None
        if at is not None:
            at.append(time.monotonic())

    thread = threading.Thread(target=break_it)
    thread.start()
    return thread


def test_a_function_holds_the_lock_while_it_runs_and_no_longer(url: str):
    @locked(url)
    def publish(dist: str = "apt") -> tuple[str, bool]:
        """Publish."""
        return current_lease().key, lock(url, dist).inspect() is not None

    assert publish() == ("apt", True)
    assert publish("a/b") == publish(dist="a/b") == ("a/b", True)
    assert lock(url).inspect() is None
    assert (publish.__name__, publish.__doc__) == ("publish", "Publish.")
    with pytest.raises(LookupError):
        current_lease()


def test_the_acquired_where_is_the_line_of_the_call(url: str):
    @locked(url)
    def publish(dist: str = "apt") -> str | None:
        held = lock(url, dist).inspect()
        return held and held.where

    assert str(publish()).rpartition(":")[0] == __file__


def test_two_readers_overlap_and_a_writer_waits_for_both(url: str):
    inside, over = threading.Barrier(3), threading.Event()
    order: list[str] = []

    @locked(url, mode="{how}")
    def publish(how: str, dist: str = "apt") -> str:
        if how == "shared":
            inside.wait(60)
            assert over.wait(60)
        order.append(how)
        return current_lease().mode

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(publish, "shared") for _ in range(2)]
        inside.wait(60)
        with pytest.raises(lockstead.NotAcquired):
            lock(url).acquire(0)
        writer = pool.submit(publish, "exclusive")
        while (held := lock(url).inspect()) is None or held.wanted_by is None:
            time.sleep(0.01)
        over.set()
        assert [one.result(60) for one in (*readers, writer)] == ["shared", "shared", "exclusive"]
    assert order == ["shared", "shared", "exclusive"]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_as_many_run_at_once_as_there_are_permits_each_with_a_slot_of_its_own(url: str, kind: str):
    inside, over = threading.Barrier(3), threading.Event()

    def use() -> tuple[int | None, int | None]:
        if not over.is_set():
            inside.wait(60)
            assert over.wait(60)
        lease = current_lease()
        assert lease.sequencer().mode == f"permit/{lease.slot}" if isinstance(lease, Lease) else True
        return lease.slot, lease.token

    @locked(url, permits=2, timeout=60)
    def publish(dist: str = "apt") -> tuple[int | None, int | None]:
        return use()

    @locked(url, permits=2, timeout=60)
    async def apublish(dist: str = "apt") -> tuple[int | None, int | None]:
        return await asyncio.to_thread(use)

    def call() -> tuple[int | None, int | None]:
        return publish() if kind == "function" else asyncio.run(apublish())

    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(call) for _ in range(2)]
        inside.wait(60)
        with pytest.raises(lockstead.NotAcquired, match="all 2 permits are held by"):
            lockstead.Semaphore(url.format(dist="apt"), permits=2).acquire(0)
        third = pool.submit(call)
        over.set()
        slots = [one.result(60)[0] for one in (*first, third)]
    assert sorted(slots[:2]) == [0, 1]
    assert slots[2] in (0, 1)
    state = lockstead.Semaphore(url.format(dist="apt")).inspect()
    assert state is not None
    assert (state.limit, state.held) == (2, ())


def test_another_limit_than_the_stored_one_is_refused_with_both_numbers(url: str):
    assert lockstead.Semaphore(url.format(dist="apt"), permits=2).acquire(0).release()

    @locked(url, permits=3)
    def publish(dist: str = "apt") -> None:
        pytest.fail("it ran")

    with pytest.raises(lockstead.StoreRefused, match=r"\b2 permits\b.*\b3\b"):
        publish()


def test_a_section_within_a_section_of_the_same_semaphore_is_refused(url: str):
    @locked(url, permits=2)
    def outer(dist: str = "apt") -> None:
        inner()

    @locked(url, permits=2)
    def inner(dist: str = "apt") -> None:
        pytest.fail("it ran")

    with pytest.raises(AlreadyHeld, match="'apt' is held by"):
        outer()


def test_a_coroutine_holds_the_lock_while_it_runs(url: str):
    @locked(url)
    async def publish(dist: str = "apt") -> tuple[str, bool]:
        await asyncio.sleep(0)
        return current_lease().key, lock(url, dist).inspect() is not None

    assert inspect.iscoroutinefunction(publish)
    assert asyncio.run(publish()) == ("apt", True)
    assert lock(url).inspect() is None


def test_a_generator_holds_the_lock_from_first_item_to_end(url: str):
    @locked(url)
    def parts(dist: str = "apt") -> Iterator[Any]:
        try:
            got = yield 1
        except KeyError:
            got = "caught"
        yield got
        return "end"

    def ended(given: Any) -> Iterator[Any]:
        return (yield from given)  # type: ignore[no-any-return]

    assert inspect.isgeneratorfunction(parts)
    one = parts()
    assert lock(url).inspect() is None
    assert next(one) == 1
    assert lock(url).inspect() is not None
    assert one.send("sent") == "sent"  # type: ignore[attr-defined]
    with pytest.raises(StopIteration) as end:
        next(one)
    assert end.value.value == "end"
    assert lock(url).inspect() is None

    two = parts()
    assert next(two) == 1
    assert two.throw(KeyError()) == "caught"  # type: ignore[attr-defined]
    two.close()  # type: ignore[attr-defined]
    assert lock(url).inspect() is None


def test_an_async_generator_holds_the_lock_from_first_to_end(url: str):
    @locked(url)
    async def parts(dist: str = "apt") -> AsyncIterator[Any]:
        try:
            got = yield 1
        except KeyError:
            got = "caught"
        yield got

    async def read() -> None:
        one: Any = parts()
        assert await anext(one) == 1
        assert lock(url).inspect() is not None
        assert await one.asend("sent") == "sent"
        with pytest.raises(StopAsyncIteration):
            await anext(one)
        assert lock(url).inspect() is None
        two: Any = parts()
        assert await anext(two) == 1
        assert await two.athrow(KeyError()) == "caught"
        await two.aclose()
        assert lock(url).inspect() is None

    assert inspect.isasyncgenfunction(parts)
    asyncio.run(read())


def test_a_loss_between_two_items_is_raised_in_the_generator(url: str):
    cleaned: list[str] = []

    @locked(url)
    def parts(dist: str = "apt") -> Iterator[int]:
        try:
            yield 1
            yield 2
        except LeaseLost as lost:
            cleaned.append(lost.key)
            raise

    items = parts()
    assert next(items) == 1
    assert lock(url).break_lease(reason="a test", now=True) is not None
    until_lost = time.monotonic() + 60
    while current_lease().is_held and time.monotonic() < until_lost:
        time.sleep(0.01)
    with pytest.raises(LeaseLost):
        next(items)
    assert cleaned == ["apt"]


def sleeping(url: str, inside: threading.Event, cleaned: list[str]) -> dict[str, Any]:
    """Return a body of each kind that sleeps under the lock until it is interrupted."""

    @locked(url)
    def plain(dist: str = "apt") -> None:
        inside.set()
        try:
            time.sleep(PAUSE)
        finally:
            cleaned.append("plain")

    @locked(url)
    def generator(dist: str = "apt") -> Iterator[int]:
        yield 1
        inside.set()
        try:
            time.sleep(PAUSE)
        finally:
            cleaned.append("generator")

    @locked(url)
    async def coroutine(dist: str = "apt") -> None:
        inside.set()
        try:
            await asyncio.sleep(PAUSE)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("coroutine")

    @locked(url)
    async def async_generator(dist: str = "apt") -> AsyncIterator[int]:
        yield 1
        inside.set()
        try:
            await asyncio.sleep(PAUSE)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("async_generator")

    async def listed() -> list[int]:
        return [item async for item in async_generator()]

    return {
        "plain": plain,
        "generator": lambda: list(generator()),
        "coroutine": lambda: asyncio.run(coroutine()),
        "async_generator": lambda: asyncio.run(listed()),
    }


@pytest.mark.parametrize("kind", ["plain", "generator", "coroutine", "async_generator"])
def test_a_sleeping_body_is_interrupted_in_time_and_cleans_up(url: str, kind: str):
    inside, cleaned, broken_at = threading.Event(), list[str](), list[float]()
    body = sleeping(url, inside, cleaned)[kind]
    breaker = broken_soon(url, inside, broken_at)
    with pytest.raises(LeaseLost) as lost:
        body()
    ended_at = time.monotonic()
    breaker.join()
    assert cleaned == [kind]
    assert ended_at < broken_at[0] + 2 / 8 + 1
    again = pickle.loads(pickle.dumps(lost.value))
    assert (str(again), again.reason, again.token) == (str(lost.value), lost.value.reason, lost.value.token)
    assert not isinstance(lost.value, TimeoutError | asyncio.CancelledError)


@pytest.mark.parametrize("kind", [TimeoutError, asyncio.CancelledError])
def test_a_time_out_of_the_clean_up_does_not_hide_the_loss(url: str, kind: type[BaseException]):
    inside = threading.Event()

    @locked(url)
    def publish(dist: str = "apt") -> None:
        inside.set()
        try:
            time.sleep(PAUSE)
        finally:
            raise kind("the clean-up took too long")

    breaker = broken_soon(url, inside)
    with pytest.raises(LeaseLost) as lost:
        publish()
    breaker.join()
    assert type(lost.value.__cause__) is kind


def test_any_other_exception_of_the_clean_up_passes_with_a_note(url: str):
    inside = threading.Event()

    @locked(url)
    def publish(dist: str = "apt") -> None:
        inside.set()
        try:
            time.sleep(PAUSE)
        finally:
            raise OSError("disk full")

    breaker = broken_soon(url, inside)
    with pytest.raises(OSError, match="disk full") as passed:
        publish()
    breaker.join()
    assert any("REVOKED" in note for note in passed.value.__notes__)


def test_a_cancellation_at_the_instant_of_the_loss_stays_one(url: str):
    inside = threading.Event()

    @locked(url)
    async def publish(dist: str = "apt") -> None:
        inside.set()
        try:
            await asyncio.sleep(PAUSE)
        finally:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # somebody else's

    breaker = broken_soon(url, inside)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(publish())
    breaker.join()
    assert lock(url).inspect() is None


def test_the_same_lock_within_itself_is_refused_at_once(url: str):
    @locked(url)
    def inner(dist: str = "apt") -> str:
        return current_lease().key

    @locked(url)
    def outer(other: str, dist: str = "apt") -> str:
        with ThreadPoolExecutor(1) as pool:  # as a task runner starts its children
            return pool.submit(copy_context().run, inner, other).result()

    assert outer("rpm") == "rpm"
    with pytest.raises(AlreadyHeld, match=r"'apt' is held by .*, under whose lease this runs") as refused:
        outer("apt")
    assert "\n" not in str(refused.value)
    assert inner() == "apt"


def test_the_same_lock_within_itself_is_refused_in_coroutines(url: str):
    @locked(url)
    async def inner(dist: str = "apt") -> str:
        return current_lease().key

    @locked(url)
    async def outer(other: str, dist: str = "apt") -> str:
        return await asyncio.create_task(inner(other))

    assert asyncio.run(outer("rpm")) == "rpm"
    with pytest.raises(AlreadyHeld):
        asyncio.run(outer("apt"))


@pytest.mark.parametrize("is_async", [False, True])
def test_on_unclean_fail_needs_a_store_that_detects_it(is_async: bool):
    @locked("etcd://127.0.0.1:9#apt", on_unclean="fail")
    def strict() -> None:
        raise AssertionError("it runs")

    @locked("etcd://127.0.0.1:9#apt", on_unclean="fail")
    async def astrict() -> None:
        raise AssertionError("it runs")

    with pytest.raises(ValueError, match=r"^etcd: cannot tell how a holder ended, so on_unclean='fail' would never"):
        asyncio.run(astrict()) if is_async else strict()


def test_a_wait_ends_at_its_timeout(url: str):
    @locked(url, timeout=0)
    def publish(dist: str = "apt") -> None:
        pass

    lease = held_elsewhere(url)
    with pytest.raises(lockstead.NotAcquired, match="'apt' is held by"):
        publish()
    lease.release()


def test_it_stands_where_the_function_stands_that_it_wraps():
    """Prefect reads a flow's version and its entrypoint from there."""

    def publish() -> None:
        raise OSError

    made = locked("memory:place#apt")(publish)
    assert inspect.getfile(made) == inspect.getsourcefile(made) == __file__
    assert inspect.getsource(made) == inspect.getsource(publish)
    with pytest.raises(OSError) as raised:
        made()
    frame = raised.traceback[1]
    assert (str(frame.path), frame.lineno + 1) == (__file__, publish.__code__.co_firstlineno)


class Work:
    """A class whose methods are locked."""

    @locked("memory:methods#{dist}")
    def plain(self, dist: str) -> str:
        return current_lease().key

    @staticmethod
    @locked("memory:methods#{dist}")
    def below(dist: str) -> str:
        return current_lease().key

    @locked("memory:methods#{dist}")
    @staticmethod
    def above(dist: str) -> str:
        return current_lease().key

    @locked("memory:methods#{dist}")
    @classmethod
    def of_class(cls, dist: str) -> tuple[str, str]:
        return cls.__name__, current_lease().key


def test_methods_are_functions_too():
    assert (Work().plain("a"), Work.below("b"), Work.above("c"), Work.of_class("d")) == ("a", "b", "c", ("Work", "d"))


def test_a_template_may_name_what_only_a_call_knows():
    @locked("memory:any#{dist}")
    def publish(**words: str) -> str:
        return current_lease().key

    assert publish(dist="apt") == "apt"
    with pytest.raises(ValueError, match="names 'dist', which is not known here"):
        publish()


def test_a_template_of_an_unknown_parameter_is_refused_at_import():
    with pytest.raises(ValueError) as refused:

        @locked("memory:x#{suite}")
        def publish(dist: str) -> None:
            pass

    assert "the lock's template names 'suite', no parameter of" in str(refused.value)
    assert str(refused.value).endswith("which has dist")


@pytest.mark.parametrize("target", [Work, 3, len])
def test_what_is_no_work_is_refused(target: Any):
    with pytest.raises(TypeError, match="@locked is for a function, a flow or a task, not"):
        locked("memory:x#apt")(target)


def test_without_a_lock_it_says_how_to_name_one():
    with pytest.raises(TypeError, match="@locked needs a lock"):
        locked(lambda: None)  # type: ignore[arg-type]


def test_naming_a_lock_imports_no_prefect_and_no_client_library():
    program = (
        "import sys, prefect_lockstead; prefect_lockstead.locked('gs://b/locks/{x}')(lambda x: x); "
        "print([m for m in ('prefect', 'pydantic', 'google.cloud', 'redis') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_locks_nested_in_opposite_order_are_warned_and_give_up(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_async: bool
):
    monkeypatch.setattr(nesting, "LIMIT", 1.0)
    meet = threading.Barrier(2)

    def nested(outer: str, inner: str) -> None:
        @locked(url.format(dist=outer))
        def both() -> None:
            meet.wait(60)
            locked(url.format(dist=inner))(lambda: None)()

        both()

    async def anested(outer: str, inner: str) -> None:
        @locked(url.format(dist=inner))
        async def within() -> None: ...

        @locked(url.format(dist=outer))
        async def both() -> None:
            await asyncio.to_thread(meet.wait, 60)
            await within()

        await both()

    def run(*keys: str) -> BaseException | None:
        try:
            asyncio.run(anested(*keys)) if is_async else nested(*keys)
        except lockstead.NotAcquired as error:
            return error
        return None

    with caplog.at_level("WARNING", "prefect_lockstead"), ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run, ("apt", "yum"), ("yum", "apt")))
    assert any(isinstance(one, lockstead.NotAcquired) for one in ended)
    assert "waiting for 'yum' while 'apt' is held here: two that do so in opposite order wait" in caplog.text
    assert "this one gives up after 1 s" in caplog.text


def test_who_holds_another_lock_and_does_not_wait_is_not_warned(url: str, caplog: pytest.LogCaptureFixture):
    @locked(url.format(dist="apt"))
    def both() -> None:
        locked(url.format(dist="yum"))(lambda: None)()

    both()
    assert caplog.text == ""
