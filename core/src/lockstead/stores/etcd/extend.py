"""How a record's life is renewed: a KeepAlive of the lease it hangs on, then a range that proves it.

A KeepAlive proves nothing about the record, so the range is read after it, and counts only if the record hangs on that
very lease. What hangs on a shared lease of another store, or on one of ours that was retired, is moved by a write.
Must not know connections.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockstead.errors import StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Extend, Snapshot
from lockstead.reading import DAMAGE
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.encoding import NO_LEASE, Kv, Root
from lockstead.stores.etcd.errors import LeaseGone
from lockstead.stores.etcd.leases import Leases
from lockstead.stores.etcd.scripts import (
    TURNS_MAX,
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

Answer = Snapshot | Conflict | Absent


def judged(leases: Leases, command: Extend, kv: Kv | None, beat: Beat | None, term: str) -> Answer | None:
    """Say what a renewal came to, from a range that was read in `term` after the KeepAlive's answer.

    None: the record hangs elsewhere, or another leader was elected: it takes a script of its own.
    """
    refused = refusal(leases, command, command.revision, kv)
    if refused is not None or kv is None:
        return refused
    if beat is None or beat.lease != kv.lease or not beat.is_proved(term):
        return None
    return counted(leases, command, kv, beat)


def counted(leases: Leases, command: Extend, kv: Kv, beat: Beat) -> Snapshot:
    """Take up a renewal that is proved, and give the record as it stands."""
    if beat.is_alone:
        leases.hangs_alone(command.name, beat.lease, kv.created)
    else:
        leases.hangs(command.name, beat.lease, kv.created, boot_now())
        leases.beat(beat.lease, beat.sent_at, beat.ttl)
    return kv.snapshot(beat.sent_at, lifetime(kv.min_retention, beat))


def refusal(leases: Leases, command: Extend, revision: str | None, kv: Kv | None) -> Absent | Conflict | None:
    """Say why a record is not the one that was expected; None if it is."""
    expected = command.incarnation
    if expected is not None and (kv is None or kv.created != expected):
        leases.forget(command.name, expected)
    if kv is None:
        return Absent()
    if expected not in (None, kv.created) or revision not in (None, kv.changed):
        return Conflict()
    return None


class Extension:
    """One Extend: what is still to be written, under which revision, and on which lease."""

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
        """Carry it out."""
        try:
            answer = yield from self._turns()
        except StoreUnavailable as error:
            if self._has_written:
                raise doubtful(error, f"the record of {self._command.name.key!r} was written") from error
            raise
        for lease in self._left if self._spare is None else [*self._left, self._spare.lease]:
            yield from end(lease)
        return answer

    def _turns(self) -> Operation[Answer]:
        command, leases = self._command, self._leases
        beat = yield from self._known()
        kv, term = yield from look(self._root, command.name)
        for _ in range(TURNS_MAX):
            refused = refusal(leases, command, self._revision, kv)
            if refused is not None or kv is None:
                return refused or Absent()
            if kv.lease == NO_LEASE and kv.min_retention <= 0:
                # it stands forever, so that a write is all there is to renew
                if self._has_written:
                    return kv.snapshot()
                kv, term = yield from self._written(kv, None)
                continue
            if not self._fields:
                plain = Extend(command.name, {}, command.incarnation, None, command.lifetime)
                done = judged(leases, plain, kv, beat, term)
                if done is not None:
                    return done
            beat = yield from self._beat(kv)
            if self._fields or beat.lease != kv.lease:
                kv, term = yield from self._written(kv, beat)
            else:
                kv, term = yield from look(self._root, command.name)
        raise StoreUnavailable(f"the record of {command.name.key!r} kept changing under our eyes")

    def _known(self) -> Operation[Beat | None]:
        """Renew the lease that the record hangs on as far as we know, where nothing is to be written."""
        command = self._command
        if command.incarnation is None:
            return None
        if self._fields:
            self._leases.wanted([(command.name, command.incarnation)], boot_now())
            return None
        (known,) = self._leases.wanted([(command.name, command.incarnation)], boot_now())
        if known is None or not known.is_good:
            return None
        return (yield from keep_alive(self._leases, known.lease, is_alone=known.is_alone))

    def _beat(self, kv: Kv) -> Operation[Beat]:
        """Renew the lease of a record, or get it another one to move to.

        A shared lease of another store is left alone: whoever renewed it would keep all records of a process alive
        that may be dead.
        """
        ttl = encoding.ttl_of(kv.min_retention)
        is_ours, lease = self._leases.ours(kv.lease, boot_now())
        if lease is not None or kv.is_alone:
            beat = yield from keep_alive(self._leases, kv.lease, is_alone=lease is None)
            if beat is not None:
                return beat
        if is_ours:
            return (yield from shared(self._leases, ttl))
        if self._spare is None:
            made = yield from grant(ttl)
            self._spare = Beat(made.lease, made.ttl, made.sent_at, None, is_alone=True)
        return self._spare

    def _written(self, kv: Kv, beat: Beat | None) -> Operation[tuple[Kv | None, str]]:
        """Write fields, lease or both, if the record is still this one; give it as it then stands, and the term."""
        name = self._command.name
        if is_damaged(kv.fields):
            raise StoreRefused(
                f"the record of {name.key!r} in etcd is damaged: {kv.fields[DAMAGE]}; break it with now=True (--now)"
            )
        lease, is_alone = (NO_LEASE, False) if beat is None else (beat.lease, beat.is_alone)
        fields = {**kv.fields, **self._fields}
        if beat is not None and not is_alone:
            # before it is sent: what lands there late must be known to hang there
            self._leases.hangs(name, lease, kv.created, boot_now())
        same = encoding.compared_record(kv)
        value = encoding.value_of(fields, kv.min_retention, is_alone=is_alone)
        shows = encoding.seeking(self._root.base(name))
        try:
            body = yield from ask(encoding.txn("Extend", same, [encoding.put(kv.key, value, lease)], shows))
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
        changed = body["header"]["revision"]
        return Kv(kv.key, kv.created, changed, lease, fields, kv.min_retention, is_alone), term_of(body)
