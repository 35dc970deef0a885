"""Records in one SQLite file on a local disk, shared by the processes of one machine.

Time is the boot clock, never SQLite's `now`, which is the caller's wall clock. One counter for the whole file, computed
as `max(stored + 1, wall milliseconds)`, is both incarnation and fencing token: it outlives every record, and keeps
growing even if the file is lost. Must not know what the fields of a record mean.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar, cast

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.reading import COUNTER_MAX, DAMAGE, EPOCH_MAX
from lockstead.stores.bootclock import BootIdentity, boot_now
from lockstead.stores.kept import (
    DAMAGED,
    NO_HEAD,
    damaged_incarnation,
    is_damaged,
    is_expected,
    map_of_text,
    to_json,
    unreadable,
)
from lockstead.stores.paging import cursor, place, refused_cursor
from lockstead.stores.port import StoreBase
from lockstead.stores.sqlite.changes import Changes
from lockstead.stores.sqlite.file import is_unreadable
from lockstead.stores.sqlite.pool import NoFile, Pool
from lockstead.stores.sqlite.url import absolute, url_of
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="sqlite",
    guarantee="single machine: the boot clock and file locks of one kernel; never on a network file system",
    clock=StoreClock.ONE_CLOCK,
    tokens=TokenSource.NATIVE,
)

_AT: Final = "WHERE space = ? AND key = ? AND part = ?"
_COLUMNS: Final = "granted, revision, updated, boot, namespace, fields"
_SELECT: Final = f"SELECT {_COLUMNS} FROM record {_AT}"  # noqa: S608 - constants only, here and below
# two statements, because RETURNING first fills a temporary table: that took as long as the rest of a grant
_COUNTED: Final = "SELECT granted FROM meta"
_COUNT: Final = "UPDATE meta SET granted = ?"
_INSERT: Final = "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DELETE: Final = (
    f"DELETE FROM record {_AT} AND CAST(granted AS TEXT) = ? AND CAST(revision AS TEXT) = coalesce(?, revision)"  # noqa: S608
)
_UPDATE: Final = f"UPDATE record SET granted = ?, revision = ?, updated = ?, boot = ?, namespace = ?, fields = ? {_AT}"  # noqa: S608
_LIST: Final = (
    f"SELECT key, part, {_COLUMNS} FROM record WHERE space = :space "  # noqa: S608
    "AND substr(part, 1, length(:part)) = :part AND typeof(key) = 'text' AND typeof(part) = 'text' "
    "AND (key, part) > (CAST(:last_key AS TEXT), CAST(:last_part AS TEXT)) "
    "ORDER BY key, part LIMIT :page"
)

_OF_KEY: Final = "key = :key AND "
"""Added to a listing of one key, after its WHERE."""

_MEASURED: Final = _SELECT.replace("fields FROM", "NULL FROM")
_LISTED: Final = _LIST.replace(f"key, part, {_COLUMNS}", "CAST(key AS BLOB), CAST(part AS BLOB)")
"""Used if a row is too large to be read or is not text: the row without its fields, and the names only."""
_DISCARD: Final = f"DELETE FROM record {_AT}"  # noqa: S608

_At: TypeAlias = tuple[str, str, str]


class _Row(NamedTuple):
    """A row of the file. updated is seconds on the boot clock of boot and namespace ("" if unknown)."""

    granted: int
    revision: int
    updated: float
    boot: str
    namespace: str
    fields: str | None


class SqliteStore(StoreBase):
    """Records in one SQLite file. Guarantees nothing beyond one kernel, or if the file is moved while in use.

    now returns seconds of the boot clock identified by `here`; wall returns seconds since the epoch, used only for the
    counter.
    """

    traits = TRAITS

    def __init__(
        self,
        path: Path | str,
        *,
        now: Callable[[], float] = boot_now,
        wall: Callable[[], float] = time.time,
        here: Callable[[], BootIdentity] = BootIdentity.here,
    ) -> None:
        self._path = Path(absolute(path))
        self.url = url_of(self._path)
        self._now = now
        self._wall = wall
        self._find_place = here
        self._set_place(here())
        self._pool = Pool(self._path)
        self._changes = Changes(self._path)

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds.

        Raises StoreUnavailable (nothing was changed), OutcomeUnknown (the commit itself failed) or StoreRefused.
        """
        answer: object
        # reading does not create the file: with a mistyped path, every lock would look free
        match command:
            case Create():
                answer = self._pool.write(self._create, command, limit)
            case Extend() | Replace():
                answer = self._pool.write(self._change, command, limit)
            case Remove():
                answer = self._pool.write(self._remove, command, limit)
            case Read():
                try:
                    answer = self._pool.read(self._read, command, limit)
                except NoFile:
                    answer = Absent(self._now())
            case List():
                try:
                    answer = self._pool.read(self._list, command, limit)
                except NoFile:
                    answer = Listing(())
            case _:
                raise TypeError(f"not a command for a store: {type(command).__name__}")
        return cast(A, answer)

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self, connection: sqlite3.Connection, command: Read) -> Snapshot | Absent:
        row = _find(connection, _at(command.name))
        return Absent(self._now()) if row is None else self._shown(row)

    def _list(self, connection: sqlite3.Connection, command: List) -> Listing:
        space, (last_key, last_part) = command.space, place(command, 2) or ("", "")
        wanted: dict[str, object] = {"space": space.value, "key": command.key, "part": command.part_prefix}
        try:
            wanted |= {"last_key": _encoded(last_key), "last_part": _encoded(last_part)}
        except UnicodeEncodeError as error:
            raise refused_cursor() from error
        wanted["page"] = -1 if command.page is None else command.page
        try:
            rows = [(key, part, _Row(*row)) for key, part, *row in connection.execute(_of(_LIST, command), wanted)]
            names = [(key, part) for key, part, _ in rows]
        except sqlite3.Error as error:
            if not is_unreadable(error):
                raise
            names = [(_decoded(key), _decoded(part)) for key, part in connection.execute(_of(_LISTED, command), wanted)]
            rows = list(_each(connection, space.value, names))
        entries = tuple((Name(key, space, part), self._shown(row)) for key, part, row in rows)
        if len(names) != command.page:
            return Listing(entries)
        return Listing(entries, cursor(command, *names[-1]))

    def _shown(self, row: _Row) -> Snapshot:
        fields = _fields(row)
        return _unreadable(row, fields) if is_damaged(fields) else self._snapshot(row, fields)

    def _snapshot(self, row: _Row, fields: dict[str, str]) -> Snapshot:
        """Return the snapshot of a row, with times only if its writer used the same clock as we do."""
        incarnation, revision = str(row.granted), str(row.revision)
        if row.boot and self._boot and row.boot != self._boot:
            return Snapshot(fields, incarnation, revision, token=row.granted, dead=True)
        if self._is_here(row):
            return Snapshot(fields, incarnation, revision, row.updated, self._now(), row.granted)
        return Snapshot(fields, incarnation, revision, token=row.granted)

    def _is_here(self, row: _Row) -> bool:
        return bool(row.boot and row.namespace) and (row.boot, row.namespace) == (self._boot, self._namespace)

    # --- writing -------------------------------------------------------------------------------------------------

    # Each is carried out in a transaction, which is committed afterwards whatever it returns. It reads the clock there,
    # under the write lock, so that a write delayed before it cannot set `updated` back.

    def _change(self, connection: sqlite3.Connection, command: Extend | Replace) -> Snapshot | Conflict | Absent:
        row = _find(connection, _at(command.name))
        now = self._now()
        if row is None:
            return Absent(now)
        if not is_expected(command, str(row.granted), str(row.revision)):
            return Conflict()
        found = _fields(row)
        updated = max(row.updated, now) if not is_damaged(found) and self._is_here(row) else now
        if isinstance(command, Replace):
            fields = dict(command.fields)
            made = self._row(self._next(connection), 1, updated, fields)
            connection.execute(_COUNT, (made.granted,))
        elif is_damaged(found):
            raise StoreRefused(
                f"the record of {command.name.key!r} in {self._path} is damaged: {found[DAMAGE]}; "
                "break it with now=True (--now)"
            )
        else:
            fields = {**found, **command.fields}
            made = self._row(row.granted, row.revision + 1, updated, fields)
        connection.execute(_UPDATE, (*made, *_at(command.name)))
        return self._snapshot(made, fields)

    def _create(self, connection: sqlite3.Connection, command: Create) -> Snapshot | Conflict:
        fields = dict(command.fields)
        made = self._row(self._next(connection), 1, self._now(), fields)
        if connection.execute(_INSERT, (*_at(command.name), *made)).rowcount == 0:
            return Conflict()
        connection.execute(_COUNT, (made.granted,))
        return self._snapshot(made, fields)

    def _remove(self, connection: sqlite3.Connection, command: Remove) -> Removed | Conflict | Absent:
        at = _at(command.name)
        if command.incarnation.startswith(DAMAGED):  # it identifies exactly the unreadable row that was shown
            row = _find(connection, at)
            is_same = row is not None and _unreadable(row, {}).incarnation == command.incarnation
            is_removed = is_same and connection.execute(_DISCARD, at).rowcount > 0
        else:
            expected = (*at, command.incarnation, command.revision)
            is_removed = connection.execute(_DELETE, expected).rowcount > 0
        if is_removed:
            return Removed(self._now())
        return Absent(self._now()) if _find(connection, at) is None else Conflict()

    def _next(self, connection: sqlite3.Connection) -> int:
        """Return the counter's next number; the caller counts it if it is granted."""
        row = connection.execute(_COUNTED).fetchone()
        counted = row[0] if row is not None else None
        if not isinstance(counted, int) or not 0 <= counted < COUNTER_MAX:
            raise StoreRefused(
                f"the counter of grants in {self._path} was changed by another program: it is {str(counted)[:40]!r}; "
                "stop all processes that use the file and remove it"
            )
        return max(counted + 1, int(self._wall() * 1000))

    def _row(self, granted: int, revision: int, updated: float, fields: dict[str, str]) -> _Row:
        return _Row(granted, revision, updated, self._boot, self._namespace, to_json(fields))

    # --- waiting -------------------------------------------------------------------------------------------------

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Call on_change when the record has changed, from the thread that polls the file."""
        return self._changes.subscribe(name, on_change)

    @property
    def missing(self) -> str | None:
        """A message that the file does not exist yet; None if it does. The first lock creates it."""
        return None if self._pool.has_file() else f"there is no file {self._path} yet"

    # --- examining -----------------------------------------------------------------------------------------------

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002
        """Check the file, its disk, its locks between processes, and the clock."""
        from lockstead.stores.sqlite.doctor import examination

        return examination(self._path, self._find_place(), limit)

    # --- life ----------------------------------------------------------------------------------------------------

    def _set_place(self, place: BootIdentity) -> None:
        self._boot = place.boot or ""
        self._namespace = place.namespace or ""

    def after_fork(self) -> None:
        """Forget every inherited connection without closing it, even when the child ends."""
        self._pool = self._pool.forget()
        self._changes = self._changes.forget()
        self._set_place(self._find_place())

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back."""
        self._changes.close()
        self._pool.close()


def _of(listing: str, command: List) -> str:
    """Return the statement of a listing, of one key if it has one."""
    return listing if command.key is None else listing.replace("WHERE ", f"WHERE {_OF_KEY}", 1)


def _at(name: Name) -> _At:
    return name.space.value, name.key, name.part


def _fields(row: _Row) -> dict[str, str]:
    """Return the fields of a row; those of `unreadable` if another program or a disk failure damaged it."""
    if not _is_counted(row) or not isinstance(row.updated, float) or not abs(row.updated) <= EPOCH_MAX:
        return unreadable(NO_HEAD)
    return map_of_text(row.fields)


def _is_counted(row: _Row) -> bool:
    return isinstance(row.granted, int) and isinstance(row.revision, int)


def _unreadable(row: _Row, fields: dict[str, str]) -> Snapshot:
    incarnation = str(row.granted) if _is_counted(row) else damaged_incarnation(tuple(row))
    return Snapshot(fields, incarnation, str(row.revision))


def _find(connection: sqlite3.Connection, at: _At) -> _Row | None:
    """Return a row; without its fields if they are unreadable (too large, not text), all None if other columns are."""
    for statement in (_SELECT, _MEASURED):
        try:
            row = connection.execute(statement, at).fetchone()
        except sqlite3.Error as error:
            if not is_unreadable(error):
                raise
        else:
            return None if row is None else _Row(*row)
    return _Row._make((None,) * len(_Row._fields))


def _encoded(text: str) -> bytes:
    """Return the bytes of a text of the file, also of one that is no UTF-8."""
    return text.encode(errors="surrogateescape")


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _each(connection: sqlite3.Connection, space: str, names: list[tuple[str, str]]) -> Iterator[tuple[str, str, _Row]]:
    """Yield rows read one by one, so that an unreadable one hides no other. A name that is not UTF-8 is skipped."""
    for key, part in names:
        try:
            row = _find(connection, (space, key, part))
        except UnicodeEncodeError:
            continue
        if row is not None:
            yield key, part, row
