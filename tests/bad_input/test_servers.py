"""Stores with a server: who else may listen behind the port, passwords, TLS, libraries that are missing, odd URLs.

Table driven, and the same for every store. What only one kind of server can say (out of memory, read-only, too old, no
right to make a schema) is tried with that store's own tests, on that server.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import lockstead
from lockstead.cli.main import call
from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.url import printable
from tests.bad_input.lines import SECRET
from tests.bad_input.strangers import strangers
from tests.bad_input.world import World
from tests.inventory import SERVED
from tests.servers.base import free_port
from tests.servers.etcd import Etcd
from tests.servers.redis import RedisServer
from tests.servers.zookeeper import Ensemble

WHO: Final = f"me:{SECRET}@"

PLAIN: Final = {scheme: known.url for scheme, known in SERVED.items()}
SECURE: Final = {scheme: known.secure for scheme, known in SERVED.items()}

SILENT: Final = (StoreUnavailable, OutcomeUnknown)
REFUSED: Final = (StoreRefused,)
HUNG_UP: Final = (StoreRefused, StoreUnavailable, OutcomeUnknown)
"""A connection that is closed without a word may mean a server that has just ended: only the store's message is
checked."""

EXPECTED: Final = {
    "nobody": (StoreUnavailable,),
    "a server that says nothing": SILENT,
    "a web server": REFUSED,
    "a mail server": HUNG_UP,
    "a Redis": HUNG_UP,
    "a server behind TLS": HUNG_UP,
}
VAGUE: Final = {("redlock", "a web server"), ("redis tls", "a web server"), ("redlock tls", "a web server")}
"""The error may be of one of several masters, or of a server that worked a moment ago: it is not refused
permanently."""

ADVICE: Final = re.compile(r"correct|check |look at|write|name |see |leave|put it|later is needed")

LONGEST: Final = 300
"""Characters that a line has at most; where masters are asked, for each of them."""


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with strangers(tmp_path_factory.mktemp("strangers")) as started:
        yield started


@pytest.fixture(autouse=True)
def no_other_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_PASSWORD", "REDISCLI_AUTH", "ETCDCTL_USER", "ETCDCTL_PASSWORD", "PGPASSWORD", "PGUSER"):
        monkeypatch.delenv(name, raising=False)


def asked(url: str, limit: float = 3.0) -> str:
    return f"{url}{'&' if '?' in url else '?'}request_timeout={limit}&ttl=60#apt"


def line_of(error: BaseException) -> str:
    """Return the line of a store's error, once everything that holds for each of them was looked at."""
    said = str(error)
    assert "\n" not in said
    assert len(said) < LONGEST * (3 if "masters" in said else 1), said
    if isinstance(error, StoreRefused):
        assert ADVICE.search(said), said
    assert SECRET not in "".join(traceback.format_exception(error, limit=0))
    return said


URLS: Final = [*PLAIN.items(), *((f"{name} tls", url) for name, url in SECURE.items())]
MEETINGS: Final = [
    pytest.param(name, url, stranger, id=f"{name}, {stranger}")
    for name, url in URLS
    for stranger in EXPECTED
    # it takes its time to find out, and in TLS these are all one to it
    if (name, stranger) not in {("zk tls", "a mail server"), ("zk tls", "a Redis")}
]


# kazoo leaves the socket of a handshake that failed to the collector of cycles
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("name", "url", "stranger"), MEETINGS)
def test_h22_another_server_behind_the_port_is_told_in_one_line(
    name: str, url: str, stranger: str, ports: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    known = url.format(who=WHO, port=ports[stranger])
    limit = 2.5 if name.startswith("zk") else 1.0 if stranger == "a server that says nothing" else 5.0
    events: list[object] = []
    with caplog.at_level(logging.DEBUG), lockstead.connect(known, listener=events.append) as client:
        lock = client.lock("apt", ttl=60, request_timeout=limit)
        with pytest.raises(StoreError) as raised:
            lock.try_acquire()
        shown = [repr(lock), repr(client), repr(client._engine.store), caplog.text, *map(repr, events)]
    line_of(raised.value)
    expected = EXPECTED[stranger] if (name, stranger) not in VAGUE else HUNG_UP
    assert isinstance(raised.value, expected), repr(raised.value)
    assert not [text for text in shown if SECRET in text]
    raised = None  # type: ignore[assignment] # its frames hold what the collector is to find
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", PLAIN)
def test_shell_and_awaiting_side_report_a_missing_server_alike(
    name: str, ports: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    url = asked(PLAIN[name].format(who=WHO, port=ports["nobody"]), 2.0)

    async def awaiting() -> None:
        await lockstead.AsyncLock(url).try_acquire()

    with pytest.raises(StoreUnavailable) as raised:
        asyncio.run(awaiting())
    line_of(raised.value)
    code = call(["inspect", url])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (69, "", 1), said.err
    assert said.err.startswith("lockstead: ")
    assert SECRET not in said.err


# --- URLs ------------------------------------------------------------------------------------------------------------

NONSENSE: Final = [
    f"redis://{WHO}/0",
    f"redis://{WHO}h:port/0",
    f"redis://{WHO}h:99999/0",
    f"redis://{WHO}h/zero",
    f"redis://{WHO}h1,h2/0",
    f"redis://{WHO}h?tls=maybe",
    f"redis:{WHO}h",
    f"redis+sentinel://{WHO}h",
    f"redis+cluster://{WHO}h/7",
    f"redlock://{WHO}h1,h2",
    f"redlock://{WHO}h1,h1,h2",
    f"redlock://{WHO}h1:port,h2,h3",
    f"redlock://{WHO}h1,h2,h3?master_limit=soon",
    f"etcd://{WHO}/locks",
    f"etcd:{WHO}h",
    f"etcd://{WHO}h:port/locks",
    f"etcd://{WHO}h1,,h2/locks",
    f"etcd://{WHO}h/locks?tls=maybe",
    f"postgresql:{WHO}h",
    f"postgresql://{WHO}h/db?schema=s-chema",
    f"postgresql://{WHO}h/db?listen=maybe",
    f"zk://{WHO}/locks",
    f"zk:{WHO}h",
    f"zk://{WHO}h:port/locks",
    f"zk://{WHO}h/a/../locks",
    f"zk://{WHO}h/locks?session=soon",
    f"cassandra://{WHO}/locks",
    f"cassandra:{WHO}h",
    f"cassandra://{WHO}h:port/locks",
    f"cassandra://{WHO}h/bad-name",
    f"cassandra://{WHO}h/locks?consistency=any",
]


@pytest.mark.parametrize("url", NONSENSE)
def test_h22_an_invalid_url_is_a_value_error_without_its_password(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError) as raised:
        lockstead.Lock(asked(url)).try_acquire()
    said = "".join(traceback.format_exception(raised.value, limit=0))
    assert SECRET not in said
    assert "\n" not in str(raised.value)
    assert call(["inspect", asked(url)]) == 64
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert SECRET not in told.err


@pytest.mark.parametrize("name", PLAIN)
def test_a_key_that_is_too_long_is_told_before_any_server_is_asked(name: str) -> None:
    url = PLAIN[name].format(who=WHO, port=free_port())
    with pytest.raises(ValueError, match=r"longer than 512 bytes; use a shorter one, or a digest") as raised:
        lockstead.Lock(f"{url}#{'k' * 513}")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("url", [*PLAIN.values(), *SECURE.values()])
def test_h22_a_printed_url_has_no_credentials_and_prints_alike(url: str) -> None:
    shown = printable(url.format(who=WHO, port=4711))
    assert SECRET not in shown
    assert "me" not in shown.partition("://")[2].partition("/")[0]
    assert "4711" in shown
    assert printable(shown) == shown


# --- libraries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_a_library_that_is_missing_is_named_with_what_installs_it(name: str, world: World) -> None:
    module, extra = SERVED[name].module, SERVED[name].extra
    url = asked(PLAIN[name].format(who=WHO, port=free_port()))
    world.without(module)
    code, out, err = world.run(url)  # in a process of its own, since this one has imported it
    assert (code, out, err.count("\n")) == (69, "", 1), err
    assert re.search(rf"pip install 'lockstead\[{extra}\]'$", err), err
    assert SECRET not in err


# --- real servers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[RedisServer]:
    server = RedisServer(folder / "guarded", None, "--requirepass", "right")
    server.is_ready = lambda: b"NOAUTH" in server.says("PING")  # type: ignore[method-assign] # it asks for a password
    with server:
        yield server


@pytest.mark.parametrize("scheme", ["redis", "redlock"])
@pytest.mark.parametrize("who", ["", f":{SECRET}@", WHO])
def test_h22_a_wrong_password_for_redis_is_refused(scheme: str, who: str, guarded: RedisServer) -> None:
    with pytest.raises(StoreError) as raised:
        lockstead.Lock(asked(PLAIN[scheme].format(who=who, port=guarded.port), 5.0)).try_acquire()
    said = line_of(raised.value)
    assert "password" in said
    if scheme == "redis":
        assert isinstance(raised.value, StoreRefused)


def test_a_cluster_without_a_quorum_is_waited_for_and_not_refused(folder: Path) -> None:
    peers = {name: free_port() for name in ("one", "two", "three")}
    etcd = Etcd(folder / "etcd", name="one", peers=peers)
    etcd.is_ready = lambda: "127.0.0.1" in etcd.address and _listens(etcd.port)  # type: ignore[method-assign] # no leader
    ensemble = Ensemble(folder / "zookeeper")
    zookeeper = ensemble.servers[0]
    zookeeper.is_ready = lambda: _listens(zookeeper.port)  # type: ignore[method-assign] # it serves nobody
    redis = RedisServer(folder / "redis")
    with etcd, zookeeper, redis:
        lone = f"redlock://{WHO.removeprefix('me:')}127.0.0.1:{redis.port},localhost:{free_port()},[::1]:{free_port()}"
        for url in (
            f"etcd://127.0.0.1:{etcd.port}/locks",
            f"zk://127.0.0.1:{zookeeper.port}/locks",
            f"{lone}?restart_delay=0",
        ):
            with pytest.raises((StoreUnavailable, OutcomeUnknown)) as raised:
                lockstead.Lock(asked(url, 2.0)).try_acquire()
            line_of(raised.value)


def _listens(port: int) -> bool:
    from tests.servers.base import answers

    return answers(port)
