"""A bucket in memory, to run the pipeline hundreds of times; the contract's tests hold it to the real one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from examples.publishing.bucket import IMMUTABLE, NEVER_CACHED, Stat, crc32c
from examples.publishing.errors import NotFound, PreconditionFailed


@dataclass(frozen=True, slots=True)
class Held:
    stat: Stat
    content: bytes


class MemoryBucket:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generations = itertools.count(1000)
        self.objects: dict[str, Held] = {}

    def create(self, name: str, content: bytes, *, cache_control: str = IMMUTABLE, **metadata: str) -> Stat:
        return self._put(name, content, 0, metadata)

    def replace(
        self, name: str, content: bytes, *, generation: int, cache_control: str = NEVER_CACHED, **metadata: str
    ) -> Stat:
        return self._put(name, content, generation, metadata)

    def copy(self, source: Stat, target: str) -> Stat:
        with self._lock:
            held = self.objects.get(source.name)
            if held is None or held.stat.generation != source.generation:
                raise NotFound(source.name)
        return self._put(target, held.content, 0, {})

    def stat(self, name: str) -> Stat:
        with self._lock:
            return self._held(name).stat

    def read(self, name: str, *, generation: int | None = None) -> bytes:
        with self._lock:
            held = self._held(name)
            if generation not in {None, held.stat.generation}:
                raise NotFound(name)
            return held.content

    def list(self, prefix: str) -> Iterator[Stat]:
        with self._lock:
            found = [replace(held.stat, metadata={}) for held in self.objects.values()]
        return iter(sorted((one for one in found if one.name.startswith(prefix)), key=lambda one: one.name))

    def folders(self, prefix: str) -> Iterator[str]:
        below = [one.name.removeprefix(prefix) for one in self.list(prefix)]
        return iter(dict.fromkeys(name.partition("/")[0] for name in below if "/" in name))

    def delete(self, name: str, *, generation: int) -> None:
        with self._lock:
            if self._held(name).stat.generation != generation:
                raise PreconditionFailed(name)
            del self.objects[name]

    def put(self, name: str, content: bytes, **metadata: str) -> None:
        """Write whatever is there: what a hand that does not know the rules would do."""
        with self._lock:
            generation = next(self._generations)
            self.objects[name] = Held(Stat(name, len(content), crc32c(content), generation, metadata), content)

    def _held(self, name: str) -> Held:
        if name not in self.objects:
            raise NotFound(name)
        return self.objects[name]

    def _put(self, name: str, content: bytes, expected: int, metadata: dict[str, str]) -> Stat:
        with self._lock:
            held = self.objects.get(name)
            if (held.stat.generation if held else 0) != expected:
                raise PreconditionFailed(name)
            stat = Stat(name, len(content), crc32c(content), next(self._generations), metadata)
            self.objects[name] = Held(stat, content)
            return stat
