"""`attached`: who brings a ticket works under its lease, and is interrupted when that is lost."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
import time
from pathlib import Path

import pytest

import lockstead
from prefect_lockstead.attaching import attached


@pytest.fixture
def lock(tmp_path: Path) -> lockstead.Lock:
    return lockstead.Lock(f"sqlite:///{tmp_path}/locks.db#a%20key/of%23two?ttl=5s")


MEMORY = "memory:"


def store_of(lock: lockstead.Lock) -> str:
    return str(lock._open_now().store.url)


def test_a_block_is_a_member_of_the_lease_that_its_ticket_names(lock: lockstead.Lock):
    with lock.hold() as lease, attached(str(lease.share()), store=store_of(lock)) as member:
        assert member.is_member
        assert member.holder == lease.holder
        assert lockstead.current_lease() is member


def test_an_awaiting_block_is_a_member_too(lock: lockstead.Lock):
    async def work(ticket: lockstead.LeaseTicket) -> None:
        async with attached(ticket, store=store_of(lock)) as member:
            assert member.is_member
            assert lockstead.current_lease() is member

    with lock.hold() as lease:
        asyncio.run(work(lease.share()))


def test_a_function_reads_the_ticket_from_its_parameter(lock: lockstead.Lock):
    @attached(parameter="ticket", store=store_of(lock))
    def work(part: int, ticket: str) -> tuple[int, str]:
        """Work."""
        return part, lockstead.current_lease().holder

    @attached(parameter="ticket", store=store_of(lock))
    async def awaiting(ticket: str) -> str:
        return lockstead.current_lease().holder

    assert work.__doc__ == "Work."
    for _turn in range(2):
        with lock.hold() as lease:
            ticket = str(lease.share())
            assert work(1, ticket) == (1, lease.holder)
            assert work(2, ticket=ticket) == (2, lease.holder)
            assert asyncio.run(awaiting(ticket)) == lease.holder


@pytest.mark.parametrize("where", ["main", "thread", "task"])
def test_a_loss_interrupts_the_work_with_a_picklable_error(lock: lockstead.Lock, where: str):
    errors: list[BaseException] = []
    at_work = threading.Event()

    @attached(parameter="ticket", store=store_of(lock))
    def work(ticket: lockstead.LeaseTicket) -> None:
        at_work.set()
        ends_at = time.monotonic() + 30
        while time.monotonic() < ends_at:
            time.sleep(0.02)

    @attached(parameter="ticket", store=store_of(lock))
    async def awaiting(ticket: lockstead.LeaseTicket) -> None:
        at_work.set()
        await asyncio.sleep(30)

    def call() -> None:
        try:
            asyncio.run(awaiting(ticket)) if where == "task" else work(ticket)
        except lockstead.LeaseLost as error:
            errors.append(error)

    def take() -> None:
        assert at_work.wait(10)
        lock.break_lease(reason="a test", now=True)

    ticket = lock.acquire().detach()
    taker = threading.Thread(target=take)
    taker.start()
    if where == "thread":
        worker = threading.Thread(target=call)
        worker.start()
        worker.join()
    else:
        call()
    taker.join()
    assert len(errors) == 1
    assert pickle.loads(pickle.dumps(errors[0])).args == errors[0].args


def test_work_does_not_begin_under_a_lease_that_is_gone(lock: lockstead.Lock):
    with lock.hold() as lease:
        ticket = lease.share()
    with pytest.raises(lockstead.LeaseLost), attached(ticket, store=store_of(lock)):
        pytest.fail("it began")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (attached, "a ticket, or parameter="),
        (lambda: attached("x", parameter="ticket"), "a ticket, or parameter="),
        (lambda: attached(parameter="ticket", block="prod", url="sqlite:///x#apt"), "a block, or a URL and a client"),
        (lambda: attached(parameter="ticket"), "name the lock's store by store=, block= or url="),
        (lambda: attached(parameter="ticket", client=object()), "name the lock's store by store=, block= or url="),
        (lambda: attached(parameter="ticket", store="prod", client=object()), "'prod' brings its own client"),
        (lambda: attached(parameter="ticket", store=MEMORY, url="sqlite:///x#apt"), "store= or url=, and not both"),
        (
            lambda: attached(parameter="ticket", store=MEMORY)(lambda part: part),
            "has no parameter 'ticket' to bring the ticket",
        ),
        (
            lambda: attached(parameter="ticket", store=MEMORY).__enter__(),
            "is for a function: give a block the ticket",
        ),
        (lambda: attached(1, store=MEMORY), "a lease ticket is text, not int"),
    ],
)
def test_a_wrong_use_is_one_clear_line(call, says: str):
    with pytest.raises(TypeError, match=says):
        call()


def test_what_is_no_ticket_is_refused_where_it_is_said():
    with pytest.raises(ValueError, match="not a lease ticket"):
        attached("apt", store=MEMORY)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_forged_ticket_sends_nothing_to_the_server_it_names(
    lock: lockstead.Lock, monkeypatch: pytest.MonkeyPatch, is_async: bool
):
    monkeypatch.setenv("REDIS_PASSWORD", "a secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        forged = lockstead.LeaseTicket(f"redis://127.0.0.1:{listening.getsockname()[1]}/0", "apt", "o/1", "1", 30.0)

        @attached(parameter="ticket", store=store_of(lock))
        def work(ticket: str) -> None: ...

        @attached(parameter="ticket", store=store_of(lock))
        async def awaiting(ticket: str) -> None: ...

        with pytest.raises(ValueError, match=r"redis://127\.0\.0\.1"):
            asyncio.run(awaiting(str(forged))) if is_async else work(str(forged))
        with pytest.raises(TimeoutError):
            listening.accept()
