"""Use of the driver: connecting, statements without retries and with a time limit, and forks.

The driver's own timeouts use the wall clock, so every wait here is done by this module. Must not know commands.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

import cassandra
from cassandra import ConsistencyLevel, cluster
from cassandra.auth import PlainTextAuthProvider
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    NoSpeculativeExecutionPolicy,
)
from cassandra.query import PreparedStatement, dict_factory

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.cassandra import rows
from lockstead.stores.cassandra.bounded import BoundedRows, bounded, names_of
from lockstead.stores.cassandra.errors import (
    BAD_STATE,
    PROTOCOL,
    failure,
    is_none_known,
    is_unknown_there,
    not_created,
    unreachable,
)
from lockstead.stores.cassandra.url import Where
from lockstead.stores.paging import refused_cursor

RECONNECT_EVERY: Final = 1.0
"""Seconds between two attempts to reconnect to a lost node; the driver's default grows to ten minutes."""

HEARTBEAT: Final = 5.0
"""Seconds of silence after which a heartbeat is sent, and the time its reply may take; so a dead connection is noticed
within twice as long."""

FORGOTTEN: Final = 3 * RECONNECT_EVERY
"""Seconds without any known node after which we connect anew, to the nodes of the URL. The driver forgets nodes that
the node of its control connection does not know, as one that has just started may not; once that one is gone, the
driver knows no node."""

STEP_LIMIT: Final = 10.0
"""Seconds that one step of connecting may take; a caller waits no longer than its own limit."""

AGREE_EVERY: Final = 0.2
"""Seconds between two checks whether the nodes agree on the created schema."""

GRACE: Final = 0.05
"""Seconds to wait for the driver's own timeout, which keeps a late reply away from later requests."""

Found = list[Mapping[str, Any]]
MakeCluster = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Opened:
    """A connected cluster with prepared statements; profile is the execution profile of the statements."""

    cluster: Any
    session: Any
    profile: Any
    prepared: Mapping[str, PreparedStatement]

    def close(self, limit: float = 2.0) -> None:
        """Shut the cluster down, waiting at most `limit` seconds: a thread of the driver may hang in a connection."""
        ending = threading.Thread(target=self.cluster.shutdown, daemon=True, name="lockstead-cassandra-end")
        ending.start()
        ending.join(limit)


class Connection:
    """One cluster, connected on first use in a separate thread, so that each caller waits only within its limit."""

    def __init__(self, where: Where, make: MakeCluster | None) -> None:
        self._where = where
        self._make = make
        self._lock = threading.Lock()
        self._opening: Future[Opened] | None = None
        self._none_since: float | None = None
        self._is_closed = False

    def ask(self, statement: str, values: Sequence[object], ends_at: float) -> Found:
        """Execute a statement and return the rows. Raises the errors of `failure`.

        ends_at is on the monotonic clock. The statement is sent once, to one node.
        """
        return self.page(statement, values, ends_at, None)[0]

    def page(
        self, statement: str, values: Sequence[object], ends_at: float, size: int | None, state: bytes | None = None
    ) -> tuple[Found, bytes | None]:
        """Execute a query and return about `size` rows, from `state` on, and the state of the next page, if any.

        size: None for all rows. Raises the errors of `failure`; StoreRefused for a state that the server did not give.
        """
        opened = self._opened(ends_at)
        writes = statement in rows.WRITES
        left = ends_at - time.monotonic()
        if left <= 0:
            raise StoreUnavailable(f"{self._where.url}: no time left to send the request")
        try:
            bound = opened.prepared[statement].bind(values)
            bound.fetch_size = size or bound.fetch_size
        except Exception as error:
            raise StoreRefused(
                f"{self._where.url}: {rows.TABLE} has other columns than lockstead creates; drop it, or use another "
                "keyspace"
            ) from error
        future = opened.session.execute_async(bound, timeout=left, execution_profile=opened.profile, paging_state=state)
        answers: SimpleQueue[Found | BaseException | None] = SimpleQueue()
        future.add_callbacks(answers.put, answers.put)
        found: Found = []
        while True:
            try:
                answer = answers.get(timeout=max(0.0, ends_at - time.monotonic()) + GRACE)
            except Empty:
                text = f"{self._where.url}: no answer within the limit"
                raise (OutcomeUnknown(text) if writes else StoreUnavailable(text)) from None
            if isinstance(answer, BaseException):
                if is_none_known(answer):
                    self._forget(opened)
                if (
                    state is not None
                    and isinstance(answer, BAD_STATE)
                    and not isinstance(answer, cassandra.Unauthorized)
                ):
                    raise refused_cursor() from answer
                raise failure(answer, self._where.url, writes=writes) from answer
            found += answer or ()
            self._none_since = None
            if not future.has_more_pages:
                return found, None
            if size is not None:
                return found, future.result().paging_state
            future.start_fetching_next_page()

    def look(self, cql: str, values: Sequence[object], limit: float) -> Found:
        """Execute a query on the server's system tables; raises the driver's errors once connected."""
        opened = self._opened(time.monotonic() + limit)
        return list(opened.session.execute(cql, values, timeout=limit, execution_profile=opened.profile))

    def _opened(self, ends_at: float) -> Opened:
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable(f"the store {self._where.url} is closed")
            opening = self._opening
            if opening is None or (opening.done() and opening.exception() is not None):
                opening = self._opening = Future()
                threading.Thread(
                    target=self._open, args=(opening,), daemon=True, name="lockstead-cassandra-connect"
                ).start()
        try:
            return opening.result(max(0.0, ends_at - time.monotonic()))
        except TimeoutError:
            raise StoreUnavailable(f"{self._where.url}: not connected within the limit") from None
        except StoreError as error:
            # all waiting callers get the same failure, each with its own traceback
            raise type(error)(str(error)) from error.__cause__

    def _forget(self, opened: Opened) -> None:
        """Reconnect at the next request if no node was known for FORGOTTEN seconds; not for a caller's own cluster."""
        now = time.monotonic()
        with self._lock:
            if self._none_since is None:
                self._none_since = now
            if self._make is not None or _result(self._opening) is not opened or now - self._none_since < FORGOTTEN:
                return
            self._opening = self._none_since = None
        opened.close(0.0)

    def _open(self, opening: Future[Opened]) -> None:
        try:
            opened = connect(self._where, self._make or (lambda: cluster_of(self._where)))
        except BaseException as error:  # noqa: BLE001 - raised in the callers that wait for this thread
            opening.set_exception(error if isinstance(error, StoreError) else unreachable(error, self._where.url))
            return
        with self._lock:
            # check and set under one lock, or a close in between would leave the cluster open
            if self._opening is opening and not self._is_closed:
                opening.set_result(opened)
                return
        opening.set_exception(StoreUnavailable(f"the store {self._where.url} is closed"))
        opened.close()

    def after_fork(self) -> None:
        """Forget the inherited connections without closing them, because their threads exist only in the parent."""
        _INHERITED.append(self._opening)
        if (opened := _result(self._opening)) is not None:
            _disown(opened.cluster)
        self._lock = threading.Lock()
        self._opening = None

    def close(self) -> None:
        """Close what was opened. Idempotent."""
        with self._lock:
            opened = None if self._is_closed else _result(self._opening)
            self._is_closed = True
        if opened is not None:
            opened.close()


def _result(opening: Future[Opened] | None) -> Opened | None:
    """Return what was opened; None if it failed or has not ended."""
    if opening is None or not opening.done() or opening.exception() is not None:
        return None
    return opening.result()


# --- connecting --------------------------------------------------------------------------------------------------


def cluster_of(where: Where) -> Any:
    """Return an unconnected cluster object configured from the URL."""
    profile = cluster.ExecutionProfile(load_balancing_policy=DCAwareRoundRobinPolicy(where.datacenter or None))
    return cluster.Cluster(
        connection_class=bounded(
            names_of(where.hosts) if where.tls else {},
            refuses_clear=bool(where.user) and not where.tls and not where.may_be_clear,
        ),
        contact_points=[cluster.DefaultEndPoint(host, port) for host, port in where.hosts],
        port=where.hosts[0][1],
        auth_provider=PlainTextAuthProvider(where.user, where.password) if where.user else None,
        ssl_context=where.tls_context() if where.tls else None,
        execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile},
        protocol_version=PROTOCOL,
        reconnection_policy=ConstantReconnectionPolicy(RECONNECT_EVERY, max_attempts=None),
        idle_heartbeat_interval=HEARTBEAT,
        idle_heartbeat_timeout=HEARTBEAT,
        connect_timeout=STEP_LIMIT / 2,
        control_connection_timeout=STEP_LIMIT / 2,
        # a cluster may have thousands of tables; we use only one
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        compression=False,
    )


def connect(where: Where, make: MakeCluster) -> Opened:
    """Connect, create the table if missing and prepare every statement. Raises StoreUnavailable or StoreRefused."""
    made = make()
    try:
        try:
            session = made.connect()
        except Exception as error:
            raise unreachable(error, where.url) from error
        session.client_protocol_handler = BoundedRows
        profile = _profile(session)
        return Opened(made, session, profile, _prepared(session, profile, where))
    except BaseException:
        made.shutdown()
        raise


def _profile(session: Any) -> Any:
    """Return the cluster's own profile without retries and speculative execution, which a caller's profile may have."""
    try:
        return session.execution_profile_clone_update(
            cluster.EXEC_PROFILE_DEFAULT,
            row_factory=dict_factory,
            retry_policy=FallthroughRetryPolicy(),
            speculative_execution_policy=NoSpeculativeExecutionPolicy(),
            request_timeout=STEP_LIMIT,
        )
    except ValueError as error:
        raise StoreRefused(
            "the Cluster must be made with execution profiles, or with none of their settings"
        ) from error


def _prepared(session: Any, profile: Any, where: Where) -> Mapping[str, PreparedStatement]:
    ends_at = time.monotonic() + STEP_LIMIT
    has_tried = False
    while True:
        try:
            return _prepare_all(session, where)
        except cassandra.InvalidRequest as error:
            # the keyspace or table is missing, or was created but is not known to every node yet
            if has_tried and not (is_unknown_there(error) and time.monotonic() < ends_at):
                raise failure(error, where.url, writes=False) from error
        except Exception as error:
            raise failure(error, where.url, writes=False) from error
        if has_tried:
            time.sleep(AGREE_EVERY)
        _create(session, profile, where, ends_at)
        has_tried = True


def _prepare_all(session: Any, where: Where) -> Mapping[str, PreparedStatement]:
    into = f'"{where.keyspace}".{rows.TABLE}'
    is_local = where.consistency == "local_serial"
    serial = ConsistencyLevel.LOCAL_SERIAL if is_local else ConsistencyLevel.SERIAL
    quorum = ConsistencyLevel.LOCAL_QUORUM if is_local else ConsistencyLevel.QUORUM
    prepared = {}
    for text in (*rows.WRITES, *rows.SERIAL_READS, rows.LIST_ALL):
        statement = session.prepare(text.format(into=into))
        statement.consistency_level = serial if text in rows.SERIAL_READS else quorum
        statement.serial_consistency_level = serial
        statement.is_idempotent = False
        if text in rows.SERIAL_READS:
            statement.fetch_size = None  # pages would be read at different times
        prepared[text] = statement
    return prepared


def _create(session: Any, profile: Any, where: Where, ends_at: float) -> None:
    """Create keyspace and table if missing. What exists is not changed and needs no permission to create."""
    names = {"keyspace": where.keyspace, "replication": where.replication_cql, "table": rows.TABLE}
    keyspace, table = rows.CREATE_KEYSPACE.format(**names), rows.CREATE_TABLE.format(**names)
    found = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"
    while True:
        try:
            if not list(session.execute(found, (where.keyspace,), execution_profile=profile)):
                session.execute(keyspace, execution_profile=profile)
            session.execute(table, execution_profile=profile)
        except Exception as error:
            # the next node may not know the new keyspace yet
            if not is_unknown_there(error) or time.monotonic() >= ends_at:
                raise not_created(error, where.url, "; ".join((keyspace, table))) from error
            time.sleep(AGREE_EVERY)
        else:
            return


# --- after a fork ------------------------------------------------------------------------------------------------

_INHERITED: Final[list[object]] = []
"""What a child inherited and must neither use nor close; referenced here, so that Python does not close it either."""


def _disown(inherited: Any) -> None:
    """Keep the driver's clean-up from touching the parent's cluster.

    The clean-up runs when the child connects (the event loop notices the fork and closes its connections) and when the
    child exits, and takes locks that a thread of the parent may have held at the fork.
    """
    cluster._clusters_for_shutdown.discard(inherited)
    for kind in inherited.connection_class.__mro__:
        reactor: Any = sys.modules.get(kind.__module__)
        if getattr(reactor, "_global_loop", None) is not None:
            _INHERITED.append(reactor._global_loop)
            reactor._global_loop = None
