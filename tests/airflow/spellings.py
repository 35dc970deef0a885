"""How the store of a connection can be spelled in an Airflow, and reads it: for the tests of `spellings`.

    python spellings.py

Says on its last line, as JSON, for each URL and each way to spell it which store the connection means: the URL without
credentials, user, password and settings; or in one line why it is refused. No server is asked.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

warnings.simplefilter("ignore")

from airflow_lockstead import connection  # noqa: E402
from lockstead import urls  # noqa: E402
from lockstead.stores.url import parse_store, printable  # noqa: E402

URLS = (
    "gs://bucket",
    "gs://bucket/locks",
    "gs://bucket/locks/of%20us/a+b",
    "redis://h",
    "redis://h:22503/3",
    "redis://h:22503",
    "redis://h/3",
    "redis://h:22503/3?prefix=apt",
    "redis://h/0?prefix=a+b",
    "redis://h/0?prefix=a%20b",
    "redis://User:p%40%2F%3A%23%3F@h:22503/3",
    "redis://:secret@h:22503/3",
    "rediss://user:secret@h/3?ssl_ca_certs=/etc/ca.pem&prefix=apt",
    "redis://[::1]:22503/3",
    "redis://[::1]",
    "redis://user:secret@[fe80::1]/3",
    "redis+sentinel://s1,s2,s3:26379/service/3",
    "redis+sentinel://user:secret@s1,s2/service",
    "redis+cluster://c1,c2,c3:7000",
    "redlock://h1,h2,h3:7000/2",
    "redlock://h1:7000,h2:7001,h3:7002/2",
    "redlock://user:secret@h1,h2,h3?restart_delay=1h",
    "etcd://h:2379/locks",
    "etcd://h1:2379,h2:2380/locks?tls=true",
    "etcd://user:secret@h/locks?ca=/etc/ca.pem",
    "etcd://[::1]:2379/locks",
    "etcd://[::1],[::2]/locks",
    "etcd://h1,[::1]/locks",
    "postgresql://h/db",
    "postgresql://h:5433/db",
    "postgresql://user:secret@h:5433/db?schema=locks&sslmode=require",
    "postgresql://h1,h2:5433/db",
    "postgresql://h1:5432,h2:5433/db",
    "postgresql://h/d%2Fb",
    "postgres://user@h/db?options=-c%20x%3D1",
    "zk://h1,h2:2181/a/path",
    "zk://user:secret@h/path?session=20s",
    "zk://[::1]:2181/path",
    "cassandra://h1,h2:9042/keyspace",
    "cassandra://user:secret@h1:9042/keyspace?datacenter=dc1",
    "cassandra://h1:9042,h2:9043/keyspace",
    "sqlite:////var/lib/locks.db",
    "sqlite:///relative.db",
)


def store_of(url: str) -> dict[str, Any]:
    """Return which store a URL means."""
    parsed = parse_store(url)
    user, _, password = urls.parts(parsed.text)[1].partition(":")
    return {"store": printable(parsed), "user": unquote(user), "password": unquote(password), **parsed.options}


def classes() -> list[Any]:
    """Return the classes of this Airflow that read a connection: that of its database, and that of its tasks."""
    from airflow.models.connection import Connection

    try:
        from airflow.sdk.definitions.connection import Connection as Tasks
    except ImportError:
        return [Connection]
    return [Connection, Tasks]


def of_fields(cls: Any, url: str) -> Any:
    """Spell every piece by itself, as who fills in a form field by field."""
    found = urlsplit(url)
    words: dict[str, Any] = {
        "host": f"{found.scheme}://{found.netloc.rpartition('@')[2].rpartition(':')[0]}"
        if found.port
        else f"{found.scheme}://{found.netloc.rpartition('@')[2]}",
        "port": found.port,
        "schema": unquote(found.path[1:]),
        "login": unquote(found.username or ""),
        "password": unquote(found.password or ""),
        "extra": json.dumps(dict(parse_qsl(found.query))),
    }
    return cls(conn_id="c", conn_type="lockstead", **words)


def of_form(cls: Any, url: str) -> Any:
    """Spell it in the form's fields: the URL, and beside it who asks."""
    scheme, who, rest = urls.parts(url)
    user, _, password = who.partition(":")
    words = {"login": unquote(user), "password": unquote(password), "schema": "", "port": None, "extra": "{}"}
    return cls(conn_id="c", conn_type="lockstead", host=f"{scheme}://{rest}", **words)


def of_json(cls: Any, **said: Any) -> Any:
    """Read it as Airflow reads a variable of the environment that is JSON."""
    return cls.from_json(json.dumps({"conn_type": "lockstead", **said}), conn_id="c")


SPELLINGS: dict[str, Callable[[Any, str], Any]] = {
    "uri": lambda cls, url: cls(conn_id="c", uri=f"lockstead://{url}"),
    "uri, quoted": lambda cls, url: cls(conn_id="c", uri=f"lockstead://{quote(url, safe='')}"),
    "uri, its rest quoted": lambda cls, url: cls(
        conn_id="c", uri=f"lockstead://{url.partition('://')[0]}://{quote(url.partition('://')[2], safe='')}"
    ),
    "json": lambda cls, url: of_json(cls, host=url),
    "json, by the extra": lambda cls, url: of_json(cls, extra={"url": url}),
    "form": of_form,
    "fields": of_fields,
    "uri of uri": lambda cls, url: cls(conn_id="c", uri=cls(conn_id="c", uri=f"lockstead://{url}").get_uri()),
    "uri of json": lambda cls, url: cls(conn_id="c", uri=of_json(cls, host=url).get_uri()),
    "uri of form": lambda cls, url: cls(conn_id="c", uri=of_form(cls, url).get_uri()),
    "uri of fields": lambda cls, url: cls(conn_id="c", uri=of_fields(cls, url).get_uri()),
}


def of_environment(url: str) -> Any:
    """Have Airflow find the URI in its environment, as for a task."""
    os.environ["AIRFLOW_CONN_C"] = f"lockstead://{url}"
    return connection.find_connection("c")


def read(make: Callable[[], Any]) -> dict[str, Any]:
    """Return which store a connection means, or why that is refused."""
    try:
        made = make()
    except Exception as error:
        # Airflow itself cannot read it
        return {"refused": str(error), "by": "Airflow"}
    try:
        return store_of(connection.place_of(made, lambda conn_id: None).url)
    except ValueError as error:
        return {"refused": str(error), "by": "lockstead"}


def main() -> dict[str, Any]:
    import logging

    logging.disable()
    seen: dict[str, Any] = {}
    for url in URLS:
        spelled = {
            f"{way} ({cls.__module__})": read(lambda make=make, cls=cls, url=url: make(cls, url))
            for way, make in SPELLINGS.items()
            for cls in classes()
        }
        spelled["environment"] = read(lambda url=url: of_environment(url))
        seen[url] = {"meant": store_of(url), "read": spelled}
    return seen


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
