"""Access to a bucket: eight operations, each exactly one request.

Decides nothing but what a repeated request means (`RetryingBucket`). Must not know what is published. No verb
repeats itself: who asks knows whether asking twice is harmless.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import google_crc32c

from examples.publishing.errors import NotFound, OutcomeUnknown, PreconditionFailed

Answer = TypeVar("Answer")

IMMUTABLE = "public, max-age=31536000, immutable"
NEVER_CACHED = "no-store"


@dataclass(frozen=True, slots=True)
class Stat:
    """An object without its content: size in bytes, CRC32C as the API writes it (base64), generation, own metadata.

    created_at: seconds since the epoch by the bucket's clock. A listing leaves metadata empty.
    """

    name: str
    size: int
    crc32c: str
    generation: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_at: float = 0.0


class Bucket(Protocol):
    """A bucket that holds a repository. Every operation may raise OutcomeUnknown; names are whole object names.

    Not promised: that a request with an unknown outcome is not carried out later.
    """

    def create(self, name: str, content: bytes, *, cache_control: str = IMMUTABLE, **metadata: str) -> Stat:
        """Write an object that does not exist; PreconditionFailed if it does."""
        ...

    def replace(
        self, name: str, content: bytes, *, generation: int, cache_control: str = NEVER_CACHED, **metadata: str
    ) -> Stat:
        """Compare and swap: write an object if it has this generation (0: it does not exist); else raise
        PreconditionFailed."""
        ...

    def copy(self, source: Stat, target: str) -> Stat:
        """Copy this generation inside the bucket to a name that does not exist.

        PreconditionFailed if the target exists or the source has changed; NotFound if the source is gone.
        """
        ...

    def stat(self, name: str) -> Stat:
        """Return an object's metadata; NotFound."""
        ...

    def read(self, name: str, *, generation: int | None = None) -> bytes:
        """Return the content; NotFound if the object is gone or no longer has this generation."""
        ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """Return all objects whose names have this prefix, sorted by name."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Return the parts of names between the prefix and the next slash, each once."""
        ...

    def delete(self, name: str, *, generation: int) -> None:
        """Delete this generation of an object; PreconditionFailed if it has another one, NotFound if it is gone."""
        ...


def crc32c(content: bytes) -> str:
    """Return the CRC32C of content as the API writes it."""
    return base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


@dataclass(frozen=True, slots=True)
class RetryingBucket:
    """A bucket whose idempotent requests are repeated for about `patience` seconds; `check` is called before each
    repetition.

    Idempotent are: reading; creating (if the name is taken, the content must be the same, else PreconditionFailed);
    copying likewise; deleting. `replace` is not repeated: only its caller can tell whether a swap with an unknown
    outcome took effect.
    """

    bucket: Bucket
    check: Callable[[], None] = lambda: None
    patience: float = 20.0
    pause: Callable[[float], None] = time.sleep

    def create(self, name: str, content: bytes, *, cache_control: str = IMMUTABLE, **metadata: str) -> Stat:
        """Create an object, or find that an earlier attempt has created it."""

        def attempt() -> Stat:
            return self.bucket.create(name, content, cache_control=cache_control, **metadata)

        return self._again(lambda: self._unless_there(attempt, name, len(content), crc32c(content)))

    def copy(self, source: Stat, target: str) -> Stat:
        """Copy an object, or find that an earlier attempt has copied it."""

        def attempt() -> Stat:
            return self.bucket.copy(source, target)

        return self._again(lambda: self._unless_there(attempt, target, source.size, source.crc32c))

    def replace(
        self, name: str, content: bytes, *, generation: int, cache_control: str = NEVER_CACHED, **metadata: str
    ) -> Stat:
        """Send one request; it is not repeated."""
        return self.bucket.replace(name, content, generation=generation, cache_control=cache_control, **metadata)

    def stat(self, name: str) -> Stat:
        """Return an object's metadata."""
        return self._again(lambda: self.bucket.stat(name))

    def read(self, name: str, *, generation: int | None = None) -> bytes:
        """Return the content."""
        return self._again(lambda: self.bucket.read(name, generation=generation))

    def list(self, prefix: str) -> Iterator[Stat]:
        """Return all objects whose names have this prefix."""
        return iter(self._again(lambda: tuple(self.bucket.list(prefix))))

    def folders(self, prefix: str) -> Iterator[str]:
        """Return the folders below a prefix."""
        return iter(self._again(lambda: tuple(self.bucket.folders(prefix))))

    def delete(self, name: str, *, generation: int) -> None:
        """Delete this generation; succeeds if it is gone already."""
        try:
            self._again(lambda: self.bucket.delete(name, generation=generation))
        except (NotFound, PreconditionFailed):
            return

    def _unless_there(self, attempt: Callable[[], Stat], name: str, size: int, crc: str) -> Stat:
        try:
            return attempt()
        except PreconditionFailed:
            try:
                found = self.bucket.stat(name)
            except NotFound:
                raise PreconditionFailed(f"{name}: what it was to be copied from has changed") from None
            if (found.size, found.crc32c) != (size, crc):
                raise PreconditionFailed(f"{name} exists with other content") from None
            return found

    def _again(self, attempt: Callable[[], Answer]) -> Answer:
        waited, pause = 0.0, 0.05
        while True:
            try:
                return attempt()
            except OutcomeUnknown:
                if waited >= self.patience:
                    raise
            wait = pause * random.uniform(0.5, 1.0)
            self.pause(wait)
            waited, pause = waited + wait, min(2 * pause, 2.0)
            self.check()
