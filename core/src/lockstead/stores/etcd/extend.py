"""Renewal of a record: a KeepAlive of the lease it hangs on, then a read that proves it.

A KeepAlive proves nothing about the record, so the record is read after it, and must hang on the same lease. A record
on a shared lease of another store, or on one of ours that was retired, is moved by a write. Must not know connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockstead.errors import StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Extend, Snapshot
from lockstead.reading import DAMAGE
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.encoding import NO_LEASE, Kv, Root
from lockstead.stores.etcd.errors import LeaseGone
from lockstead.stores.etcd.leases import Leases
from lockstead.stores.etcd.scripts import (
    ATTEMPTS_MAX,
    Beat,
    Operation,
    ask,
    doubtful,
    end,
    grant,
    keep_alive,
    lifetime,
    look,
    shared,
    term_of,
)
from lockstead.stores.kept import is_damaged
from lockstead.values import Name

Answer = Snapshot | Conflict | Absent


def judged(leases: Leases, command: Extend, kv: Kv | None, beat: Beat | None, term: str) -> Answer | None:
    """Return the result of a renewal, from a record that was read in `term` after the KeepAlive's reply.

    None if the record hangs on another lease, or a new leader was elected: an `Extension` is needed.
    """
    refused = refusal(leases, command, command.revision, kv)
    if refused is not None or kv is None:
        return refused
    return counted(leases, command.name, kv, beat) if beat is not None and beat.proves(kv, term) else None


def counted(leases: Leases, name: Name, kv: Kv, beat: Beat) -> Snapshot:
    """Note a renewal that is proved, and return the record."""
    leases.hangs(name, beat.lease, kv.created, boot_now(), is_alone=kv.is_alone)
    leases.beat(beat.lease, beat.sent_at, beat.ttl)
    return kv.snapshot(beat.sent_at, lifetime(kv.min_retention, beat))


def refusal(leases: Leases, command: Extend, revision: str | None, kv: Kv | None) -> Absent | Conflict | None:
    """Return why a record is not the expected one; None if it is."""
    expected = command.incarnation
    if expected is not None and (kv is None or kv.created != expected):
        leases.forget(command.name, expected)
    if kv is None:
        return Absent()
    if expected not in (None, kv.created) or revision not in (None, kv.changed):
        return Conflict()
    return None


class Extension:
    """An Extend: the fields that are still to be written, the expected revision, and the lease."""

    __slots__ = ("_command", "_fields", "_has_written", "_leases", "_left", "_revision", "_root", "_spare")

    def __init__(self, root: Root, leases: Leases, command: Extend) -> None:
        self._root = root
        self._leases = leases
        self._command = command
        self._fields: Mapping[str, str] = command.fields
        self._revision = command.revision
        self._has_written = False
        self._spare: Beat | None = None
        self._left: list[str] = []

    def script(self) -> Operation[Answer]:
        """Return the record as renewed, or why it is not the expected one."""
        try:
            answer = yield from self._attempted()
        except StoreUnavailable as error:
            if self._has_written:
                raise doubtful(error, f"the record of {self._command.name.key!r} was written") from error
            raise
        for lease in self._left if self._spare is None else [*self._left, self._spare.lease]:
            yield from end(lease)
        return answer

    def _attempted(self) -> Operation[Answer]:
        command, leases = self._command, self._leases
        beat = yield from self._known()
        kv, term = yield from look(self._root, command.name)
        for _ in range(ATTEMPTS_MAX):
            refused = refusal(leases, command, self._revision, kv)
            if refused is not None or kv is None:
                return refused or Absent()
            if kv.lease == NO_LEASE and kv.min_retention <= 0:
                # it does not expire, so there is only the write
                if self._has_written:
                    return kv.snapshot()
                kv, term = yield from self._written(kv, None)
                continue
            if not self._fields and beat is not None and beat.proves(kv, term):
                return counted(leases, command.name, kv, beat)
            beat = yield from self._beat(kv)
            if self._fields or beat.lease != kv.lease:
                kv, term = yield from self._written(kv, beat)
            else:
                kv, term = yield from look(self._root, command.name)
        raise StoreUnavailable(
            f"the record of {command.name.key!r} could not be renewed: in each of {ATTEMPTS_MAX} attempts, the record, "
            "its lease or etcd's leader had changed"
        )

    def _known(self) -> Operation[Beat | None]:
        """Renew the lease that the record hangs on as far as we know, if there is nothing to write."""
        command = self._command
        if command.incarnation is None:
            return None
        (known,) = self._leases.wanted([(command.name, command.incarnation)], boot_now())
        if self._fields or known is None or not known.is_good:
            return None
        return (yield from self._kept_alive(known.lease))

    def _kept_alive(self, lease: str) -> Operation[Beat | None]:
        beat = (yield from keep_alive(lease)).get(lease)
        if beat is None:
            self._leases.retire(lease)
        return beat

    def _beat(self, kv: Kv) -> Operation[Beat]:
        """Renew the lease of a record, or return another one to move it to.

        A shared lease of another store is not renewed: that would keep all records of a process alive that may be dead.
        """
        ttl = encoding.ttl_of(kv.min_retention)
        is_ours, is_good = self._leases.ours(kv.lease, boot_now())
        if is_good or kv.is_alone:
            beat = yield from self._kept_alive(kv.lease)
            if beat is not None:
                return beat
        if is_ours:
            return (yield from shared(self._leases, ttl))
        if self._spare is None:
            self._spare = yield from grant(ttl)
        return self._spare

    def _written(self, kv: Kv, beat: Beat | None) -> Operation[tuple[Kv | None, str]]:
        """Write fields, lease or both, if the record has not changed; return it as it then is, and the term."""
        name = self._command.name
        if is_damaged(kv.fields):
            raise StoreRefused(
                f"the record of {name.key!r} in etcd is damaged: {kv.fields[DAMAGE]}; break it with now=True (--now)"
            )
        lease = NO_LEASE if beat is None else beat.lease
        is_alone = beat is not None and (kv.is_alone if lease == kv.lease else beat is self._spare)
        if beat is not None and not is_alone:
            # before the write, which may be applied late
            self._leases.hangs(name, lease, kv.created, boot_now())
        new = replace(kv, lease=lease, fields={**kv.fields, **self._fields}, is_alone=is_alone)
        same, found = encoding.compared_record(kv), encoding.seeking(self._root.base(name))
        try:
            body = yield from ask(encoding.txn("Extend", [encoding.put_record(new)], when=same, otherwise=found))
        except LeaseGone:
            self._leases.retire(lease)
            self._spare = None
            return (yield from look(self._root, name))
        if not body.get("succeeded"):
            return encoding.sought(body["responses"]), term_of(body)
        if kv.is_alone and lease != kv.lease:
            self._left.append(kv.lease)
        if self._spare is not None and self._spare.lease == lease:
            self._spare = None
        self._has_written, self._fields, self._revision = True, {}, None
        return replace(new, changed=body["header"]["revision"]), term_of(body)
