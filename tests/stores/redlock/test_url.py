"""What a `redlock:` URL says, and what it may not say."""

from __future__ import annotations

import pytest

from lockstead.stores import url
from lockstead.stores.redlock.store import RedlockStore


def opened(text: str) -> RedlockStore:
    store = url.open_store(text)
    assert isinstance(store, RedlockStore)
    return store


@pytest.mark.parametrize(
    ("hosts", "addresses"),
    [
        ("a,b,c", [("a", 6379), ("b", 6379), ("c", 6379)]),
        ("a,b,c:7000", [("a", 7000), ("b", 7000), ("c", 7000)]),
        ("a:1,b,c:7000", [("a", 1), ("b", 6379), ("c", 7000)]),
        ("h:1,h:2,h:3", [("h", 1), ("h", 2), ("h", 3)]),
        ("[::1]:1,[::2],[::3]", [("::1", 1), ("::2", 6379), ("::3", 6379)]),
    ],
)
def test_a_port_behind_the_last_host_is_that_of_all_that_name_none(
    hosts: str, addresses: list[tuple[str, int]]
) -> None:
    assert [master.address for master in opened(f"redlock://{hosts}")._group.masters] == addresses


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("redlock://a,b", "3 masters or more"),
        ("redlock://a", "3 masters or more"),
        ("redlock://", "names no server, or an invalid one"),
        ("redlock:a,b,c", "not a Redlock URL"),
        ("redlock://a,b,a", "names a master twice"),
        ("redlock://a,b,A:6379", "names a master twice"),
        ("redlock://u:p@a,u:p@b,u:p@c", "write user and password once, before the first host"),
        ("redlock://a,,c", "names no server, or an invalid one"),
        ("redlock://a,b,c:99999", "names no server, or an invalid one"),
        ("redlock://a,b,c/prod", "must be the number of a database"),
        ("redlock://a,b,c?master_limit=10m", "master_limit must be between 1 ms and 5 s"),
        ("redlock://a,b,c?restart_delay=soon", "restart_delay 'soon' is not a duration"),
        ("redlock://a,b,c?tls=perhaps", "tls is true or false"),
        ("redlock://a,b,c?prefix=", "prefix"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        url.open_store(text)


def test_h22_a_printed_url_has_no_credentials_and_the_same_store() -> None:
    shown = url.printable("redlock://me:se%40cret@a,b,c:7000/2?cleartext=true&prefix=x&restart_delay=10m#apt")
    assert shown == "redlock://a,b,c:7000/2?cleartext=true&prefix=x&restart_delay=10m"
    store = opened("redlock://me:se%40cret@a,b,c:7000/2?cleartext=true&prefix=x&restart_delay=10m")
    assert store.url == shown
    assert "cret" not in repr(store) + repr(store._group.masters)
    assert (store._group.masters[0].access.username, store._group.masters[0].access.password) == ("me", "se@cret")


def test_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_USERNAME", "me")
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    access = opened("redlock://a,b,c?tls=true")._group.masters[0].access
    assert (access.username, access.password) == ("me", "secret")
    access = opened("redlock://bert@a,b,c?tls=true")._group.masters[0].access
    assert (access.username, access.password) == ("bert", "secret")


def test_options_say_how_long_who_is_waited_for() -> None:
    store = opened("redlock://a,b,c?restart_delay=2h&master_limit=50ms")
    assert (store._group.master_limit, store._group.masters[0].restart_delay) == (0.05, 7200.0)
    store = opened("redlock://a,b,c")
    assert (store._group.master_limit, store._group.masters[0].restart_delay) == (0.2, 600.0)


def test_an_even_number_of_masters_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    opened("redlock://a,b,c,d")
    assert "4 masters tolerate no more failures than 3" in caplog.text
    caplog.clear()
    opened("redlock://a,b,c")
    assert caplog.text == ""
