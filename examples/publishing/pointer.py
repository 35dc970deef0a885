"""The pointer: how it is fenced, and the one compare-and-swap that publishes.

The pointer's text is the number of the current version. Its metadata has the sequencer of the last holder of the lock
that published or fenced; earlier holders are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from examples.publishing.bucket import RetryingBucket
from examples.publishing.errors import NotFound, OutcomeUnknown, PreconditionFailed, Refused, Superseded
from examples.publishing.layout import MANIFEST, Layout, number_of
from examples.publishing.lease import Sequencer
from examples.publishing.manifest import Manifest

FENCE = "lockstead-fence"
TRIES = 12


@dataclass(frozen=True, slots=True)
class Pointer:
    """The pointer as read: version number, generation, and its fence's token (None: it was never fenced)."""

    number: int
    generation: int
    token: int | None
    key: str | None


def read_pointer(bucket: RetryingBucket, layout: Layout) -> Pointer | None:
    """Read the pointer; None if it does not exist, Refused if it is not valid."""
    for _ in range(TRIES):
        try:
            found = bucket.stat(layout.pointer)
        except NotFound:
            return None
        try:
            text = bucket.read(layout.pointer, generation=found.generation)
        except NotFound:
            continue
        token, _, key = found.metadata.get(FENCE, "").partition(":")
        fenced = token.isdecimal()
        number = number_of(text, layout.pointer)
        return Pointer(number, found.generation, int(token) if fenced else None, key if fenced else None)
    raise OutcomeUnknown(f"{layout.pointer} changes faster than it can be read")


def fence(bucket: RetryingBucket, layout: Layout, ours: Sequencer, check: Callable[[], None]) -> Pointer:
    """Write our sequencer to the pointer, so that no earlier holder can commit any more; Superseded if ours is older.

    The text stays the same, but the generation changes, and every earlier holder's compare-and-swap expects the old
    one. Must be called before anything is read that the work builds upon. Creates the pointer of a repository without
    versions; Refused if the pointer is missing although there are versions, or if another lock guards it.
    """
    for _ in range(TRIES):
        check()
        found = read_pointer(bucket, layout)
        if found is None and next(bucket.folders(layout.versions), None) is not None:
            raise Refused(
                f"{layout.pointer} is missing although there are versions; publishing now would lose them."
                " Put the number of the last good version back by hand"
            )
        if found is not None:
            _refuse_stale(layout, found, ours)
        number, generation = (found.number, found.generation) if found else (0, 0)
        try:
            moved = _swap(bucket, layout, number, generation, ours)
        except (PreconditionFailed, OutcomeUnknown):
            # another publisher was here, or our own response was lost: the pointer tells
            bucket.pause(0.2)
            continue
        return Pointer(number, moved, ours.token, ours.key)
    raise OutcomeUnknown(f"{layout.pointer} could not be fenced")


def commit(bucket: RetryingBucket, layout: Layout, fenced: Pointer, number: int, ours: Sequencer) -> None:
    """Send readers to a version; Superseded if a later holder was here first.

    The lease is not checked: after the first request only the pointer tells whether the version is published, and a
    repeated swap is harmless. A conflict may be caused by our own lost response: then the pointer shows our number, or
    one built upon it. OutcomeUnknown if the bucket does not respond.
    """
    bucket = replace(bucket, check=lambda: None)
    for attempt in range(TRIES):
        try:
            _swap(bucket, layout, number, fenced.generation, ours)
        except (PreconditionFailed, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown):
                bucket.pause(min(0.2 * (attempt + 1), 2.0))
            found = read_pointer(bucket, layout)
            if found is not None and _descends(bucket, layout, found.number, number):
                return
            if found is None or found.generation != fenced.generation:
                seen = "gone" if found is None else f"at version {found.number} with token {found.token}"
                raise Superseded(
                    f"version {number} was not published: {layout.pointer} is {seen},"
                    f" and this run holds token {ours.token}"
                ) from None
        else:
            return
    raise OutcomeUnknown(f"whether version {number} was published is not known: the bucket does not answer")


def _swap(bucket: RetryingBucket, layout: Layout, number: int, generation: int, ours: Sequencer) -> int:
    text = f"{number}".encode()
    written = bucket.replace(layout.pointer, text, generation=generation, **{FENCE: f"{ours.token}:{ours.key}"})
    return written.generation


def _refuse_stale(layout: Layout, found: Pointer, ours: Sequencer) -> None:
    if found.key is not None and found.key != ours.key:
        raise Refused(
            f"{layout.pointer} is guarded by the lock {found.key!r}, not by {ours.key!r}: tokens of two locks cannot be"
            " compared. Use that lock, or remove the metadata from the pointer"
        )
    if found.token is not None and found.token > ours.token:
        raise Superseded(f"{layout.pointer} has seen token {found.token}; this run holds {ours.token}")


def _descends(bucket: RetryingBucket, layout: Layout, number: int, ancestor: int) -> bool:
    if number <= ancestor:
        return number == ancestor
    where = layout.version(number, MANIFEST)
    return ancestor in Manifest.from_bytes(bucket.read(where), where).chain
