"""The scripts of requests that carry out commands, each by one transaction.

Acquiring writes once, in a transaction that also checks that it is the waiter's turn and removes it from the queue;
releasing deletes once. What exists instead is read only after such a transaction has failed: reading it in each would
make those that succeed a tenth slower. Must not know connections.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
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
)
from lockstead.stores import paging
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.encoding import NO_LEASE, Json, Kv, Root
from lockstead.stores.etcd.errors import LeaseGone
from lockstead.stores.etcd.extend import Extension
from lockstead.stores.etcd.leases import Leases
from lockstead.stores.etcd.queue import Place, Queue
from lockstead.stores.etcd.scripts import (
    ATTEMPTS_MAX,
    Beat,
    Operation,
    ask,
    cleared,
    doubtful,
    end,
    lifetime,
    look,
    shared,
    term_of,
)
from lockstead.stores.kept import is_damaged
from lockstead.values import Name


@dataclass(frozen=True, slots=True)
class Operations:
    """What the scripts of one store share: where its keys are, its leases and its queue places."""

    root: Root
    leases: Leases
    queue: Queue

    def script(self, command: Command[Any]) -> Operation[Any]:
        """Return the script that carries out a command."""
        match command:
            case Read():
                return self._read(command)
            case Extend():
                return Extension(self.root, self.leases, command).script()
            case Create():
                return self._create(command)
            case Remove():
                return self._remove(command)
            case Replace():
                return self._replace(command)
            case List():
                return self._list(command)
        raise TypeError(f"not a command for a store: {type(command).__name__}")

    def _read(self, command: Read) -> Operation[Snapshot | Absent]:
        kv, _term = yield from look(self.root, command.name)
        return Absent() if kv is None else kv.snapshot()

    def _list(self, command: List) -> Operation[Listing]:
        """Read one page, or all as of the revision of the first one."""
        start, stop = self.root.span(command.space, command.key, command.part_prefix)
        first = encoding.first_key(command, start, stop)
        entries: dict[Name, Kv] = {}
        limit = encoding.PAGE if command.page is None else command.page
        # of a whole space, keys are read first, so that the values of foreign keys are not read; a page can be smaller
        keys_only = command.key is None and command.page is None
        more: Json = {"limit": str(limit + 1), "keys_only": keys_only}
        while True:
            keys = {"key": first, "range_end": encoding.b64(stop)}
            body = yield from ask(encoding.range_of("List", keys, **more))
            revision = body["header"]["revision"]
            found, first = encoding.page_of(body)
            for item in (yield from _with_values(found, revision)) if keys_only else found:
                name = self.root.name_of(encoding.text(item["key"]), command.space)
                if name is not None and name.part.startswith(command.part_prefix):
                    kv = encoding.kv_of(item)
                    if name not in entries or not is_damaged(kv.fields):
                        entries[name] = kv
            if not first or command.page is not None:
                shown = tuple((name, kv.snapshot()) for name, kv in entries.items())
                return Listing(shown, paging.cursor(command, first) if first else None)
            more.setdefault("revision", revision)

    def _create(self, command: Create) -> Operation[Snapshot | Conflict]:
        base = encoding.below(self.root.base(command.name) + ":")
        absent = [encoding.compared(base, "create_revision", "0")]
        key = self.root.slot(command.name, encoding.SLOTS[0])
        return (yield from _Grant(self, command, key, absent, None).script())

    def _replace(self, command: Replace) -> Operation[Snapshot | Conflict | Absent]:
        kv, _term = yield from look(self.root, command.name)
        if kv is None:
            return Absent()
        if kv.created != command.incarnation or kv.changed != command.revision:
            return Conflict()
        same = encoding.compared_record(kv)
        return (yield from _Grant(self, command, kv.other_slot, same, kv).script())

    def _remove(self, command: Remove) -> Operation[Removed | Conflict | Absent]:
        name, created, base = command.name, command.incarnation, self.root.base(command.name)
        record = encoding.below(base + ":")
        lease = self.leases.of(name, created)
        if lease is not None and command.revision is None:
            # the usual case: the record is still on the lease that it shares with others, so no lease must end with it
            when = [encoding.compared(record, "create_revision", created), encoding.compared(record, "lease", lease)]
            body = yield from ask(encoding.txn("Remove", [encoding.delete(record)], when=when))
            if body.get("succeeded"):
                self.leases.forget(name, created)
                return Removed()
        kv = encoding.sought((yield from _read_instead("Remove", encoding.seeking(base))))
        if kv is None or kv.created != created:
            self.leases.forget(name, created)
            return Absent() if kv is None else Conflict()
        if command.revision not in (None, kv.changed):
            return Conflict()
        same = encoding.compared_record(kv)[: 1 if command.revision is None else 2]
        # foreign keys beside the record are deleted, too
        body = yield from ask(encoding.txn("Remove", [encoding.delete(record)], when=same))
        if not body.get("succeeded"):
            return Conflict()
        self.leases.forget(name, created)
        if kv.is_alone:
            yield from end(kv.lease)
        return Removed()


class _Grant:
    """A Create or Replace: the key that it writes, what it compares, and the waiter's place in the queue."""

    def __init__(
        self, operations: Operations, command: Create | Replace, key: str, expected: list[Json], old: Kv | None
    ) -> None:
        self._operations = operations
        self._command = command
        self._key = key
        self._expected = expected
        self._old = old
        self._place: Place | None = None

    def script(self) -> Operation[Snapshot | Conflict]:
        """Return the record as written, or why it could not be written."""
        command = self._command
        with self._operations.queue.acquiring(command.name, command.waiter_id) as self._place:
            return (yield from self._attempted())

    def _attempted(self) -> Operation[Snapshot | Conflict]:
        operations, command = self._operations, self._command
        gone: LeaseGone | None = None
        for _ in range(ATTEMPTS_MAX):
            beat = None
            if command.min_retention > 0:
                beat = yield from shared(operations.leases, encoding.ttl_of(command.min_retention))
            lease = NO_LEASE if beat is None else beat.lease
            kv = Kv(self._key, "", "", lease, command.fields, command.min_retention, is_alone=False)
            try:
                body = yield from ask(self._transaction(kv))
            except LeaseGone as error:
                gone = error
                operations.leases.retire(lease)
                yield from operations.queue.check_session(self._place)
                continue
            except (StoreUnavailable, StoreRefused):
                raise
            except BaseException:
                # it may still be applied, and then this lease must not keep the unknown record alive
                operations.leases.retire(lease)
                raise
            if body.get("succeeded"):
                return (yield from self._granted(body, kv, beat))
            gone = None
            seen, first = yield from self._observed()
            if (seen and seen.changed) != (self._old and self._old.changed) or not command.waiter_id:
                return Conflict()
            if first and encoding.text(first[0]["key"]) != operations.root.place(command.name, command.waiter_id):
                if first[0].get("lease", NO_LEASE) == NO_LEASE and (yield from cleared(operations.root, command.name)):
                    continue
                return Conflict(is_queued=True)
            created = first[0]["create_revision"] if first else None
            self._place = operations.queue.note_place(command.name, command.waiter_id, created)
        if gone is not None:
            raise StoreUnavailable(
                f"the leases for {command.name.key!r} were gone {ATTEMPTS_MAX} times as soon as etcd had granted them; "
                "nothing was written; find what revokes leases in this etcd"
            ) from gone
        return Conflict(is_queued=True)  # each time, another waiter was in the queue at the moment of the write

    def _observed(self) -> Operation[tuple[Kv | None, list[Json]]]:
        """Return the record that exists instead, and who is first in the queue."""
        root, name = self._operations.root, self._command.name
        order = {"limit": "1", "sort_order": "ASCEND", "sort_target": "CREATE"}
        first = encoding.get(encoding.below(root.queue(name)), keys_only=True, **order)
        found = yield from _read_instead(type(self._command).__name__, [*encoding.seeking(root.base(name)), first])
        return encoding.sought(found[: encoding.SOUGHT]), found[-1]["response_range"].get("kvs") or []

    def _transaction(self, kv: Kv) -> encoding.Request:
        root, command, place = self._operations.root, self._command, self._place
        expected = list(self._expected)
        success = [] if self._old is None else [encoding.delete(encoding.at(self._old.key))]
        success.append(encoding.put_record(kv))
        if command.waiter_id:
            queue = encoding.below(root.queue(command.name))
            if place is None or place.created is None:
                expected.append(encoding.compared(queue, "create_revision", "0"))
            else:
                # no place in the queue is older than the waiter's own
                expected.append(encoding.compared(queue, "create_revision", str(int(place.created) - 1), "GREATER"))
                success.append(encoding.delete(encoding.at(root.place(command.name, command.waiter_id))))
            success += self._operations.queue.closing(place)
        return encoding.txn(type(command).__name__, success, when=expected)

    def _granted(self, body: Json, kv: Kv, beat: Beat | None) -> Operation[Snapshot]:
        operations, command, old = self._operations, self._command, self._old
        created = body["header"]["revision"]
        if self._place is not None:
            operations.queue.granted(self._place, created)
        if old is not None:
            operations.leases.forget(command.name, old.created)
        kv = replace(kv, created=created, changed=created)
        if beat is not None:
            operations.leases.hangs(command.name, beat.lease, created, boot_now(), command.renew_every)
        try:
            answer = yield from self._counted(kv, beat, term_of(body))
        except StoreUnavailable as error:
            raise doubtful(error, f"{command.name.key!r} was acquired") from error
        if old is not None and old.is_alone:
            yield from end(old.lease)
        return answer

    def _counted(self, kv: Kv, beat: Beat | None, term: str) -> Operation[Snapshot]:
        operations, command = self._operations, self._command
        if beat is None:
            return kv.snapshot()
        if beat.is_proved(term):
            if beat.term is not None:
                operations.leases.beat(beat.lease, beat.sent_at, beat.ttl)
            return kv.snapshot(beat.sent_at, lifetime(command.min_retention, beat))
        renewal = Extend(command.name, {}, kv.created, lifetime=command.lifetime)
        proved = yield from Extension(operations.root, operations.leases, renewal).script()
        if not isinstance(proved, Snapshot):
            raise OutcomeUnknown(f"{command.name.key!r} was acquired and is already gone")
        return proved


def _with_values(found: list[Json], revision: str) -> Operation[list[Json]]:
    """Return keys of a range with the values, at a revision, of those that can be records."""
    items = {item["key"]: item for item in found}
    keys = [key for key in items if encoding.is_slot(key)]
    for first in range(0, len(keys), encoding.GETS_MAX):
        some = keys[first : first + encoding.GETS_MAX]
        gets = [encoding.get({"key": key}, revision=revision) for key in some]
        body = yield from ask(encoding.txn("List", gets))
        for one in body["responses"]:
            for item in one["response_range"].get("kvs", ()):
                items[item["key"]] = item
    return list(items.values())


def _read_instead(what: str, gets: list[Json]) -> Operation[list[Json]]:
    """Read what exists after a transaction has failed: nothing was written, even if the outcome of this is unknown."""
    try:
        body = yield from ask(encoding.txn(what, gets))
    except OutcomeUnknown as error:
        raise StoreUnavailable(f"nothing was written, and what exists instead could not be read: {error}") from error
    responses: list[Json] = body["responses"]
    return responses
