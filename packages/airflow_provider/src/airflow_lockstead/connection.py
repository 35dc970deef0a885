"""The store and client object of an Airflow connection, cached for all tasks and waiters of a process.

Waiters share one local queue, and so one poller, if they share the store's URL and the client object: therefore the
object is made once and kept while the connection is unchanged. Must not know tasks. `naming` derives the URL from the
fields of a connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_lockstead import naming
from airflow_lockstead.spec import LockSpec, is_template
from airflow_lockstead.templates import rendered_url

if TYPE_CHECKING:
    from lockstead import AsyncLock, Client, Lock


FRESH: Final = 60.0
"""Seconds for which a connection is cached and not read again: a thousand waiters may begin at once."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store's address: its URL, which may contain credentials, and a client object with other credentials, if any."""

    url: str = field(repr=False)
    client: object | None = field(default=None, repr=False)

    def lock_url(self, key: str) -> str:
        """Return the URL of a lock in the store."""
        from lockstead import urls

        return urls.lock_url(self.url, key)


@dataclass(frozen=True, slots=True)
class _Known:
    """A cached connection: its fields, when they were read, and the store made from them."""

    said: tuple[Any, ...] = field(repr=False)
    read_at: float
    place: Place


# --- store and client object of a connection -------------------------------------------------------------------------


def redis_client(connection: Any) -> object:
    """Return a client object with a Redis connection's credentials and TLS options; it does not connect.

    Raises ValueError with one line if the client library is not installed.
    """
    try:
        import redis
    except ImportError as error:
        raise ValueError(
            f"the connection {connection.conn_id!r} needs Redis's client library: pip install 'lockstead[redis]'"
        ) from error

    extras = naming.extras_of(connection)
    ways: dict[str, Any] = {name: extras[name] for name in naming.REDIS_TLS if extras.get(name)}
    if "ssl_check_hostname" in ways:
        ways["ssl_check_hostname"] = naming.is_true(ways["ssl_check_hostname"])
    if naming.redis_url(connection).startswith("rediss:"):
        ways["ssl"] = True
    return redis.Redis(
        host=connection.host or "localhost",
        port=int(connection.port or 6379),
        username=connection.login or None,
        password=connection.password or None,
        **ways,
    )


def google_client(connection: Any) -> object:
    """Return a client object with a Google connection's credentials, from Airflow's own hook.

    Raises ValueError with one line if the connection has none. Other errors, such as a Google server that does not
    answer, are not converted.
    """
    from airflow_lockstead import compat

    who = f"the connection {connection.conn_id!r} gives no Google credentials"
    try:
        hook = connection.get_hook()
        ask = hook.get_credentials_and_project_id
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage
    except (ImportError, AttributeError, compat.AirflowException) as error:
        raise ValueError(
            f"{who}: is apache-airflow-providers-google installed, and its type google_cloud_platform? ({error})"
        ) from error

    try:
        credentials, project = ask()
    except (compat.AirflowException, DefaultCredentialsError, ValueError, FileNotFoundError, PermissionError) as error:
        raise ValueError(f"{who}: {' '.join(str(error).split())}") from error
    return storage.Client(project=project, credentials=credentials)


def place_of(connection: Any, find: Callable[[str], Any]) -> Place:
    """Return the store and client object of a connection. find returns another connection by its id.

    Raises ValueError, with one line, if the fields do not name exactly one store.
    """
    url, reference = naming.url_of(connection), naming.reference_of(connection)
    client: object | None = None
    if reference is not None:
        name, conn_id = reference
        other = find(conn_id)
        match name:
            case "redis_conn_id":
                url, client = url or naming.redis_url(other), redis_client(other)
            case "postgres_conn_id":
                url = naming.postgres_url(other, url)
            case _ if url:
                client = google_client(other)
            case _:
                raise ValueError(
                    f"the connection {connection.conn_id!r} names no bucket: put 'gs://bucket/prefix' into the host"
                )
    if not url:
        raise ValueError(f"the connection {connection.conn_id!r} names no store: put its URL into the host")
    url = naming.with_options(connection, url)
    naming.check(connection, url)
    return Place(url, client)


# --- cache ------------------------------------------------------------------------------------------------------------


class Places:
    """The stores of this process by connection, with one client object for all users of a connection."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def known(self, conn_id: str) -> Place | None:
        """Return the store of a connection from the cache; None if it is not there or too old."""
        found = self._known.get(conn_id)
        return found.place if found is not None and time.monotonic() < found.read_at + FRESH else None

    def place(self, conn_id: str) -> Place:
        """Return the store of a connection. ValueError, with one line, if the connection is missing or invalid."""
        with self._lock:
            if (fresh := self.known(conn_id)) is not None:
                return fresh
            connection = self._find(conn_id)
            reference = naming.reference_of(connection)
            other = None if reference is None else self._referenced(connection, *reference)
            said = (_said(connection), None if other is None else _said(other))
            before = self._known.get(conn_id)
            place = (
                before.place if before is not None and before.said == said else place_of(connection, lambda _: other)
            )
            self._known[conn_id] = _Known(said, time.monotonic(), place)
            return place

    def _referenced(self, connection: Any, name: str, conn_id: str) -> Any:
        try:
            return self._find(conn_id)
        except ValueError as error:
            raise ValueError(
                f"the connection {connection.conn_id!r} takes its credentials from {conn_id!r} ({name}), and there is "
                "no such connection"
            ) from error

    async def aplace(self, conn_id: str) -> Place:
        """Return the store of a connection without blocking the event loop: it is read in a separate thread."""
        if (fresh := self.known(conn_id)) is not None:
            return fresh
        from asgiref.sync import sync_to_async

        self._threads = self._threads or ThreadPoolExecutor(1, "lockstead-connection")
        # with asgiref, so that what Airflow calls in that thread can get back to this event loop
        ask = sync_to_async(self.place, thread_sensitive=False, executor=self._threads)
        place: Place = await ask(conn_id)
        return place


def _said(connection: Any) -> tuple[Any, ...]:
    names = ("conn_type", "host", "port", "schema", "login", "password", "extra")
    return tuple(getattr(connection, name, None) for name in names)


def find_connection(conn_id: str) -> Any:
    """Return a connection of Airflow; ValueError, with one line, if there is none."""
    from airflow_lockstead import compat

    try:
        return compat.BaseHook.get_connection(conn_id)
    except compat.AirflowNotFoundException as error:
        raise ValueError(
            f"there is no connection {conn_id!r}: make one of the type lockstead, or name the store by its URL; if "
            "there is one, Airflow's log says why it could not be read"
        ) from error


PLACES: Final = Places(find_connection)
"""The stores of this process: the only state of this package that outlives a task."""


# --- opening ----------------------------------------------------------------------------------------------------------


def rendered(task: Any, context: Any, spec: LockSpec) -> LockSpec:
    """Return the spec with its templates rendered for this run; ValueError, with one line, if that fails."""
    if not (texts := spec.templates):
        return spec
    from jinja2 import TemplateError

    jinja = task.get_template_env()
    try:
        said = {
            name: rendered_url(task, text, context, jinja) if name == "lock" else task.render_template(text, context)
            for name, text in texts.items()
        }
    except TemplateError as error:
        raise ValueError(f"a template of the lock cannot be rendered: {error}") from error
    return spec.named(said)


def as_granted(spec: LockSpec, written: LockSpec, ticket: str) -> LockSpec:
    """Return the spec with the lock's name as it was granted: a template may render differently later or elsewhere.

    written: the spec with its templates. Only a templated name is taken from the ticket, and never the server.
    """
    from lockstead import urls
    from lockstead.values import LeaseTicket

    said = LeaseTicket.parse(ticket)
    if written.lock is not None:
        return replace(spec, lock=urls.of_ticket(spec.lock or "", said)) if is_template(written.lock) else spec
    return replace(spec, key=said.key) if is_template(written.key or "") else spec


def lock(spec: LockSpec, owner: str | None = None, labels: Mapping[str, str] | None = None) -> Lock:
    """Return a blocking lock. owner: the owner or member name; labels: labels in addition to the spec's.

    Reads the connection, but does not open the store yet.
    """
    from airflow_lockstead import measuring
    from lockstead import Lock

    measuring.install()
    place = None if spec.lock is not None else PLACES.place(_conn_id(spec))
    settings = _settings(spec, owner)
    if labels:
        settings["labels"] = {**spec.labels, **labels}
    return spec.of_permits(Lock(_url(spec, place), client=place.client if place else None, **settings))


async def async_lock(spec: LockSpec, owner: str | None = None) -> AsyncLock:
    """Return an async lock. owner: the owner name."""
    from airflow_lockstead import measuring
    from lockstead import AsyncLock

    measuring.install()
    place = None if spec.lock is not None else await PLACES.aplace(_conn_id(spec))
    made = AsyncLock(_url(spec, place), client=place.client if place else None, **_settings(spec, owner))
    return spec.of_permits(made)


def reclaims(lock: Lock | AsyncLock) -> bool:
    """Return whether a retry takes over the lease of an earlier try. That of a reader or a permit expires."""
    from lockstead.wrapping.aio_permits import AsyncPermitLock
    from lockstead.wrapping.permits import PermitLock

    return lock.settings.mode == "exclusive" and not isinstance(lock, PermitLock | AsyncPermitLock)


def client(conn_id: str) -> Client:
    """Open the store of a connection, with a separate keeper; the caller must close it."""
    from lockstead import connect

    place = PLACES.place(conn_id)
    return connect(place.url, client=place.client)


def _conn_id(spec: LockSpec) -> str:
    if spec.conn_id is None:
        raise ValueError("the lock names neither a URL nor a connection")
    return spec.conn_id


def _url(spec: LockSpec, place: Place | None) -> str:
    return spec.lock or "" if place is None else place.lock_url(spec.key or "")


def _settings(spec: LockSpec, owner: str | None) -> dict[str, Any]:
    return spec.settings if owner is None else {**spec.settings, "owner": owner}
