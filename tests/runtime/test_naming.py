"""What can be done with the name of a lock, and what is refused when it is created, not when it is used."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from lockstead import AsyncLock, Client, Lock
from tests.runtime.faulty import Faulty, quiet


@pytest.mark.parametrize("again", [lambda lock: pickle.loads(pickle.dumps(lock)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [Lock, AsyncLock])
def test_a_lock_is_pickled_and_copied_also_after_its_first_use(
    sqlite_url: str, kind: type[Lock | AsyncLock], again: Callable[[Any], Any]
) -> None:
    async def use() -> None:
        found = lock.try_acquire()
        lease = await found if asyncio.iscoroutine(found) else found
        released = lease.release()
        assert (await released if asyncio.iscoroutine(released) else released) is True

    lock: Any = kind(f"{sqlite_url}#apt", ttl=60, labels={"team": "deb"})
    for _ in range(2):
        asyncio.run(use())
        made = again(lock)
        assert (type(made), made.key, made.settings) == (kind, "apt", lock.settings)
        lock = made


def test_a_lock_of_a_client_says_why_it_cannot_be_pickled() -> None:
    with Client(Faulty(), listener=quiet) as client:
        for refused in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match=r"made by a client.*make it from its URL"):
                refused(client.lock("apt"))


@pytest.mark.parametrize("kind", [Lock, AsyncLock])
@pytest.mark.parametrize("wrong", [{"timeout": "nonsense"}, {"drain": "nonsense"}])
def test_a_wrong_duration_is_refused_where_a_hold_is_declared(
    kind: type[Lock | AsyncLock], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        kind("memory:#apt").hold(**wrong)


@pytest.mark.parametrize("kind", [Lock, AsyncLock])
def test_an_argument_of_other_locks_is_refused_with_what_does_it_here(kind: type[Lock | AsyncLock]) -> None:
    def asked(**given: Any) -> None:
        lock: Any = kind("memory:#apt")
        asked = lock.acquire(**given)
        if asyncio.iscoroutine(asked):
            asyncio.run(asked)

    with pytest.raises(TypeError, match=r"'blocking'.*try_acquire\(\)"):
        asked(blocking=False)
    with pytest.raises(TypeError, match=r"'blocking_timeout'; write timeout="):
        asked(blocking_timeout=3)
    with pytest.raises(TypeError, match="no argument 'nonsense'"):
        asked(nonsense=3)
