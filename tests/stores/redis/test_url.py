"""What the URLs of Redis mean, what is never shown of them, and what is used of a caller's own client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from lockstead.errors import OutcomeUnknown, StoreRefused
from lockstead.protocol.commands import Create, Read, Snapshot
from lockstead.stores import url
from lockstead.stores.redis.access import Access, Kind
from lockstead.stores.redis.store import RedisStore
from lockstead.values import Name
from tests.servers.proxy import Fault, Proxy
from tests.servers.redis import RedisServer, SecureRedisServer, certificate, is_write

LIMIT = 20.0
APT = Name("apt")


def access(text: str, client: object | None = None) -> Access:
    store = url.open_store(text, client)
    assert isinstance(store, RedisStore)
    store.close()
    return store._access


@pytest.mark.parametrize(
    ("text", "kind", "addresses", "service", "db"),
    [
        ("redis://h", Kind.SERVER, [("h", 6379)], "", 0),
        ("redis://h:1/", Kind.SERVER, [("h", 1)], "", 0),
        ("rediss://u:p@h:1/3", Kind.SERVER, [("h", 1)], "", 3),
        ("redis://[::1]:1/3", Kind.SERVER, [("::1", 1)], "", 3),
        ("redis://[::1]", Kind.SERVER, [("::1", 6379)], "", 0),
        ("redis+sentinel://a,b:2/locks", Kind.SENTINEL, [("a", 26379), ("b", 2)], "locks", 0),
        ("redis+sentinel://a/my%2Fservice/4", Kind.SENTINEL, [("a", 26379)], "my/service", 4),
        ("redis+cluster://a,b:2,c", Kind.CLUSTER, [("a", 6379), ("b", 2), ("c", 6379)], "", 0),
        ("redis+cluster://a/0", Kind.CLUSTER, [("a", 6379)], "", 0),
    ],
)
def test_a_url_says_where(text: str, kind: Kind, addresses: list[tuple[str, int]], service: str, db: int) -> None:
    found = access(text)
    assert (found.kind, list(found.addresses), found.service, found.db) == (kind, addresses, service, db)


@pytest.mark.parametrize(
    "text",
    [
        *("redis://", "redis://:6379", "redis://h:0", "redis://h:70000", "redis://h:x", "redis:h", "redis://a,b"),
        *("redis://h/x", "redis://h/1/2", "redis://h/-1", "redis+sentinel://h", "redis+sentinel://h/"),
        *("redis://h@h", "redis+sentinel://u:s3cret@a,u:s3cret@b/locks", "redis+cluster://u:s3cret@a,u:s3cret@b"),
        *("redis+cluster://h/1", "redis+cluster://", "redis://h?tls=perhaps", "rediss://h?ssl_check_hostname=2"),
    ],
)
def test_an_invalid_url_is_refused_without_its_password(text: str) -> None:
    text = text.replace("://", "://u:s3cret@", 1) if text.startswith("redis://h") else text
    with pytest.raises(ValueError) as error:
        url.open_store(text)
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)


def test_h22_a_shown_url_has_no_user_or_password() -> None:
    text = "redis+sentinel://anna:s3cret%40x@a:1,b/locks/2?prefix=p&tls=true"
    assert url.printable(text) == "redis+sentinel://a:1,b/locks/2?prefix=p&tls=true"
    shown, meant = access(url.printable(text)), access(text)
    assert (shown.addresses, shown.service, shown.db) == (meant.addresses, meant.service, meant.db)
    assert (meant.username, meant.password) == ("anna", "s3cret@x")
    assert "s3cret" not in repr(meant)


def test_a_second_at_sign_in_a_url_is_refused() -> None:
    for act in (url.open_store, url.printable):
        with pytest.raises(ValueError, match=r"write user and password once, before the first host, and an @ as %40"):
            act("redis+cluster://u:p@a,u:p@b")


def test_credentials_come_from_the_environment_where_the_url_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDISCLI_AUTH", "cli")
    assert (access("redis://localhost").username, access("redis://localhost").password) == (None, "cli")
    monkeypatch.setenv("REDIS_PASSWORD", "pass")
    monkeypatch.setenv("REDIS_USERNAME", "anna")
    assert (access("redis://localhost").username, access("redis://localhost").password) == ("anna", "pass")
    assert (access("redis://:other@localhost").username, access("redis://:other@localhost").password) == (None, "other")
    assert (access("redis://bert@localhost").username, access("redis://bert@localhost").password) == ("bert", "pass")
    assert access("redis://bert:@localhost").password is None, "an empty one is meant"
    monkeypatch.setenv("REDIS_SENTINEL_PASSWORD", "guard")
    assert access("redis+sentinel://localhost/s").sentinel_kwargs == {"password": "guard"}


def test_naming_a_lock_imports_no_client_library() -> None:
    code = "import sys, lockstead; lockstead.Lock('redis://h/0#apt'); sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_client_library_is_told_by_what_to_install() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from lockstead.stores import url\n"
        "from lockstead.errors import StoreRefused\n"
        "try: url.open_store('redis://h')\n"
        "except StoreRefused as error: sys.exit('lockstead[redis]' not in str(error))\n"
        "sys.exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- a caller's own client ---------------------------------------------------------------------------------------


def test_a_client_brings_its_credentials_and_none_of_its_repetitions(tmp_path: Path) -> None:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    with RedisServer(tmp_path / "redis") as server, server.client() as admin:
        way = Proxy([server.port])
        admin.config_set("requirepass", "s3cret")
        keen = Retry(NoBackoff(), 5)
        mine: Any = redis.Redis(port=way.ports[0], password="s3cret", retry=keen, decode_responses=True)
        store = url.open_store(f"redis://127.0.0.1:{way.ports[0]}", mine)
        assert isinstance(store.perform(Create(Name("first"), {}), LIMIT), Snapshot)
        armed = way.arm(Fault.CUT_AFTER, is_write, times=10)
        with pytest.raises(OutcomeUnknown):
            store.perform(Create(APT, {}), LIMIT)
        assert armed.hits == 1  # H25: asked once
        armed.disarm()
        assert isinstance(store.perform(Read(APT), LIMIT), Snapshot)
        assert "s3cret" not in repr(store) + store.url
        store.close()
        mine.close()
        way.close()


def test_a_client_with_tls_brings_what_it_trusts(tmp_path: Path) -> None:
    made, key = certificate(tmp_path)
    with SecureRedisServer(tmp_path / "tls", made, key) as server:
        mine = server.client()
        store = url.open_store(f"redis://127.0.0.1:{server.port}", mine)
        assert isinstance(store.perform(Create(APT, {}), LIMIT), Snapshot)
        store.close()
        mine.close()


def test_what_is_no_client_of_redis_is_refused() -> None:
    import redis.asyncio

    for client in (object(), "redis", redis.asyncio.Redis()):
        with pytest.raises(TypeError, match=r"redis\.Redis"):
            url.open_store("redis://h", client)


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path) -> None:
    store = url.open_store(f"rediss://127.0.0.1:1?ssl_ca_certs={tmp_path}/none.crt")
    with pytest.raises(Exception) as error:
        store.perform(Read(APT), LIMIT)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, StoreRefused) or "cannot connect" in str(error.value)
    store.close()
