"""What all acts share: bucket, keys, packages, the ledger of reported successes, and a continuous reader."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from examples.publishing.build import Recipe, build
from examples.publishing.demo.board import Board
from examples.publishing.errors import BucketError
from examples.publishing.events import Event, EventKind
from examples.publishing.front import Front
from examples.publishing.gcs import GcsBucket, Place
from examples.publishing.layout import Layout
from examples.publishing.lease import LockSettings
from examples.publishing.oracle import Entry, Verdict, judge
from examples.publishing.runner import FORMATS, Job, Pace
from examples.publishing.signing import Signer, generate_key
from gcs_emulator import GcsServer

SUFFIXES = {"apt": "deb", "yum": "rpm"}


@dataclass(slots=True)
class Ledger:
    """The ledger: what publishers reported as published, and what they tried to publish."""

    reported: dict[str, list[Entry]] = field(default_factory=lambda: {kind: [] for kind in FORMATS})
    attempted: dict[str, list[Entry]] = field(default_factory=lambda: {kind: [] for kind in FORMATS})


@dataclass(frozen=True, slots=True)
class Theatre:
    """Everything an act needs. ttl and pace are in seconds."""

    board: Board
    bucket: GcsBucket
    place: Place
    front: Front
    lock_url: str
    folder: Path
    secret_key: str
    public_key: str
    ttl: float
    pace: float

    def packages(self, name: str, kinds: tuple[str, ...] = ("apt", "yum")) -> tuple[Path, ...]:
        """Build a package for each repository."""
        key = self.folder / "key.asc"
        return tuple(build(Recipe(name, text=f"{name}\n"), SUFFIXES[kind], self.folder, key) for kind in kinds)

    def jobs(self, prefix: str, names: tuple[str, ...], *, locked: bool = True, pace: float = 0.0) -> tuple[Job, ...]:
        """Prepare a job for each name, which publishes one package of that name to each repository."""
        with ThreadPoolExecutor(4) as pool:
            files = list(pool.map(self.packages, names))
        place = Place(self.place.bucket, self.place.prefix + prefix)
        return tuple(
            Job(name, place, self.secret_key, found, self.lock(name) if locked else None, pace=Pace(self.pace + pace))
            for name, found in zip(names, files, strict=True)
        )

    def lock(self, owner: str) -> LockSettings:
        """Return the lock settings of a run."""
        return LockSettings(self.lock_url, ttl=self.ttl, timeout=120.0 + 60 * self.pace, owner=owner, backoff_max=0.3)

    def note_event(self, ledger: Ledger, job: Job, event: Event) -> None:
        """Show an event, and add a reported success to the ledger."""
        self.board.event(event)
        if event.what is EventKind.PUBLISHED:
            ledger.reported[event.repository] += entries_of(job, event.repository)

    def judge(self, prefix: str, kind: str, ledger: Ledger, *, is_sealed: bool = True) -> Verdict:
        """Return the oracle's verdict on one repository."""
        return judge(
            self.bucket,
            f"{self.place.prefix}{prefix}{kind}/",
            kind,
            self.public_key,
            ledger.reported[kind],
            ledger.attempted[kind],
            is_sealed,
        )


def entries_of(job: Job, kind: str) -> list[Entry]:
    """Return the packages that a job publishes to a repository, as entries of the ledger."""
    found = [FORMATS[kind].inspect(path) for path in job.files if path.suffix == FORMATS[kind].suffix]
    return [Entry(package.name, package.version, package.arch, package.sha256) for package in found]


def attempted(ledger: Ledger, jobs: tuple[Job, ...]) -> None:
    """Add the packages that jobs will try to publish."""
    for job, kind in itertools.product(jobs, FORMATS):
        ledger.attempted[kind] += entries_of(job, kind)


class Reader:
    """Reads both repositories completely, in a loop, and counts the problems that a reader would have had.

    pause: seconds between two rounds.
    """

    def __init__(self, theatre: Theatre, ledger: Ledger, pause: float = 0.1) -> None:
        self._theatre, self._ledger, self._pause = theatre, ledger, pause
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)

    def _read(self) -> None:
        while not self._is_over.wait(self._pause):
            for kind in FORMATS:
                # Read before the repository: what is reported meanwhile may come after the version we read.
                known = Ledger({kind: list(self._ledger.reported[kind])}, {kind: list(self._ledger.attempted[kind])})
                try:
                    verdict = self._theatre.judge("", kind, known)
                except BucketError as error:
                    self.complaints.append(f"{kind}: {error}")
                    continue
                self.counts[kind] += 1
                if not verdict.is_good:
                    self.complaints.append(f"{kind} {verdict}")


@contextmanager
def theatre(board: Board, place: Place | None, lock_url: str | None, ttl: float, pace: float) -> Iterator[Theatre]:
    """Set everything up; without a place, on a server of its own. All that was started is stopped at the end."""
    with ExitStack() as stack:
        if place is None:
            place = stack.enter_context(_emulator())
            bucket = GcsBucket(place.bucket)
            stack.callback(bucket.close)
        else:
            # A GnuPG home of its own, removed afterwards: the demo signs with a key that nobody will ever trust.
            place = Place(place.bucket, f"{place.prefix}demo-{uuid.uuid4().hex[:8]}/")
            bucket = GcsBucket(place.bucket)
            stack.callback(bucket.close)
            stack.callback(_empty, bucket, place)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="publishing-")))
        secret_key = generate_key("Publishing example <publishing@example.invalid>")
        (folder / "key.asc").touch(mode=0o600)
        (folder / "key.asc").write_text(secret_key)
        layouts = {kind: Layout(f"{place.prefix}{kind}/") for kind in FORMATS}
        yield Theatre(
            board,
            bucket,
            place,
            stack.enter_context(Front(bucket, layouts)),
            lock_url or f"gs://{place.bucket}/{place.prefix}locks",
            folder,
            secret_key,
            Signer.from_armor(secret_key).public_key,
            ttl,
            pace,
        )


def _empty(bucket: GcsBucket, place: Place) -> None:
    for found in list(bucket.list(place.prefix)):
        with suppress(BucketError):
            bucket.delete(found.name, generation=found.generation)


@contextmanager
def _emulator() -> Iterator[Place]:
    # In this process, so that whatever ends the demo ends the server too.
    with GcsServer(buckets=["demo"]) as server:
        before = os.environ.get("STORAGE_EMULATOR_HOST")
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        try:
            yield Place("demo", "")
        finally:
            if before is None:
                del os.environ["STORAGE_EMULATOR_HOST"]
            else:
                os.environ["STORAGE_EMULATOR_HOST"] = before
