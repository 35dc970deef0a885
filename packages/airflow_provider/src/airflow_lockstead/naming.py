"""The store URL of an Airflow connection, from its fields. Pure; accepts any object with the attributes of Airflow's
`Connection`.

A connection is written in a form, as JSON or as a URI. Airflow splits a URI into fields: of
`lockstead://redis://user:secret@host:6379/3?prefix=apt` the host is `redis://host`, and port, schema, login, password
and extras have the rest. The URL is joined from all of them again. A value given twice, or one that Airflow lost, is an
error: a lock in a different store than intended would exclude nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any, Final
from urllib.parse import quote, urlencode

from airflow_lockstead.fields import FIELDS

REFERENCES: Final = tuple(FIELDS)
"""The extras that name another connection, whose credentials are used."""

CONN_TYPE: Final = "lockstead"
ONE_SERVER: Final = frozenset({"redis", "rediss"})
"""Schemes whose URL names one server."""

REDIS_TLS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
NOT_LIBPQ: Final = frozenset({"schema", "listen", "listen_host", "listen_port", "user", "password"})
"""Options of the PostgreSQL store that are not taken from the extras of an Airflow Postgres connection: they have
another meaning there, or a field of their own."""

FALSE: Final = frozenset({"", "0", "false", "no", "off", "none"})
AS_JSON: Final = "write the connection as JSON, with the whole URL as its host"


def extras_of(connection: Any) -> dict[str, str]:
    """Return a connection's extras as text, as all extras of a URI are.

    Raises TypeError if they are not an object, ValueError for nested values in a lockstead connection.
    """
    extras = connection.extra_dejson or {}
    if not isinstance(extras, Mapping):
        raise TypeError(f"the extra of the connection {connection.conn_id!r} is not a JSON object")
    nested = [name for name, value in extras.items() if isinstance(value, list | dict)]
    if nested and connection.conn_type == CONN_TYPE:
        raise ValueError(f"the extra {nested[0]!r} of the connection {connection.conn_id!r} is not a plain value")
    return {name: _text(value) for name, value in extras.items() if value is not None and name not in nested}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def is_true(text: str) -> bool:
    """Return whether a text means true: not one of `FALSE`."""
    return text.lower() not in FALSE


def reference_of(connection: Any) -> tuple[str, str] | None:
    """Return (extra, connection id) of the extra that names another connection, or None; ValueError for several."""
    extras = extras_of(connection)
    found = [(name, extras[name]) for name in REFERENCES if extras.get(name)]
    if len(found) > 1:
        raise ValueError(
            f"the connection {connection.conn_id!r} names {' and '.join(name for name, _ in found)}: leave one"
        )
    return found[0] if found else None


def url_of(connection: Any) -> str:
    """Return the URL of the store that a connection itself names, with its credentials; empty if it names none.

    Raises ValueError, with one line that shows no secret, if the fields do not name exactly one store.
    """
    who = f"the connection {connection.conn_id!r}"
    if (connection.conn_type or CONN_TYPE).lower() != CONN_TYPE:
        raise ValueError(
            f"{who} is of the type {connection.conn_type!r}, not {CONN_TYPE!r}: a URI begins with '{CONN_TYPE}://', "
            "and a connection of another type is named in an extra (redis_conn_id, postgres_conn_id, google_conn_id)"
        )
    extras, host = extras_of(connection), (connection.host or "").strip()
    whole, port, path = extras.get("url", ""), connection.port, connection.schema or ""
    if whole and (host or port is not None or path):
        raise ValueError(f"{who} names a store twice, by its host, port or schema and by the extra 'url': leave one")
    url = whole or _joined(who, host, port, path)
    has_user = bool(connection.login or connection.password)
    if has_user and reference_of(connection) is not None:
        raise ValueError(f"{who} has a login or password and takes credentials from another connection: leave one")
    return with_user(who, url, connection.login, connection.password) if url else url


def _joined(who: str, host: str, port: int | None, path: str) -> str:
    """Join host, port and path that Airflow split."""
    scheme, has_scheme, rest = host.partition("://")
    if port is None and not path and not has_scheme:
        # 'memory:', or empty
        if host and ":" not in host:
            raise ValueError(f"{_no_scheme(who)}; {AS_JSON}")
        return host
    if not has_scheme:
        raise ValueError(f"{_no_scheme(who)}, or Airflow has lost it; {AS_JSON}")
    if _is_six(rest):
        # Airflow removes the brackets, and everything around them
        if scheme.lower() not in ONE_SERVER:
            raise ValueError(f"{who}: of several hosts Airflow keeps the one in brackets alone; {AS_JSON}")
        rest = f"[{rest}]"
    if (port is not None or path) and (set("/?@") & set(rest) or (port is not None and _has_port(rest))):
        raise ValueError(f"{who} says port, path or user twice: in its host and beside it; {AS_JSON} and nothing else")
    where = rest if port is None else f"{rest}:{port}"
    return f"{scheme}://{where}" + (f"/{quote(path, safe='/:@!$&*+,;=')}" if path else "")


def _no_scheme(who: str) -> str:
    return f"the host of {who} is not a store URL: it has no scheme, as in 'gs://bucket/locks' or 'redis://host/0'"


def _is_six(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _has_port(host: str) -> bool:
    return host.rpartition("]")[2].rpartition(":")[2].isdigit() and ":" in host.rpartition("]")[2]


def with_user(who: str, url: str, login: str | None, password: str | None) -> str:
    """Return a store's URL with login and password added; ValueError if it has a user, or its store accepts none."""
    from lockstead import urls

    if not (login or password):
        return url
    if urls.parts(url)[1]:
        raise ValueError(f"{who} has a login or password, and its URL names a user, too: leave one")
    try:
        return urls.with_user(url, login or "", password or "")
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None


def with_options(connection: Any, url: str) -> str:
    """Return a store's URL with the extras added as its query: Airflow puts the query of a URI into the extras."""
    options = {name: text for name, text in extras_of(connection).items() if name not in {*REFERENCES, "url"}}
    who = f"the connection {connection.conn_id!r}"
    if unclear := [name for name, text in options.items() if " " in text]:
        # Airflow turns each '+' of a URI into a space
        raise ValueError(f"{who}: the extra {unclear[0]!r} has a space in it, or a '+' that Airflow lost; {AS_JSON}")
    if not options:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options, quote_via=quote)}"


def check(connection: Any, url: str) -> None:
    """Raise ValueError, with one line that names the connection, for a URL that is not a store of several processes."""
    from lockstead import urls

    who = f"the connection {connection.conn_id!r}"
    try:
        urls.check_store(url)
    except ValueError as error:
        raise ValueError(f"{who} does not name a store: {error}") from None
    if not urls.spans_processes(url):
        scheme = url.partition(":")[0]
        raise ValueError(
            f"{who} names a {scheme}: store, which lives in one process: every task is a process of its own"
        )


# --- Airflow's own connections ----------------------------------------------------------------------------------------


def redis_url(connection: Any) -> str:
    """Return the URL of an Airflow Redis connection, without credentials."""
    extras = extras_of(connection)
    wants_tls = any(extras.get(name) for name in REDIS_TLS) or connection.conn_type == "rediss"
    scheme = "rediss" if is_true(extras["ssl"] if "ssl" in extras else str(wants_tls)) else "redis"
    database = extras.get("db") or connection.schema or "0"
    return f"{scheme}://{_bracketed(connection.host or 'localhost')}:{connection.port or 6379}/{database}"


def postgres_url(connection: Any, base: str = "") -> str:
    """Return the URL of an Airflow Postgres connection, with credentials.

    base: the store URL of the lockstead connection, if it has one; then only user and password are added to it.
    """
    from lockstead import urls

    if base:
        return with_user(f"the connection {connection.conn_id!r}", base, connection.login, connection.password)
    known = urls.options("postgresql") - NOT_LIBPQ
    options = {name: value for name, value in extras_of(connection).items() if name in known}
    # a single port applies to all hosts, but in a libpq URL it would apply only to the last one
    port = f":{connection.port}" if connection.port else ""
    hosts = (connection.host or "localhost").split(",")
    url = f"postgresql://{','.join(_bracketed(host) + port for host in hosts)}/{quote(connection.schema or '')}"
    url += f"?{urlencode(options, quote_via=quote)}" if options else ""
    return with_user(f"the connection {connection.conn_id!r}", url, connection.login, connection.password)


def _bracketed(host: str) -> str:
    return f"[{host}]" if _is_six(host) else host
