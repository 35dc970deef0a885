"""What the server holds: buckets and objects, and what may change them.

Pure state: no socket, no file, no sleep; time comes from the clock it is given. Every change happens under one lock,
preconditions are judged inside it, and an object is an immutable value, so a reader never sees half a change.

The rules that locks rest on: a generation is unique for the life of the server and never used again, not even after a
deletion; the metageneration starts at 1 with every generation and grows by one with every change of the metadata.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gcs_emulator.checksums import crc32c_base64, md5_base64
from gcs_emulator.clock import Clock
from gcs_emulator.conditions import ALWAYS, Conditions
from gcs_emulator.errors import ApiError, no_bucket, no_object, too_many_changes
from gcs_emulator.retention import held_by_default, refusal

SHUFFLED_BITS = (1 << 24) - 1
NAME_BYTES_MAX = 1024
METADATA_BYTES_MAX = 8 * 1024


@dataclass(frozen=True, slots=True)
class Draft:
    """The content and descriptions an object is made of, before it has a place and a generation."""

    content: bytes = field(repr=False)
    md5: str | None
    crc32c: str
    fields: Mapping[str, object]
    metadata: Mapping[str, str]
    components: int | None = None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One incarnation of an object at one version of its metadata; instants are seconds since the epoch."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    created_at: float
    updated_at: float
    draft: Draft


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket's own description; `fields` are the settings a caller may give and patch."""

    name: str
    created_at: float
    updated_at: float
    metageneration: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Source:
    """One object a copy or a composition reads, and under which conditions."""

    bucket: str
    name: str
    generation: int | None = None
    conditions: Conditions = ALWAYS


def draft_of(content: bytes, fields: Mapping[str, object], metadata: Mapping[str, str]) -> Draft:
    """Make a draft of the content, with its checksums."""
    return Draft(content, md5_base64(content), crc32c_base64(content), fields, metadata)


class Store:
    """All buckets and objects of one server; safe to share between threads.

    mutation_gap gives the least seconds between two changes of one object (0: no limit).
    Does not keep noncurrent or soft-deleted versions: what is deleted or overwritten is gone.
    """

    def __init__(
        self, clock: Clock, *, mutation_gap: Callable[[], float] = lambda: 0.0, shuffled: bool = False
    ) -> None:
        self._clock = clock
        self._mutation_gap = mutation_gap
        self._shuffled = shuffled
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._objects: dict[str, dict[str, StoredObject]] = {}
        self._changed_at: dict[tuple[str, str], float] = {}
        self._last_generation = 0

    # buckets

    def create_bucket(self, name: str, fields: Mapping[str, object]) -> Bucket:
        """Make an empty bucket; raises ApiError 409 if it exists."""
        with self._lock:
            if name in self._buckets:
                raise ApiError(
                    409, "Your previous request to create the named bucket succeeded and you already own it."
                )
            now = self._clock()
            self._buckets[name] = Bucket(name, now, now, 1, dict(fields))
            self._objects[name] = {}
            return self._buckets[name]

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; raises ApiError 404."""
        with self._lock:
            if name not in self._buckets:
                raise no_bucket()
            return self._buckets[name]

    def buckets(self) -> list[Bucket]:
        """Return all buckets by name."""
        with self._lock:
            return sorted(self._buckets.values(), key=lambda bucket: bucket.name)

    def patch_bucket(self, name: str, changes: Mapping[str, object]) -> Bucket:
        """Set fields of a bucket, remove those that are None; raises ApiError 404."""
        with self._lock:
            if name not in self._buckets:
                raise no_bucket()
            old = self._buckets[name]
            fields = {key: value for key, value in {**old.fields, **changes}.items() if value is not None}
            new = replace(old, fields=fields, updated_at=self._clock(), metageneration=old.metageneration + 1)
            self._buckets[name] = new
            return new

    def delete_bucket(self, name: str) -> None:
        """Remove an empty bucket; raises ApiError 404, or 409 if it holds objects."""
        with self._lock:
            if self._in(name):
                raise ApiError(409, "The bucket you tried to delete is not empty.")
            del self._buckets[name], self._objects[name]

    # objects

    def get(
        self, bucket: str, name: str, conditions: Conditions = ALWAYS, generation: int | None = None
    ) -> StoredObject:
        """Return an object; raises ApiError 404, 412 or 304."""
        with self._lock:
            return self._found(bucket, name, conditions, generation)

    def names(self, bucket: str) -> dict[str, StoredObject]:
        """Return the bucket's objects by name, in the order of names; raises ApiError 404."""
        with self._lock:
            objects = self._in(bucket)
            return {name: objects[name] for name in sorted(objects)}

    def judge(self, bucket: str, name: str, conditions: Conditions) -> None:
        """Return if an insert would be let through now; raises ApiError."""
        with self._lock:
            conditions.judge(self._in(bucket).get(name))

    def insert(self, bucket: str, name: str, draft: Draft, conditions: Conditions = ALWAYS) -> StoredObject:
        """Make a new incarnation of the object; raises ApiError 404 (bucket), 412, 304, 403 (retention) or 429."""
        with self._lock:
            return self._insert(bucket, name, draft, conditions)

    def patch(
        self,
        bucket: str,
        name: str,
        change: Callable[[Draft], Draft],
        conditions: Conditions = ALWAYS,
        generation: int | None = None,
    ) -> StoredObject:
        """Change descriptions of the object, within its incarnation; raises ApiError 404, 412, 304, 400 or 429."""
        with self._lock:
            old = self._found(bucket, name, conditions, generation)
            now = self._admit_change(bucket, name)
            new = replace(old, metageneration=old.metageneration + 1, updated_at=now, draft=change(old.draft))
            self._objects[bucket][name] = new
            self._note_change(bucket, name, now)
            return new

    def delete(self, bucket: str, name: str, conditions: Conditions = ALWAYS, generation: int | None = None) -> None:
        """Remove the object; raises ApiError 404, 412, 304, 403 (retention, a hold) or 429."""
        with self._lock:
            self._refuse_kept(self._found(bucket, name, conditions, generation))
            now = self._admit_change(bucket, name)
            del self._objects[bucket][name]
            self._note_change(bucket, name, now)

    def make_from(
        self,
        sources: Sequence[Source],
        bucket: str,
        name: str,
        conditions: Conditions,
        combine: Callable[[Sequence[StoredObject]], Draft],
    ) -> StoredObject:
        """Make an object of others, in one step; raises ApiError 404, 412, 304 or 429."""
        with self._lock:
            found = [self._found(one.bucket, one.name, one.conditions, one.generation) for one in sources]
            return self._insert(bucket, name, combine(found), conditions)

    # with the lock held

    def _in(self, bucket: str) -> dict[str, StoredObject]:
        try:
            return self._objects[bucket]
        except KeyError:
            raise no_bucket() from None

    def _found(self, bucket: str, name: str, conditions: Conditions, generation: int | None) -> StoredObject:
        found = self._in(bucket).get(name)
        if found is None or (generation and generation != found.generation):
            raise no_object(bucket, name)
        conditions.judge(found)
        return found

    def _insert(self, bucket: str, name: str, draft: Draft, conditions: Conditions) -> StoredObject:
        objects = self._in(bucket)
        conditions.judge(objects.get(name))
        if name in objects:
            self._refuse_kept(objects[name])
        now = self._admit_change(bucket, name)
        draft = replace(draft, fields=held_by_default(self._buckets[bucket].fields, draft.fields))
        objects[name] = new = StoredObject(bucket, name, self._next_generation(now), 1, now, now, draft)
        self._note_change(bucket, name, now)
        return new

    def _refuse_kept(self, old: StoredObject) -> None:
        fields, place = self._buckets[old.bucket].fields, f"{old.bucket}/{old.name}"
        refused = refusal(fields, place, old.created_at, old.draft.fields, self._clock())
        if refused is not None:
            raise refused

    def _next_generation(self, now: float) -> int:
        self._last_generation = max(self._last_generation + 1, int(now * 1e6))
        if not self._shuffled:
            return self._last_generation
        # An odd factor permutes the low bits: still unique, no longer growing. Only uniqueness is promised.
        low = self._last_generation & SHUFFLED_BITS
        return (self._last_generation & ~SHUFFLED_BITS) | (low * 0x9E3779B1 & SHUFFLED_BITS)

    def _admit_change(self, bucket: str, name: str) -> float:
        now, gap = self._clock(), self._mutation_gap()
        last = self._changed_at.get((bucket, name)) if gap else None
        if last is not None and 0 <= now - last < gap:
            raise too_many_changes(bucket, name)
        return now

    def _note_change(self, bucket: str, name: str, now: float) -> None:
        if self._mutation_gap():
            self._changed_at[bucket, name] = now
