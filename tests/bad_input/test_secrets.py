"""A token, a password: never in an error, a repr, a log, a record, a ticket or what a command is given (H22)."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

import pytest

import lockstead
from lockstead.events import LockEvent
from lockstead.stores.url import parse_lock, parse_store
from tests.bad_input.lines import SECRET
from tests.bad_input.world import World

FAILURES = (400, 401, 403, 404, 405, 412, 429, 500, 503)


def whole(error: BaseException) -> str:
    """Return all that a traceback shows."""
    return "".join(traceback.format_exception(error))


def test_h22_the_token_of_a_bucket_is_never_shown_whatever_goes_wrong(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    from google.cloud import storage
    from google.oauth2.credentials import Credentials

    server = world.bucket()
    theirs = storage.Client(
        project="p", credentials=Credentials(token=SECRET), client_options={"api_endpoint": server.url}
    )
    shown: list[Any] = []
    events: list[LockEvent] = []
    with caplog.at_level(logging.DEBUG):
        client = lockstead.connect(world.gs, client=theirs, listener=events.append)
        lock = client.lock("apt", ttl=60, backtrace=True, request_timeout=2)
        lease = lock.acquire(timeout=10)
        shown += [lock, client, lease, lease.sequencer(), lease.share(), str(lease.share()), client._engine.store]
        shown += [client._engine.store._access, lock.inspect(), client.list()]  # type: ignore[attr-defined] # its own
        for status in FAILURES:
            fault = server.faults.inject("fail", kind="*", status=status, times=None)
            for ask in (lock.inspect, client.list, client.lock("deb", request_timeout=2).try_acquire):
                try:
                    shown.append(ask())
                except lockstead.LocksteadError as error:
                    shown.append(whole(error))
            server.faults.discard(fault)
        server.pause("refuse")
        with pytest.raises(lockstead.LocksteadError) as raised:
            lock.inspect()
        shown.append(whole(raised.value))
        server.resume()
        assert lease.release(drain=10) is True
        client.close()
        theirs.close()
    # the way in was used, or this test would show nothing
    assert server.requests.count("insert") > 0
    texts = [repr(one) for one in (*shown, *events, *world.kept().items())]
    texts += [str(one) for one in shown] + [caplog.text]
    assert not [text for text in texts if SECRET in text]


URLS = [
    f"gs://me:{SECRET}@b/locks#apt",
    f"gs://{SECRET}@b/locks/apt",
    f"sqlite://me:{SECRET}@host/locks.db#apt",
    f"memory://me:{SECRET}@host#apt",
    f"nosuch://:{SECRET}@host/0#apt",
    f"nosuch://me:{SECRET}@host/db?ttl=5m#apt",
    f"gs://b/locks?password={SECRET}#apt",
    f"gs://b/locks#apt?password={SECRET}&ttl=60",
    f"gs://b/locks#apt?{SECRET}",
]


@pytest.mark.parametrize("url", URLS)
def test_h22_a_password_in_a_url_is_refused_and_never_shown(url: str, world: World) -> None:
    world.bucket()

    async def awaiting() -> None:
        await lockstead.AsyncLock(url).try_acquire()

    for ask in (
        lambda: lockstead.Lock(url).try_acquire(),
        lambda: asyncio.run(awaiting()),
        lambda: lockstead.connect(url).list(),
    ):
        with pytest.raises(ValueError) as raised:
            ask()
        # what Python itself prints of the lines above is not a concern of the library
        said = "".join(traceback.format_exception(raised.value, limit=0))
        assert SECRET not in said
    code, out, err = world.run(url)
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert SECRET not in err


def test_h22_a_parsed_url_shows_no_password() -> None:
    for parse in (parse_lock, parse_store):
        assert SECRET not in repr(parse(f"gs://me:{SECRET}@b/locks#apt"))


def test_h22_a_lock_named_by_a_url_with_a_password_shows_none() -> None:
    assert SECRET not in repr(lockstead.Lock(f"gs://me:{SECRET}@b/locks#apt"))
