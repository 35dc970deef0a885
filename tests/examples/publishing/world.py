"""What the pipeline's tests share: a repository, leases made by hand, and buckets that stop or kill a publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from examples.publishing.apt import Apt
from examples.publishing.bucket import IMMUTABLE, NEVER_CACHED, Bucket, Stat
from examples.publishing.layout import Layout
from examples.publishing.oracle import Entry, Verdict, judge
from examples.publishing.packages import Format
from examples.publishing.pipeline import Outcome, Phases, Work, publishing
from examples.publishing.repository import Repository
from examples.publishing.signing import Signer
from examples.publishing.staging import Staged, stage
from examples.publishing.yum import Yum

KINDS: dict[str, tuple[Format, str]] = {"apt": (Apt(), "deb"), "yum": (Yum(), "rpm")}


@dataclass(frozen=True)
class Shelf:
    key: str
    strangers_key: str
    paths: dict[tuple[str, str], Path]


@dataclass(frozen=True)
class HandMadeSequencer:
    token: int
    key: str = "repo"


@dataclass
class HandMadeLease:
    """A lease that never notices that it was lost: the worst there is. `lost` makes it notice."""

    token: int
    key: str = "repo"
    lost: Exception | None = None

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost

    def sequencer(self) -> HandMadeSequencer:
        self.check()
        return HandMadeSequencer(self.token, self.key)


@dataclass
class World:
    """One repository in a bucket, and the ledger of what publishers tried and reported."""

    bucket: Bucket
    kind: str
    shelf: Shelf
    prefix: str = "repo/"
    keep: int = 2
    pause: Callable[[float], None] = lambda _: None
    reported: list[Entry] = field(default_factory=list)
    attempted: list[Entry] = field(default_factory=list)

    def repository(self, *, overwrite: bool = False, key: str | None = None) -> Repository:
        return Repository(
            KINDS[self.kind][0],
            Layout(self.prefix),
            Signer.from_armor(key or self.shelf.key),
            keep=self.keep,
            workers=1,
            overwrite=overwrite,
            pause=self.pause,
        )

    def staged(self, *names: str, bucket: Bucket | None = None) -> tuple[Staged, ...]:
        paths = [self.shelf.paths[KINDS[self.kind][1], name] for name in names]
        return stage(bucket or self.bucket, self.repository(), paths)

    def entries(self, *names: str) -> list[Entry]:
        return entries_of(self.staged(*names))

    def start(
        self,
        token: int,
        *names: str,
        bucket: Bucket | None = None,
        lease: HandMadeLease | None = None,
        overwrite: bool = False,
        key: str | None = None,
        restore: int | None = None,
    ) -> Phases:
        staged = self.staged(*names)
        entries = entries_of(staged)
        self.attempted += entries
        work = Work(
            bucket or self.bucket,
            self.repository(overwrite=overwrite, key=key),
            lease or HandMadeLease(token),
            staged,
            restore=restore,
        )
        return self._ledgered(publishing(work), entries)

    def publish(self, token: int, *names: str, **options: object) -> Outcome:
        return finish(self.start(token, *names, **options))  # type: ignore[arg-type] # passed on as they are

    def judge(self, *, is_sealed: bool = True) -> Verdict:
        key = self.shelf_public_key()
        return judge(self.bucket, self.prefix, self.kind, key, self.reported, self.attempted, is_sealed)

    def shelf_public_key(self) -> str:
        return Signer.from_armor(self.shelf.key).public_key

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.judge().entries)

    def _ledgered(self, phases: Phases, entries: list[Entry]) -> Phases:
        outcome = yield from phases
        self.reported += entries
        return outcome


def entries_of(staged: Iterable[Staged]) -> list[Entry]:
    return [Entry(one.package.name, one.package.version, one.package.arch, one.package.sha256) for one in staged]


def finish(phases: Phases) -> Outcome:
    """Run to the end and return the outcome."""

    def carried() -> Iterator[str]:
        outcomes.append((yield from phases))

    outcomes: list[Outcome] = []
    for _ in carried():
        pass
    return outcomes[0]


@dataclass
class Hooked:
    """A bucket that calls `before` and `after` with the number of each write (create, replace, copy, delete)."""

    bucket: Bucket
    before: Callable[[int, str], None] = lambda *_: None
    after: Callable[[int, str], None] = lambda *_: None
    writes: int = 0

    def _write(self, what: str, write: Callable[[], Stat]) -> Stat:
        self.writes += 1
        number = self.writes
        self.before(number, what)
        answer = write()
        self.after(number, what)
        return answer

    def create(self, name: str, content: bytes, *, cache_control: str = IMMUTABLE, **metadata: str) -> Stat:
        return self._write(
            f"create {name}", lambda: self.bucket.create(name, content, cache_control=cache_control, **metadata)
        )

    def replace(
        self, name: str, content: bytes, *, generation: int, cache_control: str = NEVER_CACHED, **metadata: str
    ) -> Stat:
        return self._write(
            f"replace {name}",
            lambda: self.bucket.replace(name, content, generation=generation, cache_control=cache_control, **metadata),
        )

    def copy(self, source: Stat, target: str) -> Stat:
        return self._write(f"copy {target}", lambda: self.bucket.copy(source, target))

    def delete(self, name: str, *, generation: int) -> None:
        def delete() -> Stat:
            self.bucket.delete(name, generation=generation)
            return Stat(name, 0, "", generation)

        self._write(f"delete {name}", delete)

    def stat(self, name: str) -> Stat:
        return self.bucket.stat(name)

    def read(self, name: str, *, generation: int | None = None) -> bytes:
        return self.bucket.read(name, generation=generation)

    def list(self, prefix: str) -> Iterator[Stat]:
        return self.bucket.list(prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        return self.bucket.folders(prefix)
