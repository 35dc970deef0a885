"""How a lock's URL is put together from what settings, forms and connections say of it."""

from __future__ import annotations

import pytest

from lockstead import LeaseTicket, Lock, urls
from lockstead.stores.url import ALSO, OURS
from tests.inventory import known


@pytest.mark.parametrize(
    ("url", "who", "made"),
    [
        ("redis://host:6379/0", ("me", "p/w@1"), "redis://me:p%2Fw%401@host:6379/0"),
        ("redis://host/0", ("", "secret"), "redis://:secret@host/0"),
        ("postgresql://old@host/db?x=@", ("me", ""), "postgresql://me@host/db?x=@"),
        ("postgresql://old@host/db", ("", "secret"), "postgresql://old:secret@host/db"),
        ("gs://bucket/locks", ("", ""), "gs://bucket/locks"),
    ],
)
def test_user_and_password_come_into_the_url(url: str, who: tuple[str, str], made: str) -> None:
    assert urls.with_user(url, *who) == made


def test_a_store_without_users_says_so_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^a store at gs: has neither user nor password: leave both empty$"):
        urls.with_user("gs://bucket/locks", "me", "")


@pytest.mark.parametrize("scheme", [*OURS, "zookeeper"])
def test_every_scheme_takes_a_user_or_says_that_it_takes_none(scheme: str) -> None:
    url = f"{scheme}://host/db" if scheme != "memory" else "memory:"
    if not known(ALSO.get(scheme, scheme)).takes_user:
        with pytest.raises(ValueError, match="has neither user nor password"):
            urls.with_user(url, "me", "secret")
    else:
        assert urls.with_user(url, "me", "secret") == f"{scheme}://me:secret@host/db"


def test_only_the_memory_store_is_confined_to_one_process() -> None:
    assert [scheme for scheme in [*OURS, "zookeeper", "file", "env"] if not urls.spans_processes(f"{scheme}:x")] == [
        "memory"
    ]


@pytest.mark.parametrize(("url", "says"), [("sqlite:///x.db#apt", "names a lock"), ("nowhere://x", "nowhere")])
def test_what_is_no_store_is_told_in_one_line(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as told:
        urls.check_store(url)
    assert "\n" not in str(told.value)


def test_a_key_of_any_kind_comes_back() -> None:
    assert Lock(urls.lock_url("memory:", "a key #1?x=%")).key == "a key #1?x=%"


@pytest.mark.parametrize(
    ("url", "store", "key", "named"),
    [
        ("redis://u@h:1/0?tls=true#a?ttl=9", "redis://h:1/0?tls=true", "b", "redis://u@h:1/0?tls=true#b?ttl=9"),
        ("redis://u@h:1/0#a", "redis://h:1/5", "b?ttl=9d#", "redis://u@h:1/5#b%3Fttl=9d%23"),
        ("redis://u@h:1/0#a", "redis://h:1/0?tls=false&ssl_ca_certs=x", "b", "redis://u@h:1/0#b"),
        ("redis://u@h:1/0#a", "redis://evil:1/0", "b", "redis://u@h:1/0#b"),
        ("redis://u@h:1/0#a", "gs://h:1/0", "b", "redis://u@h:1/0#b"),
        ("sqlite:////one.db#a", "sqlite:////etc/two.db", "b", "sqlite:////one.db#b"),
        ("gs://bucket/one/a", "gs://bucket/two", "b", "gs://bucket/two#b"),
    ],
)
def test_a_ticket_names_key_and_path_but_no_server(url: str, store: str, key: str, named: str):
    assert urls.of_ticket(url, LeaseTicket(store, key, "holder", "incarnation", 9.0)) == named
