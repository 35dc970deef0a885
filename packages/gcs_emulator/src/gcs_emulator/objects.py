"""The stored buckets and objects, and their changes.

In memory only: no socket, no file, no sleep; time comes from the given clock. Every change happens under one lock,
preconditions are checked under it, and an object is an immutable value, so a reader never sees a partial change.

The rules that locks depend on: a generation is unique for the lifetime of the server and never reused, even after a
deletion; the metageneration starts at 1 with every generation and increases by 1 with every change of the metadata.
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
    """The content and metadata of an object, before it has a name and a generation."""

    content: bytes = field(repr=False)
    md5: str | None
    crc32c: str
    fields: Mapping[str, object]
    metadata: Mapping[str, str]
    components: int | None = None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One generation of an object at one version of its metadata; instants are seconds since the epoch."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    created_at: float
    updated_at: float
    draft: Draft


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket resource; `fields` are the settings that a caller may set and patch."""

    name: str
    created_at: float
    updated_at: float
    metageneration: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Source:
    """A source object of a copy or a composition, with its preconditions."""

    bucket: str
    name: str
    generation: int | None = None
    conditions: Conditions = ALWAYS


def draft_of(content: bytes, fields: Mapping[str, object], metadata: Mapping[str, str]) -> Draft:
    """Return a draft of the content with its checksums."""
    return Draft(content, md5_base64(content), crc32c_base64(content), fields, metadata)


class Store:
    """All buckets and objects of one server; safe to share between threads.

    mutation_gap returns the minimum seconds between two changes of one object (0: no limit). Noncurrent and
    soft-deleted versions are not kept.
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
        """Create an empty bucket; raises ApiError 409 if it exists."""
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
        """Return all buckets, sorted by name."""
        with self._lock:
            return sorted(self._buckets.values(), key=lambda bucket: bucket.name)

    def patch_bucket(self, name: str, changes: Mapping[str, object]) -> Bucket:
        """Set fields of a bucket, and remove those that are None; raises ApiError 404."""
        with self._lock:
            if name not in self._buckets:
                raise no_bucket()
            old = self._buckets[name]
            fields = {key: value for key, value in {**old.fields, **changes}.items() if value is not None}
            new = replace(old, fields=fields, updated_at=self._clock(), metageneration=old.metageneration + 1)
            self._buckets[name] = new
            return new

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket; raises ApiError 404, or 409 if it contains objects."""
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
        """Return the bucket's objects by name, sorted; raises ApiError 404."""
        with self._lock:
            objects = self._in(bucket)
            return {name: objects[name] for name in sorted(objects)}

    def judge(self, bucket: str, name: str, conditions: Conditions) -> None:
        """Check the preconditions of an insert; raises ApiError."""
        with self._lock:
            conditions.judge(self._in(bucket).get(name))

    def insert(self, bucket: str, name: str, draft: Draft, conditions: Conditions = ALWAYS) -> StoredObject:
        """Create a new generation of the object; raises ApiError 404 (bucket), 412, 304, 403 (retention) or 429."""
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
        """Change the metadata of the object, keeping its generation; raises ApiError 404, 412, 304, 400 or 429."""
        with self._lock:
            old = self._found(bucket, name, conditions, generation)
            now = self._admit_change(bucket, name)
            new = replace(old, metageneration=old.metageneration + 1, updated_at=now, draft=change(old.draft))
            self._objects[bucket][name] = new
            self._note_change(bucket, name, now)
            return new

    def delete(self, bucket: str, name: str, conditions: Conditions = ALWAYS, generation: int | None = None) -> None:
        """Delete the object; raises ApiError 404, 412, 304, 403 (retention, a hold) or 429."""
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
        """Create an object from others atomically; raises ApiError 404, 412, 304 or 429."""
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
        # An odd factor permutes the low bits: still unique, but no longer increasing. Only uniqueness is guaranteed.
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
