"""What a connection means: the URL, whose credentials, and that all who use it share one client object. No Airflow."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lockstead import connection, naming
from airflow_lockstead.connection import Places, place_of
from airflow_lockstead.fields import behaviour
from airflow_lockstead.naming import is_true, url_of
from airflow_lockstead.spec import LockSpec


def conn(conn_id: str = "lockstead_default", **said: Any) -> Any:
    extra = said.pop("extra", {})
    usual = dict.fromkeys(("host", "port", "schema", "login", "password"))
    return SimpleNamespace(
        **{
            "conn_id": conn_id,
            "conn_type": "lockstead",
            **usual,
            "extra": json.dumps(extra),
            "extra_dejson": extra,
            **said,
        }
    )


def nobody(conn_id: str) -> Any:
    raise AssertionError(conn_id)


def test_no_hint_of_the_form_is_longer_than_its_field():
    # about 76 characters are seen in Airflow 3.3, of which pictures.py takes a picture
    assert [hint for hint in behaviour()["placeholders"].values() if len(hint) > 72] == []


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ({"host": "gs://bucket/locks"}, "gs://bucket/locks"),
        ({"host": " sqlite:////locks.db "}, "sqlite:////locks.db"),
        ({"host": "redis://h/0", "login": "u", "password": "p@/"}, "redis://u:p%40%2F@h/0"),
        ({"host": "redis://h/0", "password": "p"}, "redis://:p@h/0"),
        ({"host": "redis://h", "port": 7000, "schema": "3"}, "redis://h:7000/3"),
        ({"host": "", "extra": {"url": "etcd://h:2379/l"}}, "etcd://h:2379/l"),
        ({"host": "redis://me@h/0"}, "redis://me@h/0"),
        ({"host": "redis://::1", "port": 6379}, "redis://[::1]:6379"),
        ({"host": "redis://10", "port": 6379}, "redis://10:6379"),
    ],
)
def test_the_store_stands_in_the_host_with_login_and_password(said: dict[str, Any], url: str):
    assert url_of(conn(**said)) == url


def test_plain_extras_are_text_and_others_are_ignored_elsewhere():
    assert naming.with_options(conn(extra={"a": True, "b": "Apt "}), "redis://h/0") == "redis://h/0?a=true&b=Apt"
    extra = {"sslmode": "require", "keepalives": {"idle": 1}, "options": None}
    assert naming.extras_of(conn(conn_type="postgres", extra=extra)) == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"host": "bucket"}, "no scheme.*write the connection as JSON"),
        ({"host": "gs://bucket/locks#apt"}, "remove '#' and what follows"),
        ({"host": None}, "names no store"),
        ({"login": "u"}, "names no store"),
        ({"extra": {"redis_conn_id": "a", "postgres_conn_id": "b"}}, "redis_conn_id and postgres_conn_id: leave one"),
        ({"extra": {"google_conn_id": "a"}}, "names no bucket"),
        ({"host": "redis://me@h/0", "password": "p"}, "its URL names a user, too: leave one"),
        ({"host": "redis://h/0", "schema": "3"}, "says port, path or user twice"),
        ({"host": "redis://h:1", "port": 2}, "says port, path or user twice"),
        ({"host": "redis://h/0", "extra": {"url": "redis://h/1"}}, "names a store twice"),
        ({"schema": "/tmp/locks.db"}, "has no scheme, .*, or Airflow has lost it; write the connection as JSON"),
        ({"host": "etcd://::1", "port": 2379}, "of several hosts Airflow keeps the one in brackets alone"),
        ({"host": "h", "conn_type": "redis"}, "is of the type 'redis', not 'lockstead'"),
        ({"host": "gs://b", "login": "u", "password": "p"}, "'lockstead_default': a store at gs: has neither user"),
        ({"login": "u", "extra": {"redis_conn_id": "a"}}, "takes credentials from another connection: leave one"),
        ({"host": "redis://h/0", "extra": {"perfix": "a"}}, "does not name a store: unknown setting 'perfix'"),
        ({"host": "redis://h/0", "extra": {"prefix": "a b"}}, "has a space in it, or a '\\+' that Airflow lost"),
        ({"host": "redis://h/0", "extra": {"prefix": {}}}, "the extra 'prefix' .* is not a plain value"),
        ({"host": "redis://h/0", "extra": ["prefix"]}, "the extra of the connection .* is not a JSON object"),
        ({"host": "memory:"}, "names a memory: store, which lives in one process"),
    ],
)
def test_what_a_connection_cannot_mean_is_one_clear_line(said: dict[str, Any], line: str):
    with pytest.raises((ValueError, TypeError), match=line) as raised:
        place_of(conn(**said), conn)
    assert "\n" not in str(raised.value)


def test_a_redis_connection_yields_url_credentials_and_tls():
    other = conn(
        "r", conn_type="redis", host="h", port=6380, login="u", password="p", schema=None,
        extra={"ssl": "True", "db": "3", "ssl_check_hostname": "false"},
    )  # fmt: skip
    place = place_of(conn(extra={"redis_conn_id": "r"}), lambda conn_id: {"r": other}[conn_id])
    assert place.url == "rediss://h:6380/3"
    ways = place.client.connection_pool.connection_kwargs  # type: ignore[union-attr]
    assert (ways["username"], ways["password"], ways["ssl_check_hostname"]) == ("u", "p", False)


def test_a_postgres_connection_gives_the_whole_url_or_only_who():
    other = conn(
        "p", host="h", port=5433, login="u", password="s", schema="d", extra={"sslmode": "require", "cursor": "x"}
    )
    find = {"p": other}.__getitem__
    assert place_of(conn(extra={"postgres_conn_id": "p"}), find).url == "postgresql://u:s@h:5433/d?sslmode=require"
    ours = conn(host="postgresql://other/locks", extra={"postgres_conn_id": "p"})
    assert place_of(ours, find).url == "postgresql://u:s@other/locks"


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ({"host": "h1,h2", "port": 6000, "schema": "d"}, "postgresql://h1:6000,h2:6000/d"),
        ({"host": "::1", "port": 5433, "schema": "d"}, "postgresql://[::1]:5433/d"),
        (
            {"host": "h", "schema": "d", "extra": {"hostaddr": "10.0.0.1", "cursor": "x"}},
            "postgresql://h/d?hostaddr=10.0.0.1",
        ),
    ],
)
def test_a_postgres_connection_names_all_its_servers(said: dict[str, Any], url: str):
    assert naming.postgres_url(conn("p", **said)) == url


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ({"host": "::1", "port": 7000}, "redis://[::1]:7000/0"),
        ({"host": "h", "schema": "3"}, "redis://h:6379/3"),
        ({"host": "h", "extra": {"ssl_ca_certs": "/ca"}}, "rediss://h:6379/0"),
        ({"host": "h", "extra": {"ssl": False, "ssl_ca_certs": "/ca"}}, "redis://h:6379/0"),
    ],
)
def test_a_redis_connection_with_a_word_on_tls_is_one_by_tls(said: dict[str, Any], url: str):
    assert naming.redis_url(conn("r", **said)) == url


def test_other_fields_beside_a_reference_are_part_of_the_store():
    other = conn("p", host="h", schema="d", login="u", password="s", extra={"sslmode": "require"})
    ours = conn(extra={"postgres_conn_id": "p", "schema": "locks", "listen": "no"})
    place = place_of(ours, lambda _: other)
    assert place.url == "postgresql://u:s@h/d?sslmode=require&schema=locks&listen=no"


@pytest.mark.parametrize(("text", "is_so"), [("true", True), ("1", True), ("False", False), ("0", False), ("", False)])
def test_a_yes_or_no_that_is_text_is_read_as_one(text: str, is_so: bool):
    assert is_true(text) is is_so


def test_users_of_a_connection_share_one_client_until_it_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "FRESH", 0.0)
    redis = {"lockstead_default": conn(extra={"redis_conn_id": "r"}), "r": conn("r", host="h", password="one")}
    places = Places(redis.__getitem__)
    first = places.place("lockstead_default")
    assert places.place("lockstead_default").client is first.client
    redis["r"] = conn("r", host="h", password="two")
    assert places.place("lockstead_default").client is not first.client


def test_a_connection_is_not_asked_again_within_a_minute():
    asked = []

    def find(conn_id: str) -> Any:
        asked.append(conn_id)
        return conn(conn_id, host="gs://bucket/locks")

    places = Places(find)
    assert {places.place("lockstead_default").url for _ in range(1000)} == {"gs://bucket/locks"}
    assert asked == ["lockstead_default"]


def test_a_key_is_written_so_that_the_url_reads_it_back():
    import lockstead

    place = connection.Place("sqlite:////tmp/locks.db")
    assert lockstead.Lock(place.lock_url("a key #1?x=%")).key == "a key #1?x=%"


def test_a_template_that_renders_empty_is_told_by_its_name():
    spec = LockSpec(key="{{ params.key }}", keeper=False)
    with pytest.raises(ValueError, match=r"key='\{\{ params.key \}\}' renders to '': it names nothing"):
        spec.named({"key": ""})
    assert spec.named({"key": "apt"}).key == "apt"


def test_a_redis_connection_without_redis_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ValueError, match=r"pip install 'lockstead\[redis\]'$"):
        place_of(conn(extra={"redis_conn_id": "r"}), conn)
